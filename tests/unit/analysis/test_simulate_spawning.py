"""Child grids: the compiled simulation against the plain one, and cases worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tileprof.analysis.simulate.spawning_plain import Plain
from tileprof.analysis.workloads.nested import spawns
from tileprof.errors import UserError

rounds = st.lists(st.lists(st.integers(0, 12), max_size=9), min_size=1, max_size=4)
costs = st.sampled_from([0.0, 1.0, 2.5, 10.0])


@settings(deadline=None, max_examples=300)
@given(
    rounds,
    st.integers(0, 3),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    costs,
    costs,
    costs,
    st.integers(0, 1),
)
def test_the_compiled_simulation_equals_the_plain_one(
    items, policy, threshold, slots, threads, queues, launch, another, gap, prior
):
    work = spawns("random", [np.array(r, np.int64) for r in items], item_ns=1.5, base_ns=2.0)
    options = Spawning(slots, threads, launch, another, queues, gap, prior)
    fast, plain = run(work, options, policy, threshold), Plain(work, options, policy, threshold).run()
    assert fast.time_ns == plain.time_ns
    for a, b in ((fast.took_ns, plain.took_ns), (fast.estimate_ns, plain.estimate_ns)):
        assert np.allclose(a, b, equal_nan=True, rtol=1e-12)
    # No policy beats the work over all threads, nor a round's own time.
    work_ns = work.items.sum() * 1.5 / (slots * threads)
    filled = sum(bool(r) for r in items)
    assert fast.time_ns >= max(work_ns, 2.0 * filled) - 1e-9


def test_flat_waits_for_the_longest_thread_and_children_share_the_slots():
    work = spawns("one", [np.array([9, 0, 0, 0])], item_ns=10.0, base_ns=1.0)
    options = Spawning(slots=2, threads=2, launch_ns=20.0, another_ns=3.0, queues=1, gap_ns=0.0)
    assert run(work, options, FLAT).time_ns == 91.0
    # Five child tiles of 11 ns on two slots, 20 ns after the launch.
    assert run(work, options, ALWAYS).time_ns == 20 + 3 * 11
    assert run(work, options, THRESHOLD, 10).time_ns == 91.0
    assert run(work, options, THRESHOLD, 9).time_ns == 53.0


def test_later_launches_of_a_tile_arrive_later_and_queue():
    work = spawns("two", [np.array([1, 1])], item_ns=10.0, base_ns=0.0)
    options = Spawning(slots=4, threads=2, launch_ns=20.0, another_ns=3.0, queues=4, gap_ns=0.0)
    assert run(work, options, ALWAYS).time_ns == 33.0
    assert run(work, replace(options, queues=1), ALWAYS).time_ns == 40.0


def test_the_rule_launches_what_is_worth_it_once_it_has_seen_children():
    first = np.full(4, 8)
    work = spawns("learns", [first, np.array([1, 40, 1, 40])], item_ns=10.0, base_ns=1.0)
    options = Spawning(slots=8, threads=4, launch_ns=50.0, another_ns=0.0, queues=32, gap_ns=0.0, prior=0)
    ran = run(work, options, SPAWN)
    assert np.isfinite(ran.took_ns).tolist() == [True] * 4 + [False, True, False, True]
    assert np.isnan(ran.estimate_ns[:4]).all()
    # Assuming a full GPU from the first, a launch takes more than its 50 ns, which 5 items are not worth.
    few = spawns("few", [np.full(4, 5), np.full(4, 40)], item_ns=10.0, base_ns=1.0)
    assert np.isfinite(run(few, replace(options, prior=1), SPAWN).took_ns).tolist() == [False] * 4 + [True] * 4


def test_rules_are_compared_with_flat_always_and_the_best_threshold():
    work = spawns("skewed", [np.array([1000, 1, 1, 1] * 8)] * 3)
    flat, always, static, rule = compare(work, Spawning(slots=16, threads=32))
    assert [flat.policy, always.policy, rule.policy] == ["flat", "always", "spawn"]
    assert static.time_ns <= min(flat.time_ns, always.time_ns)
    assert flat.launched == 0
    assert always.inlined == 0
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
    assert len(POLICIES) == 4
