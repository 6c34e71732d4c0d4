"""Programs of many dependent kernels after those that BlockMaestro was shown on (Abdolrashidi et al., ISCA 2021), as
traces.

From the paper: which programs (of Rodinia, PolyBench, SHOC and Tango) and how many kernels each launches. From the
programs: grids for the usual inputs, and which blocks read what which blocks wrote. Assumed: how long a block takes,
from how many steps it makes one after the other on a GPU of about 1.4 GHz.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

import numpy as np

from tileprof.analysis.workloads.task_graph import Program
from tileprof.devices import get
from tileprof.errors import UserError

US = 1e3


def three_mm(program: Program) -> None:
    """PolyBench 3MM, 512 by 512: two products that do not need each other and their product, 3 kernels of 1,024 blocks
    of 512 steps.
    """
    a, b, c, d = (program.buffer(1024, "input") for _ in range(4))
    e, f = (program.whole(pair, 1024, 20 * US) for pair in ([a, b], [c, d]))
    program.whole([e, f], 1024, 20 * US)


def two_sweeps(program: Program) -> None:
    """PolyBench BICG and MVT, 4,096 by 4,096: a matrix times two vectors, 2 kernels of 16 blocks of 4,096 steps that do
    not need each other.
    """
    matrix, vectors = program.buffer(256, "input"), program.buffer(32, "input")
    for _ in range(2):
        program.whole([matrix, vectors], 16, 290 * US)


def alexnet(program: Program) -> None:
    """Tango's AlexNet: 22 layers, each of which reads all of the one before; convolutions of many blocks first, then
    small ones.
    """
    data = program.buffer(256, "input")
    for tiles, us in (
        ((1152, 40), (288, 5), (288, 5)) * 2 + ((768, 30), (384, 30), (384, 30)) * 4 + ((256, 60), (128, 40)) * 2
    ):
        data = program.whole([data], tiles, us * US)


def fdtd_2d(program: Program) -> None:
    """PolyBench FDTD-2D, 512 by 512: 8 steps of two fields that need the third, and the third that needs both, 24
    kernels of 1,024 blocks.
    """
    ex, ey, hz = (program.buffer(1024, "input") for _ in range(3))
    for _ in range(8):
        ey, ex = program.near([ey, hz], [-16], 1024, 2 * US), program.near([ex, hz], [-1], 1024, 2 * US)
        hz = program.near([hz, ex, ey], [1, 16], 1024, 2 * US)


def fft(program: Program) -> None:
    """SHOC's FFT: 60 kernels of 256 blocks, each of which reads what a block of the kernel before has written."""
    data = program.buffer(256, "input")
    for _ in range(60):
        data = program.same([data], 256, 6 * US)


def gaussian(program: Program) -> None:
    """Rodinia's Gaussian elimination, 256 by 256: 255 times a kernel of one block and one of those left, 510
    kernels.
    """
    matrix = program.buffer(256, "input")
    for k in range(255):
        side = -(-(256 - k) // 16)
        factors = program.whole([matrix], 1, 1.5 * US)
        matrix = program.whole([factors, matrix], side * side, 1.5 * US)


def gram_schmidt(program: Program) -> None:
    """PolyBench GRAMSCHM, 64 columns: for each its norm, itself normalised, and what is left of the others, 192 kernels
    of few blocks.
    """
    matrix = program.buffer(64, "input")
    for _ in range(64):
        norm = program.whole([matrix], 1, 2 * US)
        column = program.whole([norm, matrix], 8, 1.5 * US)
        matrix = program.whole([column, matrix], 64, 3 * US)


def hotspot(program: Program) -> None:
    """Rodinia's HotSpot, 512 by 512: 10 kernels of 43 by 43 blocks that need their neighbours' borders."""
    heat = program.buffer(43 * 43, "input")
    for _ in range(10):
        heat = program.near([heat], [-44, -43, -42, -1, 1, 42, 43, 44], 43 * 43, 6 * US)


def lud(program: Program) -> None:
    """Rodinia's LU decomposition, 256 by 256 in blocks of 16: 15 times diagonal, perimeter and interior, and the last
    diagonal, 46 kernels.
    """
    inner, side = program.buffer(256, "input"), 16
    for k in range(15, -1, -1):
        corner = (inner, np.zeros(1, np.int64), np.zeros(1, np.int64))
        diagonal = program.cells_of([corner], 1, 8 * US)
        if not k:
            return
        rows, columns = np.arange(1, k + 1), np.arange(1, k + 1) * side
        both = np.arange(2 * k)
        perimeter = program.cells_of(
            [(diagonal, both, 0 * both), (inner, both, np.concatenate([rows, columns]))], 2 * k, 10 * US
        )
        tile = np.arange(k * k)
        y, x = tile // k, tile % k
        edges = (perimeter, np.concatenate([tile, tile]), np.concatenate([x, k + y]))
        inner = program.cells_of([edges, (inner, tile, (y + 1) * side + x + 1)], k * k, 4 * US)
        side = k


def needleman_wunsch(program: Program) -> None:
    """Rodinia's Needleman-Wunsch, 2,048 by 2,048 in blocks of 16: 255 diagonals of up to 128 blocks, each after its
    upper and left neighbour.
    """
    before = program.buffer(1, "input")
    for number in range(255):
        before = program.diagonal(before, number, 128, 8 * US)


def pathfinder(program: Program) -> None:
    """Rodinia's PathFinder: 5 kernels of 463 blocks that need their neighbours' borders."""
    cost = program.buffer(463, "input")
    for _ in range(5):
        cost = program.near([cost], [-1, 1], 463, 10 * US)


APPLICATIONS: dict[str, Callable[[Program], None]] = {
    "3mm": three_mm, "alexnet": alexnet, "bicg": two_sweeps, "fdtd-2d": fdtd_2d, "fft": fft, "gaussian": gaussian,
    "gram-schmidt": gram_schmidt, "hotspot": hotspot, "lud": lud, "mvt": two_sweeps,
    "needleman-wunsch": needleman_wunsch, "pathfinder": pathfinder,
}  # fmt: skip


def application(path: str | PathLike[str], name: str, *, device: str = "V100", force: bool = False) -> Path:
    """Write the trace of one of `APPLICATIONS`; there is nothing random in them. Raises UserError for an unknown
    name.
    """
    if name not in APPLICATIONS:
        raise UserError(f"there is no application {name!r}; there are {', '.join(APPLICATIONS)}")
    program = Program(path, get(device), name, force)
    APPLICATIONS[name](program)
    return program.close()
