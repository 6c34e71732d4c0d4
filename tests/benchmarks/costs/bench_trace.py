"""Measure the trace format: ``python tests/benchmarks/costs/bench_trace.py [tiles]`` writes, loads and checks a trace.

Two shapes of program: matrix products (regular boxes, few patterns) and gathers (every tile's boxes differ, the
worst case for counting distinct bytes). Prints a table; the folder is removed afterwards.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tileprof import devices
from tileprof.trace import READ, WRITE, Boxes, Footprint, Launch, TraceWriter, load, validate

_FOOTPRINTS = 50
_COLUMN_BYTES = 57  # a box as plain columns: 2 + 6 * 8 and so on, see schema.ACCESSES


def matrix_product(tiles: int, seed: int) -> Footprint:
    """128 x 128 tiles of a product, operands row by row: 3 boxes per tile."""
    columns = int(np.sqrt(tiles))
    k_bytes = 2 * (1024 + 64 * seed)
    row, column = np.divmod(np.arange(tiles), columns)
    n_bytes = 2 * 128 * columns
    tile = np.tile(np.arange(tiles), 3)
    a, b, c = row * 128 * k_bytes, column * 256, row * 128 * n_bytes + column * 256
    boxes = Boxes.of(
        tile=tile,
        operand=np.repeat([0, 1, 2], tiles),
        mode=np.repeat([READ, READ, WRITE], tiles),
        offset=np.concatenate([a, b, c]),
        length=np.repeat([k_bytes, 256, 256], tiles),
        count_0=np.repeat([128, k_bytes // 2, 128], tiles),
        stride_0=np.repeat([k_bytes, n_bytes, n_bytes], tiles),
        first=0.0,
        last=1.0,
    )
    return Footprint(np.stack([column, row, np.zeros_like(row)], axis=1).astype(np.int32), boxes)


def gather(tiles: int, seed: int) -> Footprint:
    """Two random rows of a table a tile, and one row written."""
    random = np.random.default_rng(seed)
    block = np.zeros((tiles, 3), np.int32)
    block[:, 0] = np.arange(tiles)
    boxes = Boxes.of(
        tile=np.repeat(np.arange(tiles), 3),
        operand=np.tile([0, 0, 1], tiles),
        mode=np.tile([READ, READ, WRITE], tiles),
        offset=np.where(np.tile([True, True, False], tiles), random.integers(0, 1 << 20, 3 * tiles) * 1000, 0),
        length=1536,
    )
    return Footprint(block, boxes)


def measurements(folder: Path, shape: Callable[[int, int], Footprint], tiles: int) -> list[str]:
    """One row of the table: rates of writing, loading and checking a trace of one shape."""
    footprints = [shape(tiles // _FOOTPRINTS, seed) for seed in range(_FOOTPRINTS)]
    boxes = sum(len(f.boxes) for f in footprints)
    begin = time.perf_counter()
    writer = TraceWriter(folder / shape.__name__, recorder="benchmark", command=[], device=devices.get("H200"))
    buffer = writer.add_buffer(base=0, bytes=1 << 40, kind="unknown")
    for footprint in footprints:
        number = writer.add_footprint(footprint)
        bound = ((buffer, 0),) * 3
        grid = (footprint.tiles, 1, 1)
        writer.add_launch(
            Launch(number, bound, shape.__name__, grid, (128, 1, 1), 1000, timing="modelled", coverage="exact")
        )
    path = writer.close()
    write_end = time.perf_counter()
    trace = load(path)
    for number in range(_FOOTPRINTS):
        trace.footprint(number)
    load_end = time.perf_counter()
    complaints = validate(trace)
    check_end = time.perf_counter()
    assert not complaints, complaints
    size = sum(p.stat().st_size for p in path.rglob("*.parquet"))
    seconds = (write_end - begin, load_end - write_end, check_end - load_end)
    return [
        shape.__name__,
        f"{boxes:,}",
        *(f"{s:.2f} s" for s in seconds),
        f"{boxes / seconds[0] / 1e6:.2f} M/s",
        f"{size / 1e6:.1f} MB",
        f"{boxes * _COLUMN_BYTES / size:.0f}x",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tiles", nargs="?", type=int, default=1_000_000)
    tiles = parser.parse_args().tiles
    folder = Path(tempfile.mkdtemp())
    try:
        rows = [measurements(folder, shape, tiles) for shape in (matrix_product, gather)]
    finally:
        shutil.rmtree(folder)
    header = ["shape", "boxes", "write", "load", "validate", "boxes written", "on disk", "smaller than raw"]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print(
        f"{tiles:,} tiles in {_FOOTPRINTS} footprints; peak memory "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB"
    )


if __name__ == "__main__":
    main()
