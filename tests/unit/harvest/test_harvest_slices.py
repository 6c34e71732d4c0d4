"""Slices of a harvest: they continue after an interruption, record failures, and refuse another list's folder."""

import itertools
import json

import numpy as np
import pytest

from tileprof.errors import UserError
from tileprof.harvest import slices
from tileprof.harvest.activity import Activity
from tileprof.harvest.products.product_cases import COLUMNS, harvested, held_out


class Squares:
    """A family whose calls return their case; case 3 is refused."""

    name = "squares"
    columns = ("size",)
    before = None

    def __init__(self, count=600):
        self.count = count

    def cases(self):
        return np.arange(self.count, dtype=np.int64)[:, None]

    def prepare(self):
        pass

    def calls(self, case):
        def call():
            if case[0] == 3:
                raise ValueError("no squares of 3")
            return case[0]

        return [call] * 3


class Runner:
    """A recorder with one kernel per call that returns; the first of three launches is slow."""

    def run(self, calls, before=None):
        results = [(before and before(), call())[1] for call in calls]
        return [
            [] if size is None else [Activity(f"square_{size % 2}", (size, 1, 1), duration_ns=90 if i % 3 == 0 else 7)]
            for i, size in enumerate(results)
        ]


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr(slices, "machine", lambda: {"gpu": "none"})


def ticks(monkeypatch, seconds):
    """Let each look at the clock take so long."""
    clock = itertools.count(0.0, seconds)
    monkeypatch.setattr(slices.time, "monotonic", lambda: next(clock))


def tables_of(folder):
    return [(first, after, dict(np.load(path))) for first, after, path in slices.slices(folder, "squares")]


def test_an_interrupted_harvest_continues_after_its_last_slice(tmp_path, monkeypatch):
    ticks(monkeypatch, 0.02)
    assert not slices.harvest(Squares(), tmp_path, 5, Runner)
    assert 0 < tables_of(tmp_path)[-1][1] < 600
    while not slices.harvest(Squares(), tmp_path, 5, Runner):
        pass
    parts = tables_of(tmp_path)
    assert [part[0] for part in parts] == [0, *(part[1] for part in parts[:-1])]
    assert np.concatenate([part[2]["cases"][:, 0] for part in parts]).tolist() == list(range(600))


def test_a_harvest_whose_cases_take_long_to_prepare_writes_slices_in_time(tmp_path, monkeypatch):
    ticks(monkeypatch, 0.4)
    assert not slices.harvest(Squares(), tmp_path, 20, Runner, turn=tmp_path / "turn")
    parts = tables_of(tmp_path)
    assert len(parts) > 1
    assert [len(part[2]["cases"]) for part in parts] == [len(part[2]["error"]) for part in parts]
    assert all(after - first == len(part["cases"]) for first, after, part in parts)


def test_a_harvest_that_has_no_time_to_measure_says_so(tmp_path, monkeypatch):
    ticks(monkeypatch, 0.4)
    with pytest.raises(UserError, match="Nothing was measured"):
        slices.harvest(Squares(), tmp_path, 0.5, Runner)


def test_launches_belong_to_their_cases_and_last_the_median_of_warm_repetitions(tmp_path):
    assert slices.harvest(Squares(20), tmp_path, 60, Runner)
    ((_, _, part),) = tables_of(tmp_path)
    assert part["case"].tolist() == [size for size in range(20) if size != 3]
    assert part["grid"][:, 0].tolist() == part["case"].tolist()
    assert set(part["ns"].tolist()) == {7.0}
    assert [part["names"][name] for name in part["name"][:2]] == ["square_0", "square_1"]


def test_a_refused_call_is_kept_with_its_error(tmp_path):
    slices.harvest(Squares(20), tmp_path, 60, Runner)
    ((_, _, part),) = tables_of(tmp_path)
    assert part["error"].tolist() == ["ValueError: no squares of 3" if size == 3 else "" for size in range(20)]


def test_a_folder_of_another_list_is_refused(tmp_path):
    slices.harvest(Squares(20), tmp_path, 60, Runner)
    with pytest.raises(UserError, match="another list of squares"):
        slices.harvest(Squares(21), tmp_path, 60, Runner)
    assert json.loads((tmp_path / "squares.json").read_text())["cases"] == 20


def test_repetitions_that_launch_other_kernels_are_not_mixed():
    first, second = Activity("a", duration_ns=10), Activity("b", duration_ns=20)
    repetitions = [[second], [first], [second, second], [Activity("a", duration_ns=30)]]
    assert slices.combined(repetitions) == [Activity("a", duration_ns=20)]
    assert slices.combined([[first]]) == [first]
    assert slices.combined([]) == []


def test_no_held_out_product_is_harvested_and_the_list_is_the_committed_one(request):
    away = held_out()
    assert len(away) == 1000 == len(np.unique(away, axis=0))
    assert not set(map(tuple, away.tolist())) & set(map(tuple, harvested(20_000).tolist()))
    lines = (request.config.rootpath / "tests/gpu/harvest/held_out_products.csv").read_text().splitlines()
    assert lines == [",".join(COLUMNS), *(",".join(map(str, case)) for case in away.tolist())]
