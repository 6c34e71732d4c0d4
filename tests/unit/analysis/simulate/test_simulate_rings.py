"""Tiles that a co-pilot sends into rings, and commands that it overwrites: each tile runs once, after its parents, on
one worker at a time. Cases are computed by hand.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.synthetic_graphs import (
    DEVICE,
    all_to_all,
    durations,
    edges_of,
    footprint,
    graph,
    one_to_one,
    random_graphs,
    trace,
)
from tileprof.analysis.bounds.problem import problem, successors
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.analysis.simulate.rings import Rings, run
from tileprof.devices import Device
from tileprof.errors import UserError

costs = st.sampled_from([0.0, 0.0, 1.0, 2.5])
rings = st.builds(Rings, st.integers(1, 4), st.integers(1, 4), st.booleans(), st.booleans(), *[costs] * 6)


@settings(max_examples=400, deadline=None)
@given(random_graphs(), rings, st.randoms(use_true_random=False), st.integers(1, 4))
def test_every_tile_runs_once_after_its_parents_and_workers_run_one_at_a_time(case, costs, dice, grades):
    g, lives = case
    p = problem(g, durations(lives), reuse=True)
    place = np.array(dice.sample(range(p.tiles), p.tiles), np.int64)
    outcome = run(p, successors(p), costs, place, place * grades // max(p.tiles, 1))
    assert np.isfinite(outcome.end_ns).all()
    for parent, child, *_ in edges_of(g, reuse=True):
        assert outcome.begin_ns[child] >= outcome.end_ns[parent]
    for worker in range(costs.workers):
        mine = np.flatnonzero(outcome.worker == worker)
        mine = mine[np.lexsort((outcome.end_ns[mine], outcome.begin_ns[mine]))]
        assert (outcome.begin_ns[mine][1:] >= outcome.end_ns[mine][:-1]).all()
    assert outcome.too_late <= outcome.overwritten
    assert costs.overwrite or not outcome.overwritten


def simulate(g, lives, grade=None, **arguments):
    p = problem(g, durations(lives), reuse=True)
    grade = np.zeros(p.tiles, np.int64) if grade is None else np.array(grade)
    place = np.empty(p.tiles, np.int64)
    place[np.lexsort((np.arange(p.tiles), grade))] = np.arange(p.tiles)
    return run(p, successors(p), Rings(**arguments), place, grade)


CHAIN = graph([2, 2], [(0, 1, one_to_one(2))])


def test_a_tile_sent_ahead_starts_without_the_link_and_a_ready_one_costs_a_round_trip():
    lives = [[10.0, 10.0], [5.0, 5.0]]
    link = {"up_ns": 3.0, "down_ns": 4.0, "decide_ns": 1.0, "fetch_ns": 0.5, "local_ns": 2.0}
    ready = simulate(CHAIN, lives, workers=2, depth=2, ahead=False, **link)
    assert sorted(ready.end_ns[2:]) == [10.5 + 3 + 1 + 4 + 0.5 + 5, 10.5 + 3 + 1 + 1 + 4 + 0.5 + 5]
    ahead = simulate(CHAIN, lives, workers=2, depth=2, **link)
    assert ahead.end_ns[2:].tolist() == [10.5 + 2 + 0.5 + 5] * 2
    assert ahead.deciding_ns == 0.0


def test_an_urgent_tile_overwrites_the_next_command_and_that_tile_runs_later():
    """One worker; an urgent chain of two tiles of 4 ns beside three tiles of 10 ns."""
    g = graph([1, 3, 1], [(0, 2, all_to_all(1, 1))])
    lives, grade = [[4.0], [10.0] * 3, [4.0]], [0, 1, 1, 1, 0]
    link = {"workers": 1, "ahead": False, "up_ns": 1.0, "down_ns": 1.0}
    without_overwrite = simulate(g, lives, grade, depth=3, **link)
    assert without_overwrite.end_ns[4] == 4 + 10 + 10 + 4
    with_overwrite = simulate(g, lives, grade, depth=3, overwrite=True, **link)
    assert with_overwrite.end_ns[4] == 4 + 10 + 4
    assert (with_overwrite.overwritten, with_overwrite.too_late) == (1, 0)
    assert with_overwrite.end_ns.max() == without_overwrite.end_ns.max() == 38
    # The round trip takes longer than a tile: both commands have been taken when others arrive for them.
    late = simulate(g, lives, grade, depth=3, overwrite=True, **link | {"up_ns": 6.0, "down_ns": 5.0})
    assert late.overwritten == late.too_late == 2
    assert late.end_ns[4] == 24 + 6 + 5 + 4


def test_a_worker_takes_its_next_command_before_its_tile_has_ended():
    """Four tiles of 10 that wait for nothing: fetching the next command lasts 3 of them, or what the lead leaves."""
    g, lives = graph([4], []), [[10.0] * 4]
    for lead_ns, more_ns in ((0.0, 3.0), (2.0, 1.0), (5.0, 0.0), (50.0, 0.0)):
        outcome = simulate(g, lives, workers=1, depth=4, fetch_ns=3.0, lead_ns=lead_ns)
        assert outcome.end_ns.max() == 3 + 10 + 3 * (more_ns + 10)
    # A command that is sent in answer to an end is late for any lead.
    link = {"workers": 1, "depth": 1, "up_ns": 2.0, "down_ns": 4.0, "fetch_ns": 3.0}
    assert simulate(g, lives, lead_ns=5.0, **link).end_ns.max() == 4 * (3 + 10) + 3 * (2 + 4)
    # An urgent tile that comes after the worker has taken its next command waits for that one.
    g = graph([1, 3, 1], [(0, 2, all_to_all(1, 1))])
    lives, grade = [[4.0], [10.0] * 3, [4.0]], [0, 1, 1, 1, 0]
    link = {"workers": 1, "ahead": False, "up_ns": 1.0, "down_ns": 1.0, "depth": 3, "overwrite": True}
    ends_ns = [simulate(g, lives, grade, lead_ns=ns, **link).end_ns[4] for ns in (0.0, 7.0, 9.0)]
    assert ends_ns == [4 + 10 + 4, 4 + 10 + 4, 4 + 10 + 10 + 4]


def test_the_scheduler_ties_tiles_to_workers_and_says_when_the_urgent_program_ends():
    g = graph([1, 3, 1], [(0, 2, all_to_all(1, 1))])
    device = Device.from_dict(DEVICE | {"sms": 1, "blocks_per_sm": 1})
    launches = [
        {"footprint": n, "block_x": 256, "blocks_per_sm": 1, "duration_ns": ns} for n, ns in enumerate((4, 30, 4))
    ]
    feet = {n: footprint(tiles, duration_ns=ns) for n, (tiles, ns) in enumerate(((1, 4), (3, 10), (1, 4)))}
    g.recording = trace(launches, feet, device=device)
    ways = {
        text: Simulator(g).run(scheduler(f"ccks:depth=3,speculate=0,up=1ns,down=1ns,decide=0ns,fetch=0ns{text}"))
        for text in ("", ",urgent=0", ",urgent=0,overwrite=1")
    }
    assert [way.end_ns[4] for way in ways.values()] == [40, 28, 18]
    assert ways[",urgent=0"].notes == ("The program of launch 0 ends after 0.0 us.",)
    assert ways[",urgent=0,overwrite=1"].notes[0] == "1 command overwritten, 0 of them too late."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("depth=1,overwrite=1", "overwrite=1 takes depth=2 or more, not 1"),
        ("depth=13", "depth is 13, expected at least 0 and at most 12"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        scheduler(f"ccks:{options}")


@pytest.mark.parametrize("options", ["overwrite=1", "urgent=7"])
def test_what_needs_rings_has_the_depth_of_the_runtime(options):
    assert scheduler(f"ccks:{options}").depth == 2
