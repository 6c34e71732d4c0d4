"""Durations of a profile belong to the recorded launches with the same kernel, grid and block."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "gpu" / "measuring" / "recorder"))

import measure_clients

COLUMNS = ["kernel", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]


def recorded(*launches: tuple[str, int]) -> pd.DataFrame:
    return pd.DataFrame([(name, blocks, 1, 1, 128, 1, 1) for name, blocks in launches], columns=COLUMNS)


def profiled(*launches: tuple[str, int | None, float]) -> list[dict]:
    """Rows of a profile; without blocks, a copy or a fill of the driver's."""
    return [
        {"kernel": name, "grid": blocks and [blocks, 1, 1], "block": blocks and [128, 1, 1], "us": us}
        for name, blocks, us in launches
    ]


def times(launches: pd.DataFrame, rows: list[dict]) -> list[float]:
    return measure_clients.of_profile(launches, rows)


def test_equal_sequences_match_one_to_one():
    launches = recorded(("add", 4), ("memcpy device to host", 1), ("memset", 1), ("add", 4))
    rows = profiled(("add", 4, 1.0), ("Memcpy DtoH (Device -> Pinned)", None, 2.0), ("Memset (Device)", None, 3.0),
                    ("add", 4, 4.0))  # fmt: skip
    assert times(launches, rows) == [1000.0, 2000.0, 3000.0, 4000.0]


def test_a_launch_that_only_the_recorder_saw_has_no_duration():
    many = [("mul", n) for n in range(1, 30)]
    launches = recorded(("add", 4), ("memcpy device to device", 1), ("add", 8), *many)
    rows = profiled(("add", 4, 1.0), ("add", 8, 2.0), *((*one, 3.0) for one in many))
    np.testing.assert_array_equal(times(launches, rows), [1000.0, np.nan, 2000.0, *[3000.0] * len(many)])


def test_kernels_of_several_streams_may_begin_in_another_order():
    launches = recorded(("a", 1), ("b", 1), ("c", 1))
    assert times(launches, profiled(("b", 1, 2.0), ("a", 1, 1.0), ("c", 1, 3.0))) == [1000.0, 2000.0, 3000.0]


@pytest.mark.parametrize(
    "rows",
    [
        [],
        profiled(("a", 2, 1.0), ("b", 1, 2.0), ("c", 1, 3.0)),
        profiled(("a", 1, 1.0), ("b", 1, 2.0), ("c", 1, 3.0), ("d", 1, 1.0)),
        profiled(("a", 1, 1.0), ("b", 1, 2.0)),
    ],
    ids=["no profile", "another grid", "a launch that was not recorded", "too few launches"],
)
def test_a_profile_of_other_launches_gives_no_durations(rows):
    assert np.isnan(times(recorded(("a", 1), ("b", 1), ("c", 1)), rows)).all()


def test_repetitions_are_joined_by_launch_and_not_by_position():
    first, second = ({"name": name, "args": {"grid": [1, 1, 1]}, "dur": us} for name, us in (("a", 1.0), ("b", 2.0)))
    assert list(measure_clients.numbered([first, second, first])) == [
        ("a", "[1, 1, 1]", 0), ("b", "[1, 1, 1]", 0), ("a", "[1, 1, 1]", 1),
    ]  # fmt: skip
