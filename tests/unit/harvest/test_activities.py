"""Markers assign launches to calls, and launches before the first call belong to none."""

from types import SimpleNamespace

import pytest

from tileprof.errors import UserError
from tileprof.harvest.activity import Activities, Activity


class FakeGpu:
    """Launches in stream order; stands for ``torch.cuda`` and CUPTI."""

    def __init__(self, lost=0):
        self.activities = object.__new__(Activities)
        self.activities._torch = SimpleNamespace(
            cuda=SimpleNamespace(_sleep=lambda _: self.launch("spin_kernel"), synchronize=lambda: None)
        )
        self.activities._cupti = SimpleNamespace(activity_flush_all=lambda _: None)
        self.activities._records = []
        self.lost, self.time = lost, 0

    def launch(self, name):
        self.time += 1
        if self.time > self.lost:
            self.activities._records.append((self.time, Activity(name)))

    def names(self, calls, before=None):
        return [[one.name for one in launches] for launches in self.activities.run(calls, before)]


def test_each_call_has_its_launches_and_what_runs_before_it_is_left_out():
    gpu = FakeGpu()

    def two():
        gpu.launch("a")
        gpu.launch("b")

    calls = (two, lambda: None, lambda: gpu.launch("c"))
    assert gpu.names(calls) == [["a", "b"], [], ["c"]]
    assert gpu.names(calls, lambda: gpu.launch("other")) == [["a", "b"], [], ["c"]]


@pytest.mark.parametrize("before", [None, lambda: None])
def test_a_marker_that_was_lost_is_no_shift_of_launches(before):
    gpu = FakeGpu(lost=1)
    with pytest.raises(UserError, match="markers: records were lost"):
        gpu.names([lambda: gpu.launch("a")], before)
