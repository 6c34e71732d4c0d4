"""Orders in which libraries dispatch tiles, compared with the stores of blocks in golden traces of an H200."""

import re
from pathlib import Path

import numpy as np
import pytest

from tileprof import devices
from tileprof.record.model.tiles.products import dispatch
from tileprof.trace import load
from tileprof.trace.footprint import READ

H200 = devices.get("H200")
GOLDEN = Path(__file__).parents[5] / "golden"
NVJET = re.compile(r"nvjet_sm90_\w+?_(\d+)x(\d+)_\d+x\d+_(\d)x(\d)_[hv]")


def stored(path):
    """Yield name and cluster of nvjet launches whose stores are known, and row and column of what each tile stores."""
    trace = load(GOLDEN / path)
    for row in trace.launches.itertuples():
        match = NVJET.match(row.kernel)
        footprint = trace.footprint(row.footprint) if match else None
        writes = footprint and footprint.boxes.take(footprint.boxes.mode != READ)
        if not footprint or not len(writes.tile) or row.coverage == "conservative":
            continue
        begin = np.full(footprint.tiles, np.iinfo(np.int64).max)
        np.minimum.at(begin, writes.tile, writes.offset)
        begin -= begin.min()
        n, m, across, down = map(int, match.groups())
        pitch = int(writes.stride_0[0]) or int(writes.length[0])
        rows, columns = np.divmod(begin, pitch)
        if writes.stride_0[0] and (rows % (m * down) == 0).all():
            yield row.kernel, (down, across), rows // (m * down), columns // (2 * n * across)


@pytest.mark.parametrize(
    ("trace", "agreeing", "grouped"),
    [
        ("gemm_pair.tileprof", 1, 1),
        ("gpt2.tileprof", 3, 0),
        ("later/encoder.tileprof", 2, 1),
        ("later/gru.tileprof", 2, 0),
        ("later/llama.tileprof", 3, 0),
    ],
)
def test_clusters_compute_the_tiles_that_a_gpu_recorded(trace, agreeing, grouped):
    agree = {}
    for name, cluster, m, n in stored(trace):
        ours = dispatch.clusters((m.max() + 1, n.max() + 1, 1), cluster, H200).cells
        agree[name, len(m)] = ours[:, :2].tolist() == np.column_stack([m, n]).tolist()
    assert sum(agree.values()) == agreeing, agree
    assert len(agree) - agreeing == grouped, "their columns are cut into groups that no rule explains"


def test_each_tile_has_one_cluster_whatever_their_number_and_size():
    for blocks in (2, 4, 8, 16):
        for count in range(1, 70):
            assert sorted(dispatch.numbers(count, blocks)) == list(range(count))


def test_what_no_gpu_was_recorded_for_keeps_the_order_of_a_raster():
    a100 = devices.get("A100")
    assert dispatch.clusters((6, 20, 1), (2, 4), a100).cells.tolist() == dispatch.plain((6, 20, 1)).cells.tolist()
    assert dispatch.clusters((3, 5, 2), (2, 4), H200).cells.tolist() == dispatch.plain((3, 5, 2)).cells.tolist()


@pytest.mark.parametrize(
    ("tiles", "grid"),
    [
        ((32, 7, 1), (256, 1, 1)),  # recorded for two layers of MLP-Mixer
        ((1, 1, 3), (1, 1, 3)),
        ((7, 2, 1), (14, 1, 1)),
        ((3, 5, 2), (12, 2, 2)),
        ((3, 17, 2), (24, 3, 2)),
    ],
)
def test_cutlass_lays_columns_side_by_side_and_fills_up_with_idle_blocks(tiles, grid):
    order = dispatch.swizzled(tiles)
    assert order.grid == grid
    assert len(order.places) == np.prod(grid)
    assert sorted(map(tuple, order.cells.tolist())) == [tuple(c) for c in np.ndindex(*tiles)]
    x, y, z = order.places[order.tiles].T
    assert (order.cells[:, 2] == z).all()
    aside = grid[0] // tiles[0]
    assert (order.cells[:, 0] * aside + order.cells[:, 1] % aside == x).all()
    assert (order.cells[:, 1] // aside == y).all()
    number = order.places @ np.array((1, grid[0], grid[0] * grid[1]))
    assert number.tolist() == list(range(len(number)))
