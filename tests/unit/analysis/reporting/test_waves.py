"""Waves on grids made by hand, and on those that the cuSync paper prints."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from tests.support.synthetic_graphs import durations, footprint, trace
from tileprof.analysis.bounds import Machine
from tileprof.analysis.waves import launch_waves, pair_waves
from tileprof.devices import get

PAPER = Path(__file__).parents[3] / "data" / "cusync_waves.csv"

FOLLOWS = {  # batch: (whether stream waves follow from the printed grids, whether overlapped waves do)
    "1-64": (True, False),  # 0.6 + 0.9 waves are 1.5; printed 1.8
    "128": (True, True),  # 0.45 + 0.9 = 1.35; printed 1.3
    "256": (True, True),
    "512": (False, False),  # 1.2 + 1.2: 4 and 2.4; printed 6 and 4.8, which are those of the grid printed for 1024
    "1024": (False, False),  # 2.4 + 2.4: 6 and 4.8; printed 5 and 3.6
    "2048": (True, True),
}

REPOSITORY_GRIDS = {"1-64": ("1x24x6", "1x48x3"), "1024": ("4x24x1", "4x48x1")}
"""Grids that follow from the tile shapes and split-k of cuSync's own evaluation scripts (64 x 256 tiles, split-k 6 at
64 tokens; 256 x 256, split-k 1 at 1024), where they differ from the printed ones.
"""


def test_a_partial_last_wave_costs_a_whole_one():
    t = trace([{"footprint": 0, "grid_x": 5, "blocks_per_sm": 2}], {0: footprint(5)})
    waves = launch_waves(t.launches, Machine(t.device).slots(t.launches), durations([[3.0] * 5]))
    assert waves.loc[0, ["slots", "waves", "last_wave", "alone_ns"]].tolist() == [4, 2, 0.25, 6.0]
    assert waves["idle"][0] == pytest.approx(1 - 15 / 24)


def test_a_cluster_is_one_tile_on_as_many_slots():
    t = trace([{"footprint": 0, "grid_x": 8, "cluster_x": 2, "blocks_per_sm": 2}], {0: footprint(4)})
    assert Machine(t.device).slots(t.launches).tolist() == [2]


def test_a_persistent_launch_has_as_many_slots_as_blocks():
    t = trace([{"footprint": 0, "grid_x": 3, "blocks_per_sm": 4}], {0: footprint(12)})
    assert Machine(t.device).slots(t.launches).tolist() == [3]


def test_another_gpu_has_other_waves():
    t = trace([{"footprint": 0, "grid_x": 12}], {0: footprint(12)})
    assert Machine(t.device).slots(t.launches).tolist() == [2]
    assert Machine(t.device, sms=5).slots(t.launches).tolist() == [5]
    assert Machine(t.device, sms=5, blocks_per_sm=2).slots(t.launches).tolist() == [10]


def paper_rows():
    return list(csv.DictReader(PAPER.read_text().splitlines()))


@pytest.mark.parametrize("row", paper_rows(), ids=lambda r: r["batch"])
def test_the_cusync_papers_waves_follow_from_its_grids_where_they_do(row):
    grids = [tuple(map(int, row[f"gemm{i}_grid"].split("x"))) for i in (1, 2)]
    launches = [
        dict(zip(("grid_x", "grid_y", "grid_z"), grid, strict=True))
        | {"footprint": i, "blocks_per_sm": int(row[f"gemm{i + 1}_blocks_per_sm"])}
        for i, grid in enumerate(grids)
    ]
    t = trace(launches, {i: footprint(math.prod(grid)) for i, grid in enumerate(grids)}, device=get("V100"))
    assert t.device.sms == int(row["gpu_sms"])
    slots = Machine(t.device).slots(t.launches)
    waves = pair_waves(tuple(t.launches["tiles"]), tuple(slots))
    alone = launch_waves(t.launches, slots, durations([[1.0] * n for n in t.launches["tiles"]]))
    assert waves.stream == alone["waves"].sum() == alone["alone_ns"].sum()
    published_waves = float(row["cusync_waves_printed"])
    stream, cusync_waves = FOLLOWS[row["batch"]]
    assert (waves.stream == int(row["stream_waves_printed"])) == stream
    assert (abs(waves.overlapped - published_waves) <= 0.05 + 1e-9) == cusync_waves


@pytest.mark.parametrize("batch", REPOSITORY_GRIDS)
def test_two_more_rows_follow_from_the_grids_in_cusyncs_repository(batch):
    row = next(r for r in paper_rows() if r["batch"] == batch)
    tiles = tuple(math.prod(map(int, grid.split("x"))) for grid in REPOSITORY_GRIDS[batch])
    slots = tuple(80 * int(row[f"gemm{i}_blocks_per_sm"]) for i in (1, 2))
    waves = pair_waves(tiles, slots)
    assert waves.stream == int(row["stream_waves_printed"])
    assert waves.overlapped == pytest.approx(float(row["cusync_waves_printed"]))


def test_the_papers_row_of_512_prints_what_follows_from_the_grids_printed_for_1024():
    by_batch = {row["batch"]: row for row in paper_rows()}
    tiles = tuple(math.prod(map(int, by_batch["1024"][f"gemm{i}_grid"].split("x"))) for i in (1, 2))
    waves = pair_waves(tiles, (80, 80))
    assert waves.stream == int(by_batch["512"]["stream_waves_printed"])
    assert waves.overlapped == pytest.approx(float(by_batch["512"]["cusync_waves_printed"]))
    assert np.isclose(waves.saved, 0.2)
