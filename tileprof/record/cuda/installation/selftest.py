"""A program whose accesses are known by construction, what it must be seen to do, and the comparison.

``native/selftest.cu`` has a kernel for each instruction class: plain loads and stores of 1 to 16 bytes, atomics,
cp.async, bulk copies and reductions, tensor-map loads and stores with ragged edges, in clusters, and handed out by a
counter, memset, memcpy, and nodes of a CUDA graph. `compare` holds the bytes of every tile against the formulas.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import UserError
from tileprof.record.cuda.installation import locate, recorder_build
from tileprof.trace import ATOMIC, READ, WRITE

if TYPE_CHECKING:
    from tileprof.trace import Trace

BLOCKS, THREADS = 8, 128
WIDTH, HEIGHT, BOX_WIDTH, BOX_HEIGHT = 100, 72, 32, 16
ROW_BYTES: Final = WIDTH * 4
BOXES_WIDE, BOXES_HIGH = 4, 5

Range = tuple[int, int]
TouchedRanges = dict[int, list[Range]]
"""The byte ranges that a tile touches, by mode."""

Buffers = dict[str, int]


@dataclass(frozen=True, slots=True)
class Difference:
    """A launch in which some tile was not seen to touch what it does. Counts are granules over all tiles."""

    launch: int
    kernel: str
    expected: int
    actual: int
    missing: int
    extra: int


def program(folder: Path, architecture: str) -> Path:
    """Return the self-test, compiled into ``folder``. Raises `UserError` with nvcc's words."""
    out = folder / "selftest"
    command = [
        str(locate.nvcc()),
        "-std=c++17",
        f"-arch={architecture}",
        str(recorder_build.SOURCES / "selftest.cu"),
        "-o",
        str(out),
    ]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise UserError(f"nvcc does not compile the self-test:\n{process.stderr.strip()}")
    return out


def launches(architecture: str) -> int:
    """Return how many launches of kernels with a formula the program makes on a GPU of this architecture, those in
    graphs included.

    cp.async exists from sm_80 on; bulk copies, tensor maps and clusters from sm_90 on.
    """
    major = int(architecture.removeprefix("sm_").rstrip("af")[:-1])
    return 12 + (major >= 8) + 3 * (major >= 9)


def buffers(output: str) -> Buffers:
    """Return addresses of the program's buffers by name, from its output."""
    lines = (line.split() for line in output.splitlines() if line.startswith("buffer "))
    return {words[1]: int(words[2]) for words in lines}


def compare(trace: Trace, where: Buffers) -> tuple[list[Difference], list[str]]:
    """Return launches that differ, and the kernels that were compared. Whatever no formula covers is not compared."""
    granule = int(trace.manifest["granule"])
    different, compared = [], []
    graph_node = 0
    columns = zip(*(trace.launches[c].tolist() for c in ("kernel", "graph", "tiles")), strict=True)
    for launch, (kernel, graph, tiles) in enumerate(columns):
        flip = graph >= 0 and graph_node % 2 == 1
        graph_node += graph >= 0
        formula = _formula(kernel, where, flip=flip)
        if formula is None:
            continue
        compared.append(kernel)
        recorded_granules = granules(trace, launch, granule)
        want = {
            (tile, mode, g)
            for tile in range(tiles)
            for mode, ranges in formula(tile).items()
            for low, high in ranges
            for g in range(low // granule, -(-high // granule))
        }
        if recorded_granules != want:
            difference = Difference(
                launch,
                kernel,
                len(want),
                len(recorded_granules),
                len(want - recorded_granules),
                len(recorded_granules - want),
            )
            different.append(difference)
    return different, compared


def granules(trace: Trace, launch: int, granule: int) -> set[tuple[int, int, int]]:
    """Return ``(tile, mode, granule)`` of everything that a launch touches; granules are addresses over ``granule``."""
    boxes = trace.footprint(int(trace.launches.footprint[launch])).boxes
    buffer, offset = trace.operands_of(launch)
    base = trace.buffers.base.to_numpy()[buffer] + offset
    out = set()
    for i in range(len(boxes)):
        start = base[boxes.operand[i]] + boxes.offset[i]
        for a in _steps(boxes.count_1[i], boxes.stride_1[i]):
            for b in _steps(boxes.count_0[i], boxes.stride_0[i]):
                low = int(start + a + b)
                numbers = range(low // granule, -(-(low + int(boxes.length[i])) // granule))
                out |= {(int(boxes.tile[i]), int(boxes.mode[i]), g) for g in numbers}
    return out


def _steps(count: int, stride: int) -> NDArray[np.int64]:
    return np.arange(int(count)) * int(stride)


def _formula(kernel: str, where: Buffers, *, flip: bool) -> Callable[[int], TouchedRanges] | None:
    source, target = (where["out"], where["in"]) if flip else (where["in"], where["out"])
    widths = {"unsigned char": 1, "unsigned short": 2, "unsigned int": 4, "uint2": 8, "uint4": 16}
    name = kernel.removeprefix("void ").partition("(")[0]
    if name.startswith("copy_plain<"):
        size = THREADS * widths[name[11:-1]]
        return lambda tile: {READ: [_span(source, tile, size)], WRITE: [_span(target, tile, size)]}
    formulas: dict[str, Callable[[int], TouchedRanges]] = {
        "read_strided": lambda tile: {READ: [_word(source + (t * BLOCKS + tile) * 64) for t in range(THREADS)]},
        "update_returning": lambda tile: {ATOMIC: [_word(where["counters"] + tile % 4 * 64)]},
        "update_silent": lambda tile: {ATOMIC: [_word(where["counters"] + tile % 4 * 64)]},
        "copy_async": lambda tile: {
            READ: [_span(source, tile, THREADS * 16)],
            WRITE: [_span(target, tile, THREADS * 4)],
        },
        "copy_bulk": lambda tile: {
            READ: [_span(source, tile, 1024)],
            WRITE: [_span(target, tile, 1024)],
            ATOMIC: [_span(where["counters"] + 1024, tile, 64)],
        },
        "copy_tensor": lambda tile: _copied_ranges([tile], where),
        "copy_tensor_clusters": lambda tile: _copied_ranges([2 * tile, 2 * tile + 1], where),
    }
    return formulas.get(name)


def _copied_ranges(boxes: list[int], where: Buffers) -> TouchedRanges:
    return {
        READ: [r for box in boxes for r in _box(where["from"], box)],
        WRITE: [r for box in boxes for r in _box(where["to"], box)],
    }


def _box(base: int, number: int) -> Iterator[Range]:
    x, y = number % BOXES_WIDE * BOX_WIDTH, number // BOXES_WIDE * BOX_HEIGHT
    for row in range(y, min(y + BOX_HEIGHT, HEIGHT)):
        start = base + row * ROW_BYTES
        yield start + x * 4, start + min(x + BOX_WIDTH, WIDTH) * 4


def _span(base: int, tile: int, size: int) -> Range:
    return base + tile * size, base + (tile + 1) * size


def _word(address: int) -> Range:
    return address, address + 4
