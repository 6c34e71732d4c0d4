"""Child grids: the compiled simulation compared with the plain one, and cases computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.analysis.simulate.plain_spawning import Plain
from tileprof.analysis.simulate.spawning import (
    ALWAYS,
    BY_WARP,
    FLAT,
    POLICIES,
    SPAWN,
    THRESHOLD,
    Spawning,
    compare,
    run,
    spawn,
)
from tileprof.analysis.workloads.nested import spawns
from tileprof.errors import UserError

rounds = st.lists(st.lists(st.integers(0, 12), max_size=9), min_size=1, max_size=4)
costs = st.sampled_from([0.0, 1.0, 2.5, 10.0])

windows = st.sampled_from([(0.0, 0), (4.0, 0), (16.0, 0), (4.0, 1), (16.0, 1)])


def with_window(window, **others):
    """Options with a window, and whether children that ended in it are counted."""
    return Spawning(window_ns=window[0], ended=window[1], **others)


options = st.builds(
    with_window,
    windows,
    slots=st.integers(1, 5),
    resident=st.integers(4, 12),
    parent=st.integers(1, 4),
    child=st.integers(1, 4),
    warp=st.integers(1, 3),
    launch_ns=costs,
    assumed_first_ns=costs,
    assumed_another_ns=costs,
    another_ns=costs,
    serve_ns=costs,
    queues=st.integers(1, 3),
    gap_ns=costs,
    prior=st.integers(0, 1),
    untried=st.sampled_from([0, 1, 3, 100]),
    children=st.integers(0, 1),
    stagger_ns=st.sampled_from([0.0, 0.75, 6.0]),
    guess_ns=st.sampled_from([0.0, 2.0]),
    issue_ns=st.sampled_from([0.0, 0.3, 2.0]),
)


def nested(items, fanouts):
    """Return rounds whose threads' items have items too: ``fanouts`` for each level below in turn, none at the
    deepest.
    """
    rounds = [np.array(r, np.int64) for r in items]
    level, below = np.concatenate(rounds), []
    for fanout in fanouts:
        level = np.resize(np.array(fanout, np.int64), level.sum())
        below.append(level)
    return rounds, below


@settings(deadline=None, max_examples=400)
@given(
    rounds,
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=3),
    st.integers(0, 4),
    st.integers(1, 5),
    options,
    st.sampled_from([0.0, 0.25, 1.0]),
    st.sampled_from([0.0, 0.5]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_the_compiled_simulation_equals_the_plain_one(
    items, fanouts, policy, threshold, options, together, beside_ns, uneven, seed
):
    levels, below = nested(items, fanouts)
    count = sum(map(len, levels)) + sum(map(len, below))
    random = np.random.default_rng(seed)
    item_ns = random.choice([0.5, 1.5, 4.0], count)
    work = spawns("random", levels, item_ns, base_ns=2.0, child_ns=1.0, below=below)
    work = work._replace(together=together, beside_ns=beside_ns)
    if uneven:
        work = work._replace(own_ns=random.choice([2.0, 5.0, 9.0], count), longest_ns=item_ns + random.choice(3, count))
        work = work._replace(gap_ns=random.choice([0.0, 3.0], len(levels)))
    fast, plain = run(work, options, policy, threshold), Plain(work, options, policy, threshold).run()
    assert fast.time_ns == plain.time_ns
    for a, b in ((fast.child_ns, plain.child_ns), (fast.took_ns, plain.took_ns), (fast.estimate_ns, plain.estimate_ns)):
        assert np.allclose(a, b, equal_nan=True, rtol=1e-12)
    # No policy is faster than the work divided by all threads that run at a time, or than a round alone.
    work_ns = (work.items * work.item_ns).sum() / min(
        options.resident, options.slots * max(options.parent, options.child)
    )
    round_count = sum(bool(r) for r in items)  # rounds
    assert fast.time_ns >= max(work_ns, 2.0 * round_count) - 1e-9
    launch_flags = np.isfinite(fast.took_ns)
    assert not (launch_flags & (work.items == 0)).any()
    assert (fast.took_ns[launch_flags] >= options.launch_ns + options.another_ns).all()


SMALL = Spawning(
    slots=2, resident=4, parent=2, child=2, warp=2, launch_ns=20.0, another_ns=3.0, queues=1, gap_ns=0.0, prior=0
)


def test_launches_of_the_whole_gpu_are_served_one_after_the_other():
    work = spawns("two", [np.array([1, 1], np.int64)], 1.0, base_ns=1.0, child_ns=0.0)
    options = Spawning(
        slots=8, resident=8, parent=2, child=1, warp=1, launch_ns=10.0, another_ns=1.0, queues=8, gap_ns=0.0
    )
    assert run(work, options, ALWAYS).time_ns == 1 + 11 + 1
    assert run(work, replace(options, serve_ns=5.0), ALWAYS).time_ns == 1 + 11 + 5 + 1


def test_items_of_a_full_gpu_are_bound_by_what_it_can_issue():
    # Two warps of one thread with 4 and 2 items of 10 ns: 0.2 items per ns, then 0.1, and at most one in 8 ns.
    work = spawns("two", [np.array([4, 2])], 10.0, base_ns=1.0, child_ns=0.0)
    options = Spawning(slots=8, resident=8, parent=1, child=1, warp=1, gap_ns=0.0, issue_ns=8.0)
    assert run(work, replace(options, issue_ns=5.0), FLAT).time_ns == 1 + 40
    # Both take 1.6 times as long until the shorter ends after 32 ns, and the longer's other 20 ns are as alone.
    assert run(work, options, FLAT).time_ns == 1 + 32 + 20


def test_a_warp_decides_when_its_last_thread_with_a_site_comes_there():
    work = spawns("late", [np.array([3, 3, 0, 0])], 10.0, base_ns=1.0, child_ns=0.0)
    wide = replace(SMALL, slots=8, resident=16, queues=8, parent=4, warp=4, child=4)
    uneven = work._replace(own_ns=np.array([5.0, 7.0, 90.0, 2.0]), longest_ns=np.full(4, 15.0))
    assert run(work, wide, ALWAYS).time_ns == 1 + 26 + 10
    assert run(uneven, wide, ALWAYS).took_ns[:2].tolist() == [26 + 15, 26 + 15]
    assert run(uneven, wide, ALWAYS).time_ns == 90  # of the thread without a site
    assert run(uneven._replace(own_ns=np.array([5.0, 7.0, 9.0, 2.0])), wide, ALWAYS).time_ns == 7 + 26 + 15


def test_flat_waits_for_the_longest_thread_and_children_share_the_slots():
    work = spawns("one", [np.array([9, 0, 0, 0])], item_ns=10.0, base_ns=1.0, child_ns=1.0)
    assert run(work, SMALL, FLAT).time_ns == 91.0
    # Five child tiles of 11 ns on two slots, after 1 ns of the parent's and a launch of 20 + 3 ns.
    assert run(work, SMALL, ALWAYS).time_ns == 1 + 23 + 3 * 11
    assert run(work, SMALL, THRESHOLD, 10).time_ns == 91.0
    assert run(work, SMALL, THRESHOLD, 9).time_ns == 57.0


def test_launches_of_a_warp_arrive_together_and_queue():
    work = spawns("two", [np.array([1, 1])], item_ns=10.0, base_ns=0.0, child_ns=0.0)
    four = replace(SMALL, slots=4, resident=8, queues=4)
    assert run(work, four, ALWAYS).time_ns == 20 + 2 * 3 + 10
    assert run(work, replace(four, queues=1), ALWAYS).time_ns == 26 + 2 * 10
    # In separate warps, neither waits for the other's launch.
    assert run(work, replace(four, warp=1), ALWAYS).time_ns == 23 + 10


def test_threads_of_a_warp_that_launches_do_their_items_after_it():
    work = spawns("mixed", [np.array([4, 1])], item_ns=10.0, base_ns=1.0, child_ns=0.0)
    assert run(work, replace(SMALL, queues=2), THRESHOLD, 4).time_ns == 1 + 23 + 2 * 10  # the child's tiles are last
    late = spawns("late", [np.array([2, 5])], item_ns=10.0, base_ns=1.0, child_ns=0.0)
    assert run(late, replace(SMALL, slots=4, resident=8), THRESHOLD, 6).time_ns == 1 + 50
    other = spawns("other", [np.array([6, 5])], item_ns=10.0, base_ns=1.0, child_ns=0.0)
    assert run(other, replace(SMALL, slots=4, resident=8), THRESHOLD, 6).time_ns == 1 + 23 + 50


def test_parents_hold_as_many_threads_as_they_have_and_go_first():
    work = spawns("room", [np.array([2, 0, 2, 0])], item_ns=10.0, base_ns=1.0, child_ns=0.0)
    # Room for one parent at a time: the second decides when the first has launched, and children wait for both.
    narrow = replace(SMALL, slots=4, resident=3)
    assert run(work, narrow, ALWAYS).time_ns == 24 + 24 + 2 * 10
    assert run(work, replace(narrow, resident=4), ALWAYS).time_ns == 24 + 2 * 10
    assert run(work, replace(narrow, resident=4, queues=2), ALWAYS).time_ns == 24 + 10


def test_the_rule_launches_what_is_worth_it_once_it_has_seen_children():
    work = spawns("learns", [np.full(4, 8), np.array([1, 40, 1, 40])], item_ns=10.0, base_ns=1.0, child_ns=0.0)
    options = Spawning(slots=8, resident=64, parent=4, child=4, launch_ns=50.0, another_ns=0.0, gap_ns=0.0, prior=0)
    outcome = run(work, options, SPAWN)
    assert np.isfinite(outcome.took_ns).tolist() == [True] * 4 + [False, True, False, True]
    assert np.isnan(outcome.estimate_ns[:4]).all()
    # If the GPU is assumed to be full from the start, a launch takes more than its 50 ns, and 5 items are not worth it.
    few = spawns("few", [np.full(4, 5), np.full(4, 40)], item_ns=10.0, base_ns=1.0, child_ns=0.0)
    launch_flags = np.isfinite(run(few, replace(options, prior=1), SPAWN).took_ns).tolist()
    assert launch_flags == [False] * 4 + [True] * 4
    # The rule does not decide about threads that the program as written would not launch.
    assert not np.isfinite(run(few, replace(options, prior=1), SPAWN, 41).took_ns).any()


def test_rules_are_compared_with_flat_always_the_program_and_the_best_threshold():
    work = spawns("skewed", [np.array([1000, 1, 1, 1] * 8)] * 3)
    actual = compare(work, Spawning(slots=16, resident=512, parent=32))
    flat, always, program, static, rule, warp = actual
    assert [f.policy for f in actual] == ["flat", "always", "program", static.policy, "spawn", "warp"]
    assert warp.time_ns <= flat.time_ns
    assert static.time_ns <= min(flat.time_ns, always.time_ns, program.time_ns)
    assert flat.launched == 0
    assert always.inlined == 0
    assert program.launched == 24
    assert np.isfinite(rule.estimate_error)
    assert flat.to_json()["estimate_error"] is None


def test_bad_policies_and_costs_are_refused():
    work = spawns("none", [np.array([1])])
    with pytest.raises(UserError, match=r"no spawn policy 'alway'.*flat"):
        spawn(work, Spawning(), "alway")
    with pytest.raises(UserError, match="queues is 0, expected at least 1"):
        Spawning(queues=0)
    with pytest.raises(UserError, match="launch_ns is nan"):
        Spawning(launch_ns=float("nan"))
    with pytest.raises(UserError, match="prior is 2, expected at least 0 and at most 1"):
        Spawning(prior=2)
    with pytest.raises(UserError, match="resident is 8, fewer threads than a tile has"):
        Spawning(resident=8)
    assert len(POLICIES) == 5
    unreachable = spawns("lost", [np.array([2])], below=[np.array([0, 0, 0])])
    with pytest.raises(UserError, match="1 threads are in no round and no item"):
        run(unreachable, Spawning(), FLAT)
    with pytest.raises(UserError, match=r"items of threads are threads 1 to 2, expected 1 to 1"):
        run(spawns("short", [np.array([2])], below=[np.array([0])]), Spawning(), FLAT)


def test_items_that_have_items_are_done_depth_first_or_launched_by_children():
    # Two items of 10 ns, which have three and one of 5 ns themselves.
    work = spawns("nested", [np.array([2])], [10.0, 5.0, 5.0, 0.0, 0.0, 0.0, 0.0], base_ns=1.0, child_ns=2.0,
                  below=[np.array([3, 1]), np.zeros(4, np.int64)])  # fmt: skip
    wide = replace(SMALL, slots=8, resident=16, queues=8)
    assert run(work, wide, FLAT).time_ns == 1 + 2 * 10 + 3 * 5 + 5
    # The child's two threads launch together: 20 + 2 * 3 ns after 2 + 10, then three tiles of 2 + 5 ns at once.
    always = run(work, wide, ALWAYS)
    assert always.time_ns == (1 + 23) + (2 + 10 + 26) + 7
    assert always.took_ns[:3].tolist() == [61.0, 33.0, 33.0]
    # With one queue, the first grid, whose tile runs, blocks both; then they run one after the other.
    assert run(work, replace(wide, queues=1), ALWAYS).time_ns == 24 + 38 + 2 * 7
    # From three items on: only the first of the two inline items launches, from the parent's thread.
    assert run(work, wide, THRESHOLD, 3).time_ns == 1 + 10 + 23 + 10 + 5


def test_children_go_before_parents_that_wait_where_the_gpu_does_so():
    work = spawns("waves", [np.array([2, 0, 0, 0])], item_ns=50.0, base_ns=30.0, child_ns=0.0)
    one = replace(SMALL, slots=1, parent=1, child=2, warp=1, launch_ns=0.0, another_ns=0.0)
    assert run(work, one, ALWAYS).took_ns[0] == 3 * 30 + 50
    assert run(work, replace(one, children=1), ALWAYS).took_ns[0] == 50
    assert run(work, one, ALWAYS).time_ns == run(work, replace(one, children=1), ALWAYS).time_ns == 4 * 30 + 50


def test_a_warp_launches_no_site_beside_which_another_keeps_as_much():
    options = Spawning(slots=64, resident=256, parent=4, child=4, warp=4, launch_ns=20.0, another_ns=3.0, gap_ns=0.0)
    even = spawns("even", [np.full(4, 5)], item_ns=10.0, base_ns=1.0, child_ns=0.0)
    assert np.isfinite(run(even, options, SPAWN).took_ns).tolist() == [True, True, True, True]
    assert np.isfinite(run(even, replace(options, another_ns=9.0), BY_WARP).took_ns).sum() == 0
    assert run(even, replace(options, another_ns=9.0), SPAWN).time_ns > run(even, options, FLAT).time_ns
    steep = spawns("steep", [np.array([1, 40, 1, 30])], item_ns=10.0, base_ns=1.0, child_ns=0.0)
    outcome = run(steep, replace(options, another_ns=6.0), BY_WARP)
    assert np.isfinite(outcome.took_ns).tolist() == [False, True, False, True]
    assert outcome.time_ns == 1 + 20 + 2 * 6 + 10


def test_a_warp_sees_what_others_launched_when_that_has_come_to_the_words():
    # Two warps read 6 + 2 words in 8 ns each, and 1 ns at the words: the last read of the first is there at 69 ns. It
    # decides 4 ns later, and what it has launched comes to the words 8 ns after that: who reads before sees none.
    work = spawns("two", [np.full(4, 4)], item_ns=1000.0, base_ns=1.0, child_ns=0.0)
    options = Spawning(
        slots=8, resident=64, parent=2, child=4, warp=2, launch_ns=5.0, another_ns=0.0, gap_ns=0.0, prior=0, untried=2,
        window_ns=1000.0, ended=1, read_ns=8.0, word_ns=1.0,
    )  # fmt: skip
    launched = [np.isfinite(run(work, replace(options, stagger_ns=ns), SPAWN).took_ns).sum() for ns in (10.0, 30.0)]
    assert launched == [4, 2]
    # An update of 50 ns and 3 for each thread comes after 69 + 4 + 8: the second's last read waits for it, unless its
    # SM is near.
    slow = replace(options, stagger_ns=30.0, update_ns=50.0, lane_ns=3.0)
    assert [np.isfinite(run(work, replace(slow, near=n), SPAWN).took_ns).sum() for n in (0, 132)] == [2, 4]
    # The second sees what is known at once.
    assert np.isfinite(run(work, replace(options, read_ns=0.0, stagger_ns=10.0), SPAWN).took_ns).sum() == 2


def test_reads_from_the_far_half_of_the_l2_take_longer():
    # Sixteen tiles: nine on the first GPC, which with three others is near to one half of the L2, one on each other.
    # Each launches 8 of at most 8. The last read of near warps is there at 8 x 10 + 4 ns; they decide at 89, and what
    # they launch is there at 97, before the last reads of the far ones, at 8 x 12 + 5, if these are late at all.
    work = spawns("sixteen", [np.full(16 * 2, 128)], item_ns=1000.0, base_ns=1.0, child_ns=0.0)
    options = Spawning(
        slots=132, resident=64 * 132, parent=2, child=32, warp=2, launch_ns=5.0, another_ns=0.0, gap_ns=0.0, prior=0,
        untried=8, window_ns=1000.0, ended=1, read_ns=8.0,
    )  # fmt: skip

    def launches(far_ns, seed):
        return np.flatnonzero(
            np.isfinite(run(work, replace(options, far_ns=far_ns, seed=seed), SPAWN).took_ns)[::2]
        ).tolist()

    first, others = [*range(9), 12, 13, 14], [9, 10, 11, 15]
    assert launches(0.0, 1) == [*range(16)]
    assert sorted({tuple(launches(2.0, seed)) for seed in range(8)}) == sorted({tuple(first), tuple(others)})


def test_children_slow_each_other():
    # Four tiles of a grid that start together: 0, 7, 14 and 21 ns longer. The last ends last.
    work = spawns("one", [np.array([16])], item_ns=10.0, base_ns=1.0, child_ns=2.0)
    options = Spawning(slots=8, resident=64, parent=2, child=4, warp=2, launch_ns=20.0, another_ns=0.0, gap_ns=0.0)
    assert run(work._replace(beside_ns=7.0), options, ALWAYS).time_ns == 1 + 20 + 2 + 3 * 7 + 10
    assert spawn(work, options, "always").child_ns == 2 + 10
    assert spawn(work._replace(beside_ns=7.0), options, "always").child_ns == 2 + 10 + (7 + 14 + 21) / 4
    assert spawn(work, options, "flat").to_json()["child_ns"] is None


def test_warps_that_launch_at_a_time_hold_each_other_up():
    work = spawns("four", [np.full(4, 1)], item_ns=10.0, base_ns=1.0, child_ns=0.0)
    options = Spawning(slots=8, resident=64, parent=4, child=4, warp=2, launch_ns=20.0, another_ns=3.0, gap_ns=0.0)
    assert run(work, options, ALWAYS).time_ns == 1 + 26 + 10
    # The second warp takes 7 ns more for each of its two launches, at most 4 with ``crowded``.
    assert run(work, replace(options, crowd_ns=7.0, crowded_ns=50.0), ALWAYS).time_ns == 1 + 26 + 14 + 10
    assert run(work, replace(options, crowd_ns=7.0, crowded_ns=4.0), ALWAYS).time_ns == 1 + 26 + 8 + 10
    assert run(work, replace(options, submit_ns=30.0), ALWAYS).time_ns == 1 + 20 + 2 * 2 * 30 + 10


def test_a_round_ends_when_its_grids_are_complete_one_after_the_other():
    work = spawns("two", [np.full(2, 1), np.full(2, 1)], item_ns=10.0, base_ns=1.0, child_ns=0.0)
    options = Spawning(slots=8, resident=64, parent=2, child=4, warp=2, launch_ns=20.0, another_ns=0.0, gap_ns=5.0)
    assert run(work, options, ALWAYS).time_ns == 2 * (1 + 20 + 10) + 5
    slow = replace(options, complete_ns=4.0, settle_ns=7.0)
    assert run(work, slow, ALWAYS).time_ns == 2 * (1 + 20 + 10 + 2 * 4 + 7) + 5
    assert run(work, replace(slow, first_ns=6.0), ALWAYS).time_ns == 2 * (1 + 20 + 10 + 2 * 10 + 7) + 5
    assert run(work, slow, FLAT).time_ns == 2 * (1 + 10) + 5
    # A thread that keeps 3 items ends at 1 + 20 + 30, and the grid is complete at 1 + 20 + 10 + 4 meanwhile.
    uneven = spawns("uneven", [np.array([3, 20])], item_ns=10.0, base_ns=1.0, child_ns=0.0)
    assert run(uneven, slow, THRESHOLD, threshold=10).time_ns == 51
    assert run(uneven, replace(slow, settle_ns=50.0), THRESHOLD, threshold=10).time_ns == 35 + 50
    # A grid is complete after those that its threads have launched: 1 + 20, 10 + 20, then three of 5 ns.
    nested = spawns("nested", [np.array([1])], [10.0, 5.0, 0.0, 0.0, 0.0], base_ns=1.0, child_ns=0.0,
                    below=[np.array([3]), np.zeros(3, np.int64)])  # fmt: skip
    assert run(nested, slow, ALWAYS).time_ns == 1 + 20 + 10 + 20 + 5 + 4 + 4 + 7


def test_threads_of_a_warp_do_items_with_sites_in_step():
    # Two threads keep items of 10 and 30 ns, the second of which has a site with two of 5 ns, of 9 in a child tile.
    work = spawns("step", [np.array([2, 1])], 5.0, base_ns=1.0, child_ns=0.0, threshold=3,
                  below=[np.array([0, 0, 2]), np.zeros(2, np.int64)])  # fmt: skip
    work = work._replace(own_ns=np.array([1.0, 1.0, 10.0, 10.0, 30.0, 5.0, 5.0]))
    options = Spawning(slots=8, resident=64, parent=2, child=4, warp=2, launch_ns=20.0, another_ns=0.0, gap_ns=0.0)
    assert run(work, options, FLAT).time_ns == 1 + 30 + (5 + 5) + 10


def test_warps_come_late_by_a_seed():
    work = spawns("two", [np.full(4, 4)], item_ns=10.0, base_ns=1.0, child_ns=0.0)
    options = Spawning(slots=8, resident=64, parent=2, child=4, warp=2, launch_ns=5.0, another_ns=0.0)
    times = [run(work, replace(options, jitter_ns=100.0, seed=seed), FLAT).time_ns for seed in (0, 0, 1)]
    assert times[0] == times[1] != times[2]
    assert all(41 <= ns <= 141 for ns in times)


def test_a_thread_decides_about_a_site_when_it_comes_there():
    # Items of 10 ns: the first thread keeps its two, and each of these has a site with three. The child that the second
    # thread launches at once lives 11 ns and ends at 26; before that one block may be tried, afterwards the rule knows.
    work = spawns("two", [np.array([2, 4])], 10.0, base_ns=0.0, child_ns=1.0, threshold=3,
                  below=[np.array([3, 3, 0, 0, 0, 0]), np.zeros(6, np.int64)])  # fmt: skip
    options = Spawning(
        slots=8, resident=64, parent=2, child=4, warp=2, launch_ns=5.0, another_ns=0.0, gap_ns=0.0, prior=0, untried=1
    )
    outcome = run(work, options, SPAWN, 3)
    assert np.flatnonzero(np.isfinite(outcome.took_ns)).tolist() == [1, 3]
    # The thread begins at 5, comes to its first site at 15 and does it inline until 45, to the second at 55.
    assert outcome.took_ns[[1, 3]].tolist() == [16.0, 16.0]
    assert outcome.time_ns == 55.0 + 16.0
