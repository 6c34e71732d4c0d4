"""Published gains beside tileprof's: the text of a comparison, and that it comes from the schedulers' runs."""

import pytest
from studies import published_averages as published
from studies.published_averages import Comparison


def comparison(mean, *ours):
    return Comparison("x", "y", mean, None, {str(i): gains for i, gains in enumerate(ours)}, "")


@pytest.mark.parametrize(
    ("mean", "ours", "says"),
    [
        (1.5, [{"a": 1.2}, {"a": 1.8}], "same direction; the published mean lies in the simulated range"),
        (1.5, [{"a": 1.8, "b": 1.8}], "same direction; simulated means are above it by a factor of 1.20"),
        (1.8, [{"a": 1.2}], "same direction; simulated means are below it by a factor of 1.50"),
        (
            1.5,
            [{"a": 0.9}, {"a": 1.8}],
            "not the same direction; the published mean lies in the simulated range (0.90x to 1.80x)",
        ),
        (
            1.0,
            [{"a": 0.8}, {"a": 0.9}],
            "published without a direction; simulated means are below it by a factor of 1.11 (0.80x to 0.90x)",
        ),
    ],
)
def test_a_verdict_names_direction_and_size(mean, ours, says):
    assert comparison(mean, *ours).verdict == says


@pytest.mark.parametrize(
    ("mean", "ours", "same", "inside", "near"),
    [
        (1.5, (1.2, 1.8), True, True, True),
        (1.5, (1.5, 1.8), True, True, True),
        (1.5, (2.2, 9.0), True, False, True),
        (1.5, (2.3, 9.0), True, False, False),
        (1.5, (1.01, 1.02), True, False, True),
        (1.8, (1.1, 1.1), True, False, False),
        (1.5, (0.9, 1.8), False, True, True),
        (1.5, (1.0, 1.8), False, True, True),
        (1.5, (0.5, 0.6), False, False, False),
        (0.8, (0.7, 0.9), True, True, True),
        (0.8, (0.7, 1.1), False, True, True),
        (1.0, (0.46, 0.89), None, False, True),
        (1.0, (0.46, 0.6), None, False, False),
        (1.0, (0.9, 1.1), None, True, True),
    ],
)
def test_direction_range_and_nearness_are_counted_apart(mean, ours, same, inside, near):
    actual = comparison(mean, *({"a": gain} for gain in ours))
    assert (actual.same_direction, actual.inside, actual.near) == (same, inside, near)


def test_means_are_geometric_and_over_programs():
    actual = comparison(1.5, {"a": 1.0, "b": 4.0}, {"a": 3.0, "b": 3.0})
    assert actual.means == (pytest.approx(2.0), pytest.approx(3.0))
    assert actual.most == 4.0


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
