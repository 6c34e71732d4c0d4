"""The policies that cuSync ships, for the two grids of a user's pair: what they would wait for, so that it can be checked.

Jangda et al., "A Framework for Fine-Grained Synchronization of Dependent GPU Kernels", CGO 2024, section III; the repository
(github.com/parasailteam/cusync, ``policies.h``) where the two differ. Its kernels see a launch as rows (tiles of the result's
first dimension: tokens, pixels) and columns (features, channels), and its product kernels wait in their main loop: a
consumer tile of row r names the tiles (r, c) for every column c that its loop reaches, and so needs no tile of another row.

=============  ==========================================  ===========================================================
kind           semaphore of producer tile (r, c)           a consumer tile (r, c) awaits
=============  ==========================================  ===========================================================
tilesync       its own                                     every tile of row r, one by one
rowsync        one a row                                   row r, all columns
stridedsync    (r, c mod stride): paper, section III-C     (r, c mod stride), which the tiles of Q, K and V share
conv2dtile     its own                                     tile (r, k / (R*S)) for every k tile of the implicit product:
                                                           every tile of row r
=============  ==========================================  ===========================================================

For a product of matrices that is right: row r of the result needs row r of the input. For a convolution of R x S > 1 x 1 it is
not. Rows are runs of pixels, and the pixels of one row need the halo around them, which other rows hold; no shipped kind waits
for it. On an idle device neighbours are dispatched together and the omission rarely shows; nothing guarantees that it
does not. `tileprof verify cusync:conv2dtile TRACE --pair P:C --fuse` names every tile that is missing.

Measured on the examples, recorded with ``--batch 1 --channels-last`` on the H200 model (``tests/unit/policy/test_shipped_halo.py``
holds the facts): see `tileprof.policy.synthesise` for the policy that waits for the halo, and the prediction that ``verify`` prints for
what it costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final

from tileprof.errors import UserError
from tileprof.policy.expression import parse
from tileprof.policy.format import Edge, Policy, Range, Semaphores, Stage
from tileprof.policy.stages import stage_of
from tileprof.policy.verify import verify

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph

KINDS: Final = ("tilesync", "rowsync", "stridedsync", "conv2dtile")
PREFIX: Final = "cusync:"

_TILE = ("x", "y", "z")
_FORMAT_KIND = {"tilesync": "tile", "rowsync": "row", "stridedsync": "strided", "conv2dtile": "conv2d_tile"}


@dataclass(frozen=True, slots=True)
class Shipped:
    """A kind, and the stride of ``stridedsync`` (0: a third of the columns, as for Q, K and V side by side)."""

    kind: str
    stride: int = 0

    @classmethod
    def parse(cls, text: str) -> Shipped:
        """``cusync:KIND`` or ``cusync:stridedsync:STRIDE``; raises `UserError`."""
        kind, marker, stride = text.removeprefix(PREFIX).lower().partition(":")
        if kind not in KINDS or (marker and kind != "stridedsync"):
            raise UserError(f"{text!r} is no policy of cuSync's; there are {', '.join(PREFIX + k for k in KINDS)}")
        if marker and not (stride.isdecimal() and 0 < int(stride) < 2**31):
            raise UserError(f"{text!r}: the stride is a number of tiles from 1, for example {PREFIX}stridedsync:8")
        return cls(kind, int(stride) if marker else 0)

    def __str__(self) -> str:
        return f"{PREFIX}{self.kind}" + (f":{self.stride}" if self.stride else "")


def shipped_policy(shipped: Shipped, graph: TileGraph, producer: int, consumer: int) -> Policy:
    """The policy of this kind for two launches.

    Which axis of each grid is the row is for the kernels to say, and a trace does not: among axes of as many rows (more than one)
    in both grids, the choice that leaves the fewest dependencies uncovered is taken. Raises `UserError` where the kind does
    not fit the grids.
    """
    stages = stage_of(graph, producer), stage_of(graph, consumer)
    tried: list[tuple[bool, int, Policy]] = []
    for axes in product((0, 1), repeat=2):
        policy = _policy(shipped, stages, axes)
        if policy is not None:
            rows = [stage.grid[axis] for stage, axis in zip(stages, axes, strict=True)]
            missing = len(verify(policy, graph, [producer, consumer]).missing)
            tried.append((rows[0] != rows[1] or rows[0] == 1, missing, policy))
    if not tried:
        raise UserError(
            f"{shipped} does not fit launch {producer}: a stride must divide the columns of its grid "
            f"{' x '.join(map(str, stages[0].grid))}; name one, for example {PREFIX}stridedsync:2"
        )
    return min(tried, key=lambda t: t[:2])[2]


def _policy(shipped: Shipped, stages: tuple[Stage, Stage], axes: tuple[int, int]) -> Policy | None:
    """``axes``: which axis is the row, of the producer and of the consumer."""
    grid = stages[0].grid
    row, column = axes[0], 1 - axes[0]
    rows, columns, slices = grid[row], grid[column], grid[2]
    ours, theirs = (("x", "y")[axes[1]], ("x", "y")[1 - axes[1]])
    at = ours if stages[1].grid[axes[1]] == rows else f"{rows}*{ours} // {stages[1].grid[axes[1]]}"
    match shipped.kind:
        case "rowsync":
            width, of, awaited, posts = 1, "0", "0", columns * slices
        case "stridedsync":
            stride = shipped.stride or (columns // 3 if columns % 3 == 0 else 0)
            if not stride or columns % stride:
                return None
            width, of, awaited = stride, f"{_TILE[column]} % {stride}", f"{theirs} % {stride}"
            posts = columns // stride * slices
        case _:
            width, of, awaited, posts = columns, _TILE[column], f"0..{columns - 1}", slices
    texts, waits, sizes = ["0", "0", "0"], ["0", "0", "0"], [1, 1, 1]
    texts[row], waits[row], sizes[row] = _TILE[row], at, rows
    texts[column], waits[column], sizes[column] = of, awaited, width
    u, v, w = (parse(text, _TILE) for text in texts)
    a, b, c = (Range.parse(text) for text in waits)
    value = parse(str(posts), _TILE)
    return Policy(
        stages,
        (Semaphores(0, (sizes[0], sizes[1], sizes[2]), (u, v, w)),),
        (Edge(0, 1, ("RAW",), _FORMAT_KIND[shipped.kind], 0, (a, b, c), value),),
        guard={"renamed": True},
        notes=(f"{shipped}: rows are {'xy'[axes[0]]} of the producer's grid and {'xy'[axes[1]]} of the consumer's",),
    )
