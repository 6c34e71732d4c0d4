"""In-order dispatch, compared with a simple simulation that examines every tile at every event."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.synthetic_graphs import durations, random_graphs
from tileprof.analysis.bounds.problem import problem
from tileprof.analysis.inorder import Costs, in_order


def naive(p, units, capacity, costs, *, wait_inside):
    """Dispatch one tile after the other, each at the first moment at which enough slots are free."""
    slots = []
    ends = np.zeros(int(p.tile_base[-1]))
    now, floor = 0.0, 0.0
    for launch in range(len(p.launch)):
        floor = now + costs.launch_ns if launch else 0.0
        for local in range(int(p.tile_base[launch + 1] - p.tile_base[launch])):
            while sum(u for e, u in slots if e > now) + units[launch] > capacity:
                now = min(e for e, _ in slots if e > now)
            begin = max(now, floor)
            life = p.ns[p.ns_at[launch] + local]
            end = begin + life
            for link in range(p.links_at[launch], p.links_at[launch + 1]):
                r = p.relation[link]
                s = p.set_of[p.tile_at[r] + local]
                if s < 0:
                    continue
                first, stop = p.indptr[p.set_at[r] + s], p.indptr[p.set_at[r] + s + 1]
                for e in range(p.entry_at[r] + first, p.entry_at[r] + stop):
                    ready = ends[p.tile_base[p.producer[link]] + p.parent[e]] + costs.wait_ns
                    end = max(end, ready + life * ((1 - p.first[e]) if wait_inside else 1.0))
            if launch in p.producer:
                end += costs.post_ns
            ends[p.tile_base[launch] + local] = end
            slots.append((end, units[launch]))
    return ends


@settings(max_examples=100, deadline=None)
@given(random_graphs(), st.integers(1, 4), st.booleans(), st.sampled_from([0.0, 7.0]))
def test_ends_are_those_of_the_naive_simulation(case, capacity, inside, cost) -> None:
    g, lives = case
    p = problem(g, durations(lives), reuse=True)
    units = np.minimum(np.arange(len(p.launch)) % 2 + 1, capacity)
    costs = Costs(cost, cost, cost)
    actual = in_order(p, units, capacity, costs, wait_inside=inside)
    assert actual == pytest.approx(naive(p, units, capacity, costs, wait_inside=inside))
