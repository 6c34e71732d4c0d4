"""Tile shapes that the user dictates instead of the rule, on the command line or from Python.

One override is one word (``--tile`` takes several)::

    gemm=128x256x64                                every matrix product: tile m x n x k
    gemm@1024x6144x12288=256x256x32,split=2        only the product with this m, n, k; * stands for any size
    conv=64x128x32,stages=2                        pixels x output channels x depth
    attention=128x64                               query rows x key rows

``split`` is split-k, ``stages`` the depth of the shared-memory pipeline, ``threads`` and ``registers`` (a thread) what
occupancy follows from; what is not given follows the rule (`tileprof.record.model.tiles.products.gemm_tile_rule`).
The most specific override wins, then the last one. Overrides are constant while a program is recorded:
the recorder models calls of equal layout once.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tileprof.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FAMILIES = {"gemm": 3, "conv": 3, "attention": 2}
"""Families of kernels whose tiles can be dictated, with the number of sizes of a tile."""

_CORE = 8
"""Rows and columns of the smallest product that tensor cores compute; tiles of libraries are multiples in all sizes."""

_SYNTAX = re.compile(r"(\w+)(?:@([\dx*]+))?=(\d+(?:x\d+)*)((?:,\w+=\d+)*)")


@dataclass(frozen=True, slots=True)
class Override:
    """A tile shape for one family; None stands for "by the rule", in ``problem`` for "any size"."""

    family: str
    tile: tuple[int, ...]
    problem: tuple[int | None, ...] = ()
    split: int | None = None
    stages: int | None = None
    threads: int | None = None
    registers: int | None = None

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise UserError(f"no tiles to set for {self.family!r}; families: {', '.join(FAMILIES)}")
        if len(self.tile) != FAMILIES[self.family]:
            raise UserError(
                f"a tile of {self.family} has {FAMILIES[self.family]} sizes, not {len(self.tile)}: {self.tile}"
            )
        values = (*self.tile, self.split, self.stages, self.threads, self.registers)
        if any(value is not None and value < 1 for value in values):
            raise UserError("sizes, split, stages, threads and registers of a tile are 1 or more")

    def fits(self, problem: tuple[int, ...]) -> bool:
        return not self.problem or (
            len(self.problem) == len(problem)
            and all(want in (None, have) for want, have in zip(self.problem, problem, strict=True))
        )


def parse(text: str) -> Override:
    """Return an override from its word. Raises UserError when it is not one."""
    match = _SYNTAX.fullmatch(text.strip())
    if match is None:
        raise UserError(
            f"cannot read the tile {text!r}; write e.g. gemm=128x128x64 or gemm@*x6144x12288=256x256x32,split=2"
        )
    family, problem, tile, options = match.groups()
    extra = {key: int(value) for key, value in (o.split("=") for o in options.split(",") if o)}
    unknown = extra.keys() - {"split", "stages", "threads", "registers"}
    if unknown:
        raise UserError(
            f"unknown in the tile {text!r}: {', '.join(sorted(unknown))}; known: split, stages, threads, registers"
        )
    sizes = tuple(None if size == "*" else int(size) for size in problem.split("x")) if problem else ()
    try:
        return Override(family, tuple(map(int, tile.split("x"))), sizes, **extra)
    except UserError as error:
        raise UserError(f"the tile {text!r}: {error}") from None


def note(words: Sequence[str]) -> str:
    """Return what a trace says of tiles that were dictated, and of those that cannot be a library's."""
    uneven = [word for word in words if any(size % _CORE for size in parse(word).tile)]
    text = f"Tile shapes are those of --tile: {' '.join(words)}."
    if not uneven:
        return text
    return (
        f"{text} Tensor cores compute in multiples of {_CORE}: no library is known to have "
        f"{' '.join(dict.fromkeys(uneven))}, so its results come from the model alone."
    )


_active: list[Override] = []


@contextmanager
def override(*tiles: Override | str) -> Iterator[None]:
    """Dictate tiles within the ``with`` block; inner blocks win over outer ones."""
    added = [parse(o) if isinstance(o, str) else o for o in tiles]
    _active.extend(added)
    try:
        yield
    finally:
        del _active[len(_active) - len(added) :]


def dictated(family: str, problem: tuple[int, ...]) -> Override | None:
    """Return the override in force for a problem of these sizes, or None."""
    fitting = [o for o in _active if o.family == family and o.fits(problem)]
    return (
        max(enumerate(fitting), key=lambda e: (sum(s is not None for s in e[1].problem), e[0]))[1] if fitting else None
    )
