import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileprof.analysis.timeline import blocks_of, busy_share, dispatch, recorded_lanes

lives = st.lists(st.integers(0, 9), max_size=40)


def no_lane_is_used_twice(lanes):
    order = np.lexsort((lanes.end_ns, lanes.begin_ns, lanes.slot, lanes.sm))
    for before, after in itertools.pairwise(order):
        if (lanes.sm[before], lanes.slot[before]) == (lanes.sm[after], lanes.slot[after]):
            assert lanes.end_ns[before] <= lanes.begin_ns[after]


@settings(deadline=None)
@given(lives, st.integers(1, 4), st.integers(1, 3))
def test_each_tile_takes_the_slot_that_falls_free_first(durations, sms, blocks):
    lanes = dispatch(durations, sms=sms, blocks_per_sm=blocks)
    free = [0.0] * (sms * blocks)
    for tile, duration in enumerate(durations):
        assert lanes.begin_ns[tile] == min(free)
        free[free.index(min(free))] += duration
        assert lanes.end_ns[tile] == lanes.begin_ns[tile] + duration
    no_lane_is_used_twice(lanes)


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(1, 4), st.integers(1, 3))
def test_equal_tiles_run_in_waves_as_unequal_ones_would(tiles, sms, blocks):
    quick = dispatch([5.0] * tiles, sms=sms, blocks_per_sm=blocks)
    slow = dispatch([5.0] * tiles + [6.0], sms=sms, blocks_per_sm=blocks)
    assert quick.begin_ns.tolist() == slow.begin_ns[:tiles].tolist()
    assert quick.sm.tolist() == slow.sm[:tiles].tolist()
    assert quick.slot.tolist() == slow.slot[:tiles].tolist()


def test_the_first_tiles_go_to_different_sms():
    lanes = dispatch([1, 2, 3, 4, 5], sms=4, blocks_per_sm=2)
    assert lanes.sm.tolist() == [0, 1, 2, 3, 0]
    assert lanes.slot.tolist() == [0, 0, 0, 0, 1]


@settings(deadline=None)
@given(lives, st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
def test_a_cluster_holds_a_lane_a_block(durations, sms, blocks, cluster):
    cluster = min(cluster, sms * blocks)
    lanes = dispatch(durations, sms=sms, blocks_per_sm=blocks, cluster=cluster)
    free = [0.0] * (sms * blocks // cluster)
    for tile, duration in enumerate(durations):
        assert lanes.begin_ns[tile] == min(free)
        free[free.index(min(free))] += duration
    each = blocks_of(lanes, sms)
    assert len(each.sm) == cluster * len(durations)
    assert all(0 <= sm < sms for sm in each.sm.tolist())
    assert all(0 <= slot < blocks for slot in each.slot.tolist())
    no_lane_is_used_twice(each)


def test_no_more_tiles_run_at_a_time_than_a_persistent_launch_has_blocks():
    assert dispatch([1.0] * 4, sms=2, blocks_per_sm=4, most=3).begin_ns.tolist() == [0, 0, 0, 1]


def test_a_device_without_slots_is_refused():
    with pytest.raises(ValueError, match="0 SMs"):
        dispatch([1.0], sms=0, blocks_per_sm=1)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 8)), max_size=30))
def test_measured_tiles_that_overlap_get_lanes_of_their_own(rows):
    sm, begin, life = zip(*rows, strict=True) if rows else ((), (), ())
    lanes = recorded_lanes(sm, begin, np.add(begin, life))
    no_lane_is_used_twice(lanes)
    most = max((sum(s == q and b <= t < b + d for q, b, d in rows) for s, t, _ in rows), default=0)
    assert lanes.slots <= max(most, 1) + sum(d == 0 for d in life)


@settings(deadline=None)
@given(lives, st.integers(1, 3), st.integers(1, 2), st.integers(1, 7))
def test_busy_shares_add_up_to_the_work(durations, sms, blocks, bins):
    lanes = dispatch(durations, sms=sms, blocks_per_sm=blocks)
    share = busy_share(lanes, sms=sms, bins=bins)
    span = lanes.end_ns.max(initial=0.0)
    assert share.shape == (sms, bins)
    assert share.sum() * blocks * span / bins == pytest.approx(sum(durations) if span else 0.0)
    assert share.min() >= 0
    assert share.max() <= 1
