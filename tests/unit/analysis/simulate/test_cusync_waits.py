"""The cusync scheduler charges every wait in the main loop, and no other."""

import numpy as np
import pytest
from hypothesis import given, settings

from tests.support.synthetic_graphs import block, durations, footprint, graph, random_graphs, trace
from tileprof.analysis.bounds.problem import problem
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.analysis.simulate.schedulers.cusync import stops
from tileprof.errors import UserError

ENTRY = "cusync:post_ns=0,poll_ns=0,inside=0"
FREE = "cusync:post_ns=0,poll_ns=0,inside=1"


def pair(sets, set_of, lives):
    """Return two launches on the toy GPU's two slots, whose blocks fill an SM each."""
    tiles = [len(x) for x in lives]
    g = graph(tiles, [(0, 1, block(sets, set_of))])
    footprints = {i: footprint(len(life), duration_ns=life) for i, life in enumerate(lives)}
    g.recording = trace([{"footprint": i, "timing": "modelled", "block_x": 256} for i in footprints], footprints)
    return g


def time_of(g, text):
    return Simulator(g).run(scheduler(text)).time_ns


def stops_by_hand(p):
    """Return the largest number of wait points of each launch, tile by tile, summed over its producers."""
    most = [0] * len(p.launch)
    for producer, consumer in {*zip(p.producer.tolist(), p.consumer.tolist(), strict=True)}:
        counts = [0]
        for t in range(p.tile_base[consumer + 1] - p.tile_base[consumer]):
            needs = {}
            for link in np.flatnonzero((p.producer == producer) & (p.consumer == consumer)):
                r = p.relation[link]
                k = p.set_of[p.tile_at[r] + t]
                for e in range(p.indptr[p.set_at[r] + k], p.indptr[p.set_at[r] + k + 1]) if k >= 0 else ():
                    parent, first = p.parent[p.entry_at[r] + e], float(p.first[p.entry_at[r] + e])
                    needs[parent] = min(needs.get(parent, 1.0), first)
            counts.append(len(set(needs.values())))
        most[consumer] += max(counts)
    return most


@settings(max_examples=150, deadline=None)
@given(random_graphs())
def test_stops_are_the_moments_at_which_the_neediest_tile_needs_parents(case):
    g, lives = case
    p = problem(g, durations(lives), reuse=True, unknown_first=0.0)
    assert stops(p).tolist() == stops_by_hand(p)
    # The same producers again, through the hazards of another link: a relation of each pair backwards in time.
    twice = {name: np.concatenate([getattr(p, name), getattr(p, name)]) for name in ("producer", "consumer")}
    other = p._replace(**twice, relation=np.concatenate([p.relation, _shifted_problem(p)]))
    assert stops(other).tolist() == stops_by_hand(other)


def _shifted_problem(p):
    """Return, for each link, the relation of another link between launches with as many tiles, if there is one."""
    tiles = np.diff(p.tile_base)
    ends = [(tiles[a], tiles[b]) for a, b in zip(p.producer, p.consumer, strict=True)]
    return np.array([p.relation[max(k for k in range(len(ends)) if ends[k] == end)] for end in ends], np.int64)


def test_each_wait_after_the_first_costs_its_time():
    # The consumer's tile needs one parent at its start, two at its middle.
    g = pair([[(0, 1.0, 0.0), (1, 1.0, 0.5), (2, 1.0, 0.5)]], [0], [[10.0] * 3, [10.0]])
    assert time_of(g, f"{FREE},wait_ns=0") == 25.0  # beside the third tile from 10 on, with half of its work after it
    assert time_of(g, f"{FREE},wait_ns=2") == 26.0  # a duration of 12, half of it after the wait
    assert time_of(g, f"{ENTRY},wait_ns=2") == 30.0


def test_the_faster_place_to_wait_is_taken_and_named():
    g = pair([[(0, 1.0, 0.0), (1, 1.0, 0.5), (2, 1.0, 0.5)]], [0], [[10.0] * 3, [10.0]])
    for wait_ns, time_ns, message in ((2, 26.0, "where bytes are needed"), (20, 30.0, "at entry")):
        outcome = Simulator(g).run(scheduler(f"cusync:post_ns=0,poll_ns=0,wait_ns={wait_ns}"))
        assert outcome.time_ns == time_ns
        assert f"The fastest of its variants is shown: waits {message}." in outcome.notes[-1]


def test_parents_that_are_needed_at_one_moment_are_one_wait():
    g = pair([[(0, 1.0, 0.0), (1, 1.0, 0.0)]], [0], [[10.0] * 2, [10.0]])
    assert time_of(g, f"{FREE},wait_ns=1000") == 20.0


def test_tiles_that_share_their_lives_keep_them_when_only_one_launch_waits_more():
    g = pair([[(0, 1.0, 0.0), (1, 1.0, 0.5)]], [0, 0], [[10.0] * 2, [10.0] * 2])
    schedule = Simulator(g).run(scheduler(f"{FREE},wait_ns=6"))
    assert np.allclose(schedule.end_ns, [10.0, 10.0, 26.0, 26.0])


def test_waits_are_inside_or_at_entry():
    with pytest.raises(UserError, match="inside is 3, expected at least 0 and at most 2"):
        scheduler("cusync:inside=3")
