"""The policies that cuSync ships, for the two grids of a user's pair: what they would wait for, so that it can be
checked.

Jangda et al., "A Framework for Fine-Grained Synchronization of Dependent GPU Kernels", CGO 2024, section III; the
repository (github.com/parasailteam/cusync, ``policies.h``) where the two differ. Its kernels see a launch as rows
(tiles of the result's first dimension: tokens, pixels) and columns (features, channels), and its product kernels wait
in their main loop: a consumer tile of row r names the tiles (r, c) for every column c that its loop reaches, and so
needs no tile of another row.

=============  ==========================================  ===========================================================
kind           semaphore of producer tile (r, c)           a consumer tile (r, c) awaits
=============  ==========================================  ===========================================================
tilesync       its own                                     every tile of row r, one by one
rowsync        one per row                                 row r, all columns
stridedsync    (r, c mod stride): paper, section III-C     (r, c mod stride), which the tiles of Q, K and V share
conv2dtile     its own                                     tile (r, k / (R*S)) for every k tile of the implicit product:
                                                           every tile of row r
=============  ==========================================  ===========================================================

For a product of matrices that is right: row r of the result needs row r of the input. For a convolution of R x S > 1 x
1 it is not. Rows are runs of pixels, and the pixels of one row need the halo around them, which other rows hold; no
shipped kind waits for it. On an idle device neighbours are dispatched together and the omission rarely shows; nothing
guarantees that it does not. `tileprof verify cusync:conv2dtile TRACE --pair P:C --fuse` names every tile that is
missing.

Found on the examples, as recorded by the model for an H200 in channels-last layout, activations fused into the producer
(``--fuse``). Each line is a pair of 3 x 3 convolutions of equal shape; the times of the last columns are modelled,
under cuSync's policy and under one that waits for the halo too::

    network, pair                     batch  tiles        missing under conv2dtile, rowsync   cuSync's  halo-correct
    ResNet-38 stage1.0.conv1 -> conv2     1  98              386 of    484 dependencies        5.58 us      5.58 us
    VGG-19    stage1.0 -> stage1.2        1  98              386 of    484                     4.34         4.34
    VGG-19    stage2.0 -> stage2.2        1  25 x 4          768 of  1,268                     5.13         5.13
    ResNet-38 stage3.0.conv1 -> conv2     1  4 x 4 x 8     6,144 of 10,368                     4.82         4.82
    ResNet-38 stage4.0.conv1 -> conv2     1  1 x 8 x 16        0 of 16,512                     7.88         7.88
    ResNet-38 stage1.0.conv1 -> conv2    16  392             768 of  1,552                    25.94        25.94
    VGG-19    stage2.0 -> stage2.2       16  98              192 of    388                    21.59        21.59
    ResNet-38 stage4.0.conv1 -> conv2    16  7 x 4 x 4     3,072 of  4,976                    24.73        24.73

Where one tile holds all pixels of an image (49 at stage 4, batch 1) there is no halo to omit. Waiting for the halo
costs less than the 0.01 us that the table resolves: neighbours end together.
``tests/integration/commands/test_verify_halo.py`` derives the missing tiles of the first two lines from the geometry
alone, with ``--tile conv=32x64x32,split=1``; the tiles are those of the model's rule when the table was made.

The omission makes wrong numbers: executed tile by tile on the CPU with the middle tile of the first convolution held
back (``tests/benchmarks/policies/bench_halo.py``; both 56 x 56 pairs in fp16, 49 tiles of 64 pixels), 114 of 3,136
pixels are wrong under each of ``conv2dtile``, ``rowsync`` and ``tilesync``, and none under the synthesised policy. On
an H200, under cuSync itself, one tile that begins 10 us late makes the result wrong in 99 and 100 of 100 rounds
(Conv2DTileSync, RowSync), 1 us in none; with the halo awaited it never is (``tests/gpu/results/halo.json``).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final

from tileprof.errors import UserError
from tileprof.policy.format import Edge, Policy, Range, Semaphores, Stage
from tileprof.policy.format.expression import parse
from tileprof.policy.synthesis.stage_choice import stage_of
from tileprof.policy.verification.verifier import verify

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph

KINDS: Final = ("tilesync", "rowsync", "stridedsync", "conv2dtile")
PREFIX: Final = "cusync:"

_TILE = ("x", "y", "z")
_FORMAT_KIND = {"tilesync": "tile", "rowsync": "row", "stridedsync": "strided", "conv2dtile": "conv2d_tile"}


@dataclass(frozen=True, slots=True)
class Shipped:
    """A kind; the stride of ``stridedsync`` (0: a third of the columns, as for Q, K and V side by side); and which axes
    are the rows of the producer's and of the consumer's grid (``"xy"``: x of the one, y of the other; empty: see
    `shipped_policy`).
    """

    kind: str
    stride: int = 0
    rows: str = ""

    @classmethod
    def parse(cls, text: str, rows: str = "") -> Shipped:
        """Parse ``cusync:KIND`` or ``cusync:stridedsync:STRIDE``; raises `UserError`."""
        kind, marker, stride = text.removeprefix(PREFIX).lower().partition(":")
        if kind not in KINDS or (marker and kind != "stridedsync"):
            raise UserError(f"{text!r} is not a policy of cuSync; there are {', '.join(PREFIX + k for k in KINDS)}")
        if marker and not (stride.isdecimal() and len(stride) < 10 and int(stride) > 0):
            raise UserError(f"{text!r}: the stride is a number of tiles from 1, for example {PREFIX}stridedsync:8")
        if rows and (len(rows) != 2 or set(rows) - set("xy")):
            raise UserError(
                f"--rows {rows}: name the axis of the producer's grid and that of the consumer's, for example --rows xy"
            )
        return cls(kind, int(stride) if marker else 0, rows)

    def __str__(self) -> str:
        return f"{PREFIX}{self.kind}" + (f":{self.stride}" if self.stride else "")


def shipped_policy(shipped: Shipped, graph: TileGraph, producer: int, consumer: int) -> Policy:
    """Return the policy of this kind for two launches.

    Which axis of each grid is the row is for the kernels to say, and a trace does not. Unless it is given, a
    convolution has its pixels along x, as implicit products of CUTLASS and of the model recorder do; for others axes of
    one row are avoided, equal numbers of rows preferred, and of what is left the choice taken that leaves the fewest
    dependencies uncovered. Raises `UserError` where the kind does not fit the grids.
    """
    stages = stage_of(graph, producer), stage_of(graph, consumer)
    candidates: list[tuple[int, bool, int, Policy]] = []
    for axes in product(*(_rows(shipped.rows[n : n + 1], stage) for n, stage in enumerate(stages))):
        policy = _policy(shipped, stages, (axes[0], axes[1]))
        if policy is not None:
            rows = [stage.grid[axis] for stage, axis in zip(stages, axes, strict=True)]
            missing = len(verify(policy, graph, [producer, consumer]).missing)
            candidates.append((rows.count(1), rows[0] != rows[1], missing, policy))
    if not candidates:
        raise UserError(_no_stride(shipped, stages[0], producer))
    return min(candidates, key=lambda t: t[:3])[3]


def _no_stride(shipped: Shipped, stage: Stage, producer: int) -> str:
    grid = " x ".join(map(str, stage.grid))
    columns = {stage.grid[1 - row] for row in _rows(shipped.rows[:1], stage)}
    fitting = [stride for stride in range(2, max(columns) + 1) if any(count % stride == 0 for count in columns)]
    what = f"{shipped} does not fit launch {producer}: a stride must divide the columns of its grid {grid}"
    if not fitting:
        return f"{what}, and there is one column; {PREFIX}rowsync is the same there"
    return f"{what}; name one, for example {PREFIX}stridedsync:{fitting[0]}"


def _rows(text: str, stage: Stage) -> tuple[int, ...]:
    if text:
        return ("xy".index(text),)
    return (0,) if "conv" in stage.op else (0, 1)


def _policy(shipped: Shipped, stages: tuple[Stage, Stage], axes: tuple[int, int]) -> Policy | None:
    """``axes``: which axis is the row, of the producer and of the consumer."""
    row, column = axes[0], 1 - axes[0]
    rows, columns, slices = stages[0].grid[row], stages[0].grid[column], stages[0].grid[2]
    ours, theirs = "xy"[axes[1]], "xy"[1 - axes[1]]
    theirs_rows = stages[1].grid[axes[1]]
    at = ours if theirs_rows == rows else f"{rows}*{ours} // {theirs_rows}"
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
    note = f"{shipped}: rows are {'xy'[axes[0]]} of the producer's grid and {'xy'[axes[1]]} of the consumer's"
    taller = (
        "; a row of the consumer spans several of the producer, and waits for that of its first element"
        if theirs_rows < rows
        else ""
    )
    return Policy(
        stages,
        (Semaphores(0, (sizes[0], sizes[1], sizes[2]), (u, v, w)),),
        (Edge(0, 1, ("RAW",), _FORMAT_KIND[shipped.kind], 0, (a, b, c), parse(str(posts), _TILE)),),
        guard={"renamed": True},
        notes=(note + taller,),
    )
