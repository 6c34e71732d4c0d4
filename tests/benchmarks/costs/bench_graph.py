"""Building the tile graph of synthetic traces with ten edges per tile: time, memory, and how they grow.

Each launch writes a buffer of its own and reads the one before: every tile reads the blocks of ten tiles.

* deep: launches of 1000 tiles; neighbouring blocks, so that intervals overlap; more tiles are more launches.
* wide: ten launches after the first; scattered blocks, other ones in each launch, so that nothing is shared and
  nothing is sorted; more tiles are larger launches.

Each size is measured in a process of its own; compiled code is warm.
"""

import argparse
import json
import math
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import folder_bytes, header, run, table

PARENTS = 10
BLOCK_BYTES = 256
SHAPES = {"deep": lambda tiles: (tiles // 1000 + 1, 1000), "wide": lambda tiles: (10 + 1, tiles // 10)}
"""Launches and tiles per launch; the first launch reads nothing and comes on top of the tiles asked for."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", type=int, nargs="+", default=[10_000, 31_623, 100_000, 316_228, 1_000_000])
    parser.add_argument("--one", choices=SHAPES, help="measure one size in this process and print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.tiles[0])))
        return
    header(f"build_graph on synthetic traces, {PARENTS} edges per tile")
    for shape in SHAPES:
        me = (sys.executable, __file__, "--one", shape, "--tiles")
        results = [json.loads(run(*me, str(tiles)).stdout) for tiles in options.tiles]
        print(f"{shape}\n")
        table(
            ("tiles", "edges", "trace", "build_graph", "peak memory", "exponent", "ns per n log2 n"),
            [_row(result, before) for before, result in zip([None, *results], results, strict=False)],
        )
    print("exponent: log of the growth of time over log of the growth of edges; n log n is a constant last column.")


def _row(result, before):
    edges, seconds = result["edges"], result["seconds"]
    exponent = ""
    if before:
        exponent = f"{math.log(seconds / before['seconds']) / math.log(edges / before['edges']):.2f}"
    return (
        f"{result['tiles']:,}",
        f"{edges:,}",
        f"{result['trace_bytes'] / 1e6:.2f} MB",
        f"{seconds:.2f} s",
        f"{result['peak_bytes'] / 1e9:.2f} GB",
        exponent,
        f"{seconds * 1e9 / (edges * math.log2(edges)):.1f}",
    )


def measure(shape, tiles):
    """Write a trace of about ``tiles`` tiles, build its graph, and check the number of its edges."""
    from tileprof.analysis import build_graph
    from tileprof.trace import load

    launches, width = SHAPES[shape](tiles)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "warm.tileprof", shape, 3, 100)
        build_graph(load(Path(folder) / "warm.tileprof"))
        path = Path(folder) / "synthetic.tileprof"
        # In a child of its own: the peak of this process is then the graph's, not the generator's.
        generate = f"import bench_graph as b; b.write({str(path)!r}, {shape!r}, {launches}, {width})"
        run(sys.executable, "-c", f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); {generate}")
        begin = time.perf_counter()
        graph = build_graph(load(path))
        seconds = time.perf_counter() - begin
        edges = int(graph.links.edges.sum())
        expected = (launches - 1) * width * PARENTS
        if edges != expected:
            sys.exit(f"{shape}, {tiles} tiles: expected {expected} edges, the graph has {edges}")
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        trace_bytes = folder_bytes(path)
    sizes = {"tiles": launches * width, "edges": edges, "trace_bytes": trace_bytes}
    return sizes | {"seconds": seconds, "peak_bytes": peak_bytes}


def write(path, shape, launches, width):
    """Write the trace: ``launches`` launches of ``width`` tiles."""
    from tileprof import devices
    from tileprof.trace import TraceWriter
    from tileprof.trace.footprint import Launch

    random = np.random.default_rng(0)
    writer = TraceWriter(Path(path), recorder="synthetic", command=["bench_graph"], device=devices.get("H200"))
    buffers = [
        writer.add_buffer(base=(1 + i) << 32, bytes=width * BLOCK_BYTES, kind="activation") for i in range(launches)
    ]
    for number in range(launches):
        parents = _parents(shape, width, number, random) if number else np.empty((width, 0), np.int64)
        operands = ((buffers[number], 0), *([(buffers[number - 1], 0)] if number else []))
        writer.add_launch(
            Launch(
                footprint=writer.add_footprint(_footprint(parents)),
                operands=operands,
                kernel=f"synthetic_{shape}",
                grid=(width, 1, 1),
                block=(128, 1, 1),
                duration_ns=1000,
                timing="modelled",
                coverage="exact",
                begin_ns=number * 1000,
            )
        )
    writer.close()


def _parents(shape, width, number, random):
    """Ten distinct tiles of the launch before, for each tile: ``[width, 10]``."""
    steps = np.arange(PARENTS)
    if shape == "deep":
        # Shifted by a distance of its own in every launch, so that no two launches have the same footprint.
        return (np.arange(width)[:, None] + number + steps) % width
    start = random.integers(width, size=(width, 1))
    stride = random.integers(1, width // PARENTS, size=(width, 1))
    return (start + stride * steps) % width


def _footprint(parents):
    from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint

    width, count = parents.shape
    tile = np.arange(width)
    block = np.zeros((width, 3), np.int32)
    block[:, 0] = tile
    writes = Boxes.of(tile=tile, operand=0, mode=WRITE, offset=tile * BLOCK_BYTES, length=BLOCK_BYTES)
    offset = (np.sort(parents, axis=1) * BLOCK_BYTES).ravel()
    reads = Boxes.of(tile=np.repeat(tile, count), operand=1, mode=READ, offset=offset, length=BLOCK_BYTES)
    return Footprint(block, _by_tile(Boxes.concat([writes, reads])))


def _by_tile(boxes):
    from dataclasses import fields

    order = np.argsort(boxes.tile, kind="stable")
    return type(boxes)(*(getattr(boxes, field.name)[order] for field in fields(boxes)))


if __name__ == "__main__":
    main()
