"""Is a policy a superset of what the trace says? Tile by tile, through posts, values and orders.

A wait for value ``v`` on a semaphore that ``n`` tiles post guarantees

* all ``n`` tiles if ``v == n``,
* no tile in particular if ``v < n`` (any ``v`` of them may have posted), but what more than ``n - v`` of them awaited,
* and never ends if ``v > n``.

What a tile is guaranteed it inherits: the tiles it awaits had their own guarantees when they ran. A dependency that is
guaranteed either way is covered; any other is *missing*, and a schedule exists in which the consumer reads too early.

Deadlock: blocks are taken in stage order, within a stage in its tile order, and a tile holds its slot while it waits. Then
whoever a tile awaits was taken before it, whatever the number of slots, unless a stage may be dispatched before its
producers (no wait kernel) and can fill the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.analysis.ranges import ragged
from tileprof.policy.format import Policy, PolicyError
from tileprof.policy.lower import Waits, lower

if TYPE_CHECKING:
    from tileprof.analysis import EdgeBlock, TileGraph

I64 = NDArray[np.int64]
Bits = NDArray[np.uint8]

_MISSING = ["producer", "producer_tile", "consumer", "consumer_tile", "hazard", "reuse", "bytes"]


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict. ``missing`` and ``renamable``: one row a dependency not covered (stages and tile numbers); ``renamable`` are
    those that exist only because memory was recycled, and vanish where the runtime gives stages memory of their own.
    ``excess``: one row an edge of the policy, with the waits that guarantee nothing the consumer needs. ``never``: sentences on
    waits that cannot end. ``needed`` counts dependencies between stages, ``covered`` those guaranteed.
    """

    missing: pd.DataFrame
    renamable: pd.DataFrame
    excess: pd.DataFrame
    never: tuple[str, ...]
    needed: int
    covered: int

    @property
    def sound(self) -> bool:
        return self.missing.empty and not self.never


def verify(policy: Policy, graph: TileGraph, launches: Sequence[int] | None = None) -> Verification:
    """Check ``policy`` against a tile graph; ``launches`` binds stages to launches (None: those that the policy names).

    Raises `PolicyError` where the policy is for another shape or its stages are not in the trace.
    """
    bound = _bind(policy, graph, launches)
    lowered = lower(policy)
    guaranteed = _guarantees(policy, lowered)
    needs = _needs(graph, bound)
    rows, covered, needed = [], 0, 0
    for (i, j), parts in needs.items():
        for hazard, reuse, parent, child, size in parts:
            held = _lookup(guaranteed.get((i, j)), parent, child)
            needed += len(parent)
            covered += int(held.sum())
            lost = ~held
            columns = {"producer": i, "producer_tile": parent[lost], "consumer": j, "consumer_tile": child[lost]}
            rows.append(pd.DataFrame(columns | {"hazard": hazard, "reuse": reuse, "bytes": size[lost]}))
    found = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame({name: [] for name in _MISSING})
    recycled = found["reuse"].astype(bool)
    renamed = bool(policy.guard.get("renamed", False))
    missing = found[~recycled] if renamed else found
    never = (*_endless(policy, lowered), *_early(policy, graph), *_between(graph, bound))
    return Verification(
        missing.reset_index(drop=True),
        found[recycled].reset_index(drop=True),
        _excess(lowered, needs),
        never,
        needed,
        covered,
    )


def _bind(policy: Policy, graph: TileGraph, launches: Sequence[int] | None) -> list[int]:
    given = [s.launch for s in policy.stages] if launches is None else list(launches)
    if len(given) != len(policy.stages):
        raise PolicyError(f"{len(given)} launches for {len(policy.stages)} stages")
    bound: list[int] = []
    for number, (stage, launch) in enumerate(zip(policy.stages, given, strict=True)):
        if launch is None:
            raise PolicyError(f"stage {number} ({stage.name}) names no launch; say which launches the stages are")
        if not 0 <= launch < len(graph.launches):
            raise PolicyError(
                f"stage {number} ({stage.name}) is launch {launch}; the trace has {len(graph.launches)} launches"
            )
        grid = _grid(graph, launch)
        if grid != stage.grid:
            raise PolicyError(
                f"stage {number} ({stage.name}) has a grid of {_by(stage.grid)} tiles; launch {launch} has {_by(grid)}: "
                "the policy is for another shape"
            )
        bound.append(launch)
    if any(a >= b for a, b in pairwise(bound)):
        raise PolicyError(f"stages are launches {bound}; they must be in issue order")
    return bound


def _by(grid: tuple[int, ...]) -> str:
    return " x ".join(map(str, grid))


def _grid(graph: TileGraph, launch: int) -> tuple[int, int, int]:
    block = graph.trace.footprint(int(graph.launches["footprint"].iloc[launch])).block
    x, y, z = (int(n) + 1 for n in block.max(axis=0))
    return x, y, z


def tile_numbers(graph: TileGraph, launch: int) -> I64:
    """The policy's number of each tile of a launch: ``x + gx*(y + gy*z)``."""
    block = graph.trace.footprint(int(graph.launches["footprint"].iloc[launch])).block.astype(np.int64)
    gx, gy, _ = block.max(axis=0) + 1
    numbers: I64 = block[:, 0] + gx * (block[:, 1] + gy * block[:, 2])
    return numbers


_Needs = dict[tuple[int, int], list[tuple[str, bool, I64, I64, I64]]]


def _needs(graph: TileGraph, bound: list[int]) -> _Needs:
    """Dependencies between stages: (hazard, reuse, producer tile, consumer tile, bytes) in policy numbers."""
    stage_of = {launch: number for number, launch in enumerate(bound)}
    links = graph.links
    inside = links[links["producer"].isin(bound) & links["consumer"].isin(bound)]
    numbers = {launch: tile_numbers(graph, launch) for launch in bound}
    needs: _Needs = {}
    columns = (inside[name].tolist() for name in ("producer", "consumer", "hazard", "reuse", "block"))
    for producer, consumer, hazard, reuse, number in zip(*columns, strict=True):
        block: EdgeBlock = graph.blocks[number]
        parent, child, row = block.edges()
        part = (str(hazard), bool(reuse), numbers[producer][parent], numbers[consumer][child], block.bytes[row])
        needs.setdefault((stage_of[producer], stage_of[consumer]), []).append(part)
    return needs


def _direct(waits: Waits, producers: int) -> Bits:
    """``[consumer tiles, producer tiles / 8]``: bit set where the wait guarantees the tile."""
    held = waits.value == waits.posts[waits.semaphore]
    owner, _ = ragged(np.diff(waits.indptr))
    by_semaphore = np.argsort(waits.of, kind="stable")
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(waits.posts)])
    pick, place = ragged(np.where(held, waits.posts[waits.semaphore], 0))
    tile = by_semaphore[starts[waits.semaphore[pick]] + place]
    bits = np.zeros((len(waits.indptr) - 1, -(-producers // 8)), np.uint8)
    np.bitwise_or.at(bits, (owner[pick], tile >> 3), (1 << (tile & 7)).astype(np.uint8))
    return bits


def _guarantees(policy: Policy, lowered: list[Waits]) -> dict[tuple[int, int], Bits]:
    """For each pair of stages, which producer tiles have ended when a consumer tile goes on."""
    guaranteed: dict[tuple[int, int], Bits] = {}
    for stage in range(len(policy.stages)):
        for waits in (w for w in lowered if w.edge.consumer == stage):
            through = waits.edge.producer
            direct = _direct(waits, policy.stages[through].tiles)
            _merge(guaranteed, (through, stage), direct)
            for before in range(through):
                inherited = guaranteed.get((before, through))
                if inherited is not None:
                    _merge(guaranteed, (before, stage), _inherit(direct, inherited) | _by_count(waits, inherited))
    return guaranteed


def _merge(guaranteed: dict[tuple[int, int], Bits], key: tuple[int, int], bits: Bits) -> None:
    guaranteed[key] = guaranteed[key] | bits if key in guaranteed else bits


def _inherit(direct: Bits, inherited: Bits) -> Bits:
    """Whatever the awaited tiles were guaranteed; rows with equal waits are worked out once."""
    distinct, which = np.unique(direct, axis=0, return_inverse=True)
    result = np.zeros((len(distinct), inherited.shape[1]), np.uint8)
    for row, packed in enumerate(distinct):
        tiles = np.flatnonzero(np.unpackbits(packed, bitorder="little")[: len(inherited)])
        if len(tiles):
            result[row] = np.bitwise_or.reduce(inherited[tiles], axis=0)
    return result[which.reshape(-1)]


def _by_count(waits: Waits, inherited: Bits) -> Bits:
    """Waits below the full count: a tile is guaranteed if too few of those that post could have run without it."""
    bits = np.zeros((len(waits.indptr) - 1, inherited.shape[1]), np.uint8)
    posts = waits.posts[waits.semaphore]
    weak = np.flatnonzero((waits.value < posts) & (waits.value > 0))
    owner, _ = ragged(np.diff(waits.indptr))
    for semaphore, value in {(int(waits.semaphore[w]), int(waits.value[w])) for w in weak}:
        depending = np.unpackbits(inherited[waits.of == semaphore], axis=1, bitorder="little").sum(axis=0)
        sure = np.packbits(depending > waits.posts[semaphore] - value, bitorder="little")
        waiting = owner[weak[(waits.semaphore[weak] == semaphore) & (waits.value[weak] == value)]]
        bits[waiting] |= sure
    return bits


def _lookup(bits: Bits | None, parent: I64, child: I64) -> NDArray[np.bool_]:
    if bits is None:
        return np.zeros(len(parent), bool)
    held: NDArray[np.bool_] = (bits[child, parent >> 3] >> (parent & 7).astype(np.uint8) & 1).astype(bool)
    return held


def _endless(policy: Policy, lowered: list[Waits]) -> list[str]:
    said = []
    for number, waits in enumerate(lowered):
        beyond = np.flatnonzero(waits.value > waits.posts[waits.semaphore])
        if len(beyond):
            owner, _ = ragged(np.diff(waits.indptr))
            first = beyond[0]
            stage = policy.stages[waits.edge.consumer]
            said.append(
                f"edge {number}: {len(beyond)} waits never end; tile {owner[first]} of {stage.name} awaits value "
                f"{waits.value[first]} on semaphore {waits.semaphore[first]}, which {waits.posts[waits.semaphore[first]]} tiles post"
            )
    return said


def _early(policy: Policy, graph: TileGraph) -> list[str]:
    """Without a wait kernel, a consumer's blocks may be taken first; they must leave room for the producers."""
    if policy.options.wait_kernel:
        return []
    sms = graph.trace.device.sms
    said = []
    for edge in policy.edges:
        blocks, each = policy.stages[edge.consumer].tiles, policy.stages[edge.consumer].blocks_per_sm
        if each and blocks >= sms * each:
            said.append(
                f"{policy.stages[edge.consumer].name} has {blocks} blocks and {sms} SMs hold {sms * each}: without a wait kernel it can "
                f"fill the device before {policy.stages[edge.producer].name} starts, and both wait for ever"
            )
    return said


def _between(graph: TileGraph, bound: list[int]) -> list[str]:
    """A launch between the stages that depends on one and that a later one depends on would be overtaken."""
    if len(bound) < 2:
        return []
    links = graph.links[~graph.links["reuse"]]
    outside = set(range(bound[0] + 1, bound[-1])) - set(bound)
    after = links[links["producer"].isin(bound) & links["consumer"].isin(outside)]
    before = links[links["producer"].isin(outside) & links["consumer"].isin(bound)]
    return [
        f"launch {launch} lies between the stages, needs one of them and is needed by another, but is no stage: add it to the policy"
        for launch in sorted(set(after["consumer"]) & set(before["producer"]))
    ]


def _excess(lowered: list[Waits], needs: _Needs) -> pd.DataFrame:
    rows = []
    for number, waits in enumerate(lowered):
        key = waits.edge.producer, waits.edge.consumer
        width = len(waits.of)
        owner, _ = ragged(np.diff(waits.indptr))
        needed = np.unique(
            np.concatenate([np.empty(0, np.int64)] + [c * width + p for _, _, p, c, _ in needs.get(key, [])])
        )
        semaphores = len(waits.posts)
        useful = np.unique(needed // width * semaphores + waits.of[needed % width]) if len(needed) else needed
        idle = ~np.isin(owner * semaphores + waits.semaphore, useful)
        tiles = int(waits.posts[waits.semaphore].sum())
        rows.append((number, *key, len(owner), int(idle.sum()), tiles, max(0, tiles - len(needed))))
    columns = ["edge", "producer", "consumer", "waits", "idle_waits", "awaited_tiles", "excess_tiles"]
    return pd.DataFrame(rows, columns=columns)
