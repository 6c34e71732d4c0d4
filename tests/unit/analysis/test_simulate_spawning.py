"""Child grids: the compiled simulation against the plain one, and cases worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.analysis.plain_spawning import Plain
from tileprof.analysis.simulate.spawning import (
    ALWAYS,
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

options = st.builds(
    Spawning,
    slots=st.integers(1, 5),
    resident=st.integers(4, 12),
    parent=st.integers(1, 4),
    child=st.integers(1, 4),
    warp=st.integers(1, 3),
    launch_ns=costs,
    another_ns=costs,
    serve_ns=costs,
    window_ns=st.sampled_from([0.0, 4.0, 16.0]),
    queues=st.integers(1, 3),
    gap_ns=costs,
    prior=st.integers(0, 1),
    untried=st.sampled_from([0, 1, 3, 100]),
)


@settings(deadline=None, max_examples=400)
@given(rounds, st.integers(0, 3), st.integers(1, 5), options, st.integers(0, 2**32 - 1))
def test_the_compiled_simulation_equals_the_plain_one(items, policy, threshold, options, seed):
    item_ns = np.random.default_rng(seed).choice([0.5, 1.5, 4.0], sum(map(len, items)))
    work = spawns("random", [np.array(r, np.int64) for r in items], item_ns, base_ns=2.0, child_ns=1.0)
    fast, plain = run(work, options, policy, threshold), Plain(work, options, policy, threshold).run()
    assert fast.time_ns == plain.time_ns
    for a, b in ((fast.took_ns, plain.took_ns), (fast.estimate_ns, plain.estimate_ns)):
        assert np.allclose(a, b, equal_nan=True, rtol=1e-12)
    # No policy beats the work over all threads that run at a time, nor a round's own time.
    work_ns = (work.items * work.item_ns).sum() / min(
        options.resident, options.slots * max(options.parent, options.child)
    )
    filled = sum(bool(r) for r in items)
    assert fast.time_ns >= max(work_ns, 2.0 * filled) - 1e-9
    launched = np.isfinite(fast.took_ns)
    assert not (launched & (work.items == 0)).any()
    assert (fast.took_ns[launched] >= options.launch_ns + options.another_ns).all()


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
    # In warps of their own neither waits for the other's launch.
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
    ran = run(work, options, SPAWN)
    assert np.isfinite(ran.took_ns).tolist() == [True] * 4 + [False, True, False, True]
    assert np.isnan(ran.estimate_ns[:4]).all()
    # Assuming a full GPU from the first, a launch takes more than its 50 ns, which 5 items are not worth.
    few = spawns("few", [np.full(4, 5), np.full(4, 40)], item_ns=10.0, base_ns=1.0, child_ns=0.0)
    launched = np.isfinite(run(few, replace(options, prior=1), SPAWN).took_ns).tolist()
    assert launched == [False] * 4 + [True] * 4
    # It is not asked about threads that the program as written would not launch.
    assert not np.isfinite(run(few, replace(options, prior=1), SPAWN, 41).took_ns).any()


def test_rules_are_compared_with_flat_always_the_program_and_the_best_threshold():
    work = spawns("skewed", [np.array([1000, 1, 1, 1] * 8)] * 3)
    found = compare(work, Spawning(slots=16, resident=512, parent=32))
    flat, always, program, static, rule = found
    assert [f.policy for f in found] == ["flat", "always", "program", static.policy, "spawn"]
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
    assert len(POLICIES) == 4
