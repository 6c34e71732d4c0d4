"""The words that the decoder's tiles poll are those of the data that they read, in adversarial orders; a missing poll
is detected.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.runtime.decoder_shapes import TINY
from tileprof.policy.format import Policy
from tileprof.policy.format.document import WaitTable
from tileprof.runtime.decode.handover import KINDS, Handover
from tileprof.runtime.executor import Memory, Program, delaying, execute, search

CASES = {
    "chunks of the context": Handover(TINY, 132, 200),
    "one chunk": Handover(TINY, 132, 3),
    "more heads than blocks": Handover(replace(TINY, batch=8), 8, 200),
    "wide heads, one sequence": Handover(replace(TINY, batch=1, head_dim=128), 16, 255),
}
LAYERS = 2


def memory(handover: Handover) -> Memory:
    tiles = [handover.tiles(kind) for _ in range(LAYERS) for kind in KINDS]
    return Memory.build(tiles, handover.touches(LAYERS))


@pytest.mark.parametrize("delayed", [100, pytest.param(300, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", CASES)
def test_whatever_order_the_polls_allow_no_tile_reads_what_is_not_written(name, delayed):
    handover = CASES[name]
    findings = search(handover.policy(LAYERS), memory(handover), delayed=delayed)
    assert findings.clean, findings.sentences()


@pytest.mark.parametrize("name", CASES)
def test_every_word_that_is_read_is_written_once_in_a_launch(name):
    handover = CASES[name]
    write_rows = [
        handover.writes(layer, kind, t)
        for layer in range(LAYERS)
        for kind in KINDS
        for t in range(handover.tiles(kind))
    ]
    words, times = np.unique(np.concatenate(write_rows), return_counts=True)
    assert times.max() == 1
    read = np.concatenate([
        handover.reads(layer, kind, t) for layer in range(LAYERS) for kind in KINDS for t in range(handover.tiles(kind))
    ])  # fmt: skip
    assert np.isin(read, words).all()


@pytest.mark.parametrize("name", CASES)
def test_a_poll_that_is_left_out_is_caught(name):
    handover = CASES[name]
    policy, watch = handover.policy(LAYERS), memory(handover)
    generator = np.random.default_rng(0)
    catches = 0
    for number, edge in enumerate(policy.edges):
        assert isinstance(edge.waits, WaitTable)
        consumer = int(generator.integers(len(edge.waits.indptr) - 1))
        begin, end = edge.waits.indptr[consumer : consumer + 2]
        if begin == end:
            continue
        early = runs_early(policy, number, int(generator.integers(begin, end)), watch)
        assert early or already_ordered(policy, number), (
            f"{policy.stages[edge.consumer].name} after {policy.stages[edge.producer].name}"
        )
        catches += early
    assert catches >= 2 * len(KINDS) - 1


def runs_early(policy: Policy, number: int, wait: int, watch: Memory) -> bool:
    """Return whether a tile races without one wait of an edge, while a tile is held back that posts what it waited
    for.
    """
    edge = policy.edges[number]
    assert isinstance(edge.waits, WaitTable)
    mutant = Program.of(without(policy, number, wait))
    semaphore = mutant.first[edge.semaphores] + edge.waits.semaphore[wait]
    posting = np.searchsorted(mutant.posts_of, np.flatnonzero(mutant.posts == semaphore), side="right") - 1
    return any(execute(mutant, delaying(mutant, int(node)), watch).races for node in posting)


def already_ordered(policy: Policy, number: int) -> bool:
    """Return whether a chain of other stages, each of which waits for all of the one before, orders the two stages
    anyway, as for residuals.
    """
    edge = policy.edges[number]
    return edge.consumer - edge.producer > 1


def without(policy: Policy, number: int, wait: int) -> Policy:
    """Return the policy without one wait of an edge."""
    edge = policy.edges[number]
    assert isinstance(edge.waits, WaitTable)
    assert isinstance(edge.value, tuple)
    indptr = tuple(p - (p > wait) for p in edge.waits.indptr)
    semaphores = edge.waits.semaphore[:wait] + edge.waits.semaphore[wait + 1 :]
    mutant = replace(edge, waits=WaitTable(indptr, semaphores), value=edge.value[:wait] + edge.value[wait + 1 :])
    return replace(policy, edges=(*policy.edges[:number], mutant, *policy.edges[number + 1 :]))
