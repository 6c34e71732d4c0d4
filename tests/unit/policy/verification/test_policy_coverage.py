"""What a policy awaits and misses, tile by tile, compared with its waits read one at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from tests.support.policies.graphs import graph_of
from tests.unit.policy.verification.small_policies import cases
from tileprof.policy.format import PolicyError
from tileprof.policy.format.lowering import lower
from tileprof.policy.synthesis.dependency_file import parse_dependencies
from tileprof.policy.verification.awaited_tiles import wait_block
from tileprof.policy.verification.pair_waits import pair_waits
from tileprof.policy.verification.verifier import verify


def edges(block):
    """Return (producer tile, consumer tile) of a relation."""
    if block is None:
        return set()
    parent, child, _ = block.edges()
    return set(zip(parent.tolist(), child.tolist(), strict=True))


def awaited_one_by_one(policy):
    """Return, by pair of stages, (producer tile, consumer tile) for each tile that posts what a tile awaits."""
    matches = {}
    for waits in lower(policy):
        pairs = matches.setdefault((waits.edge.producer, waits.edge.consumer), set())
        for tile in range(len(waits.indptr) - 1):
            for semaphore in waits.semaphore[waits.indptr[tile] : waits.indptr[tile + 1]].tolist():
                pairs |= {(t, tile) for t, of in enumerate(waits.of.tolist()) if of == semaphore}
    return matches


def test_awaited_tiles_are_those_of_the_trace_where_a_policy_numbers_tiles_in_another_order():
    text = "grid up 4\ngrid down 4\ndep down on up(x..min(3, x + 1))"
    [waits] = lower(parse_dependencies(f"tileprof dependencies 1\n{text}").policy())
    producer, consumer = np.array([2, 0, 3, 1]), np.array([1, 3, 0, 2])
    pairs = edges(wait_block(waits, producer, consumer))
    numbers = {(int(producer[parent]), int(consumer[child])) for parent, child in pairs}
    assert numbers == {(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)}


@settings(deadline=None)
@given(cases())
def test_awaited_missing_and_excess_are_those_of_single_waits(case):
    policy, grids, relation = case
    graph = graph_of(grids, relation)
    try:
        verdict = verify(policy, graph)
    except PolicyError:
        return
    actual = {(w.producer, w.consumer): w for w in pair_waits(policy, graph, verdict)}
    awaited_tiles = awaited_one_by_one(policy)
    for key in {*actual, *(k for k, pairs in awaited_tiles.items() if pairs)}:
        assert edges(actual[key].awaited) == awaited_tiles.get(key, set())
        assert actual[key].excess == len(awaited_tiles.get(key, set()) - relation.get(key, set()))
        rows = verdict.missing[(verdict.missing["producer"] == key[0]) & (verdict.missing["consumer"] == key[1])]
        assert edges(actual[key].missing) == set(zip(rows["producer_tile"], rows["consumer_tile"], strict=True))
