"""Published gains beside ours: what a comparison says, and that it is made of the schedulers' runs."""

import pytest

from tileprof.analysis.workloads import published
from tileprof.analysis.workloads.published import Comparison


def comparison(mean, *ours):
    return Comparison("x", "y", mean, None, {str(i): gains for i, gains in enumerate(ours)}, "")


@pytest.mark.parametrize(
    ("mean", "ours", "says"),
    [
        (1.5, [{"a": 1.2}, {"a": 1.8}], "same direction; the published mean lies in our range"),
        (1.5, [{"a": 1.8, "b": 1.8}], "same direction, about the same size: above by a factor of 1.20"),
        (1.5, [{"a": 3.0}, {"a": 4.0}], "same direction, not the same size: above by a factor of 2.00"),
        (1.8, [{"a": 1.2}], "same direction, about the same size: below by a factor of 1.50"),
        (1.5, [{"a": 0.9}, {"a": 1.8}], "direction not certain: 0.90x to 1.80x"),
        (1.0, [{"a": 0.8}, {"a": 0.9}], "as published, near: 0.80x to 0.90x"),
        (1.0, [{"a": 0.5}, {"a": 0.9}], "as published, near: 0.50x to 0.90x"),
        (1.0, [{"a": 0.5}], "not near: 0.50x to 0.50x"),
    ],
)
def test_a_verdict_names_direction_and_size(mean, ours, says):
    assert comparison(mean, *ours).verdict == says


def test_means_are_geometric_and_over_programs():
    found = comparison(1.5, {"a": 1.0, "b": 4.0}, {"a": 3.0, "b": 3.0})
    assert found.means == (pytest.approx(2.0), pytest.approx(3.0))
    assert found.most == 4.0


def test_two_kernels_that_do_not_need_each_other_run_beside_each_other():
    rows = published.blockmaestro(["bicg", "lud"])
    assert [r.scheduler for r in rows] == ["blockmaestro"] * 2
    gains = rows[0].ours[""]
    assert gains["bicg"] == pytest.approx(2.0, rel=0.05)
    assert 1.0 < gains["lud"] < 2.0


def test_longer_tiles_leave_less_to_a_task_graph_in_hardware():
    (row,) = published.wireframe(12)
    gains = [by_name["wavefront"] for by_name in row.ours.values()]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] > 1.0


def test_rules_are_compared_under_several_item_times():
    flat, program, best = published.spawn(8)
    for row in (flat, program, best):
        assert len(row.ours) == 4
        assert all(len(gains) == 8 for gains in row.ours.values())
    assert "programs" in flat.why
