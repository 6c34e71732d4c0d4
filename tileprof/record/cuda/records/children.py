"""Grids that kernels launch, as far as the records of the launch that began it all hold them.

No callback reports such grids. Their patched code gets the callback data of the launch from the host, whatever the
depth (seen with 13.4.92, tests/gpu/recorder/test_gpu_children.py), so that what they touch stands among its records,
and blocks say in whose code they enter and exit. Which grid of a kernel an access belongs to is not recorded: a launch
and its children are one tile.

The blocks of a kernel that launches others do not enter where the host launched it: the library does not call
BLOCK_ENTER there (seen with 13.4.92). So threads that exit are counted, block by block, which is more than an entry
says: one that is missing, and one of a grid that the kernel launches of itself, are noticed alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from tileprof.record.cuda.records import raw
from tileprof.record.cuda.records.graphs import Attribution
from tileprof.record.cuda.records.tiles import Geometry

KERNELS: Final = 1
"""``launches`` of a kernel's event whose module launches kernels. Larger values: it launches graphs, whose nodes
may be of any module.
"""

_PC_SHIFT: Final = 4


@dataclass(frozen=True, slots=True)
class Grids:
    """Blocks of one kernel that a launch's kernels launched; times are nanoseconds after the launch's first block came
    or went.
    """

    kernel: str
    blocks: int
    begin_ns: int
    end_ns: int
    """End of the last block that has a time, -1 for none: a block that shares its number with another may not."""

    def __str__(self) -> str:
        until = f" to {self.end_ns / 1e3:,.1f}" if self.end_ns >= 0 else ""
        return f"{self.blocks:,} of {self.kernel} from {self.begin_ns / 1e3:,.1f}{until} us on"


@dataclass(frozen=True, slots=True)
class Children:
    """``whole``: every thread of the launch's own blocks exited once; ``grids``: of others, by kernel, in order of
    begin.
    """

    whole: bool
    grids: list[Grids]

    def note(self) -> str:
        """Return what the trace says of them."""
        launched = ", ".join(map(str, self.grids)) or "none"
        return f"it and the grids that it launched stand as one tile, which touches what all touch; blocks: {launched}"


def children(
    entries: raw.Entries,
    event: Mapping[str, Any],
    kernel: Mapping[str, Any],
    geometry: Geometry,
    attribution: Attribution,
    kernels: Mapping[int, Mapping[str, Any]],
) -> Children | None:
    """Return the children of a launch whose module launches kernels; None where the records do not tell whose they are.

    ``kernels``: by id, for names of those that the host launched, too.
    """
    code = kernel.get("code", [0, 0])
    if kernel.get("launches") != KERNELS or event["graph"] >= 0 or attribution is not Attribution.EXACT or not code[1]:
        return None
    kind = raw.kinds(entries)
    if np.isin(kind, (raw.TENSOR, raw.TENSOR_TAIL, raw.MAP)).any():  # whose parameters lie where is not known
        return None
    exits = entries[kind == raw.EXIT]
    own = exits[_inside(raw.low(exits) >> raw.SM_BITS, code)]
    if not len(own):
        return None
    blocks = entries[kind == raw.BLOCK]
    entered = raw.low(blocks) >> raw.SM_BITS
    home = _inside(entered, code)
    begin = _clock(blocks, 0)
    first = int(np.concatenate([begin, _clock(own, 2)]).min())
    grids = []
    for place in np.unique(entered[~home]).tolist():
        mine = entered == place
        ends = _clock(blocks[mine], 2)
        end_ns = int(ends.max()) - first if ends.max() > 0 else -1
        grids.append(Grids(_name(place, kernels), int(mine.sum()), int(begin[mine].min()) - first, end_ns))
    return Children(_all_exited(own, geometry), sorted(grids, key=lambda g: g.begin_ns))


def _all_exited(own: raw.Entries, geometry: Geometry) -> bool:
    blocks, threads = prod(geometry.grid), prod(geometry.block)
    block = own["block"].astype(np.int64)
    if block.max() >= blocks:
        return False
    exited = np.bincount(block, weights=own["payload"][:, 0], minlength=blocks)
    return bool((exited == threads).all())


def _inside(entered: np.ndarray, code: list[int]) -> np.ndarray:
    into = (entered - (code[0] >> _PC_SHIFT)) & ((1 << (raw.GENERATION_SHIFT - raw.SM_BITS)) - 1)
    return np.asarray(into < max(1, code[1] >> _PC_SHIFT))


def _name(place: int, kernels: Mapping[int, Mapping[str, Any]]) -> str:
    for kernel in kernels.values():
        code = kernel.get("code", [0, 0])
        if code[1] and _inside(np.array([place]), code).all():
            return str(kernel["name"])
    return "a kernel that the host did not launch"


def _clock(blocks: raw.Entries, word: int) -> np.ndarray:
    payload = blocks["payload"].astype(np.int64)
    return np.asarray(payload[:, word] | payload[:, word + 1] << 32)
