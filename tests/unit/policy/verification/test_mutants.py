"""The verifier refuses every harmful change of a policy."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.policies.graphs import Relation, graph_of
from tests.support.policies.mutants import KINDS, RESIDENCY_KINDS, Tally, exact_policy, harmful, mutants
from tests.support.policies.progress import hangs
from tests.support.policies.random_graphs import random_graph, residency_tally
from tests.support.synthetic_graphs import write_mlp
from tests.unit.policy.verification.small_policies import runs_without
from tileprof.analysis import build_graph
from tileprof.policy.format.lowering import lower
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.synthesis.stage_choice import stage_of
from tileprof.policy.verification.residency import _demands, _kept_out_one_by_one
from tileprof.policy.verification.verifier import verify
from tileprof.trace import load

ROOT = Path(__file__).parents[4]

MORE = int(os.environ.get("TILEPROF_MUTANTS", "600"))
"""Number of mutants of random graphs in the nightly run; TILEPROF_MUTANTS=10000 takes some minutes."""
COUNTS = pytest.mark.parametrize("count", [250, pytest.param(MORE, marks=pytest.mark.nightly)])

EACH = 18


@COUNTS
def test_the_verifier_objects_to_every_harmful_mutant_of_random_policies(
    count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    dice, tally = random.Random(7), Tally()
    while tally.total < count:
        graph = random_graph(dice)
        launches = range(len(graph.launches))
        policy = synthesise(graph, launches)
        if dice.random() < 0.5:
            policy = exact_policy(graph, policy.stages, launches, renamed=True)
        assert not harmful(policy, graph)
        for kind, mutant in mutants(policy, dice, EACH):
            tally.add(kind, mutant, graph)
    with capsys.disabled():
        print(f"\n{tally}")  # noqa: T201
    assert not tally.escapes, tally.escapes[0]
    assert tally.catches > tally.total / 3
    assert set(tally.kinds) == set(KINDS)


@COUNTS
def test_the_verifier_objects_to_every_policy_that_can_hang_and_to_no_other(
    count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = residency_tally(random.Random(5), count)
    with capsys.disabled():
        print(f"\n{tally}")  # noqa: T201
    assert not tally.escapes, tally.escapes[0]
    assert tally.cautious == 0
    assert set(tally.kinds) == set(RESIDENCY_KINDS)
    assert min(tally.harmful_kinds[kind] for kind in RESIDENCY_KINDS) > tally.total / 50


def test_the_verifier_objects_to_every_harmful_mutant_of_a_recorded_program(tmp_path, capsys) -> None:
    graph = build_graph(load(write_mlp(tmp_path / "mlp.tileprof", layers=1, tokens=512, hidden=512)))
    launches = list(range(len(graph.launches)))
    policy = synthesise(graph, launches)
    dice, tally = random.Random(11), Tally()
    for kind, mutant in mutants(policy, dice, 90):
        tally.add(kind, mutant, graph)
    with capsys.disabled():
        print(f"\n{tally}")  # noqa: T201
    assert not tally.escapes
    assert tally.catches > tally.total / 3


def test_the_oracle_agrees_with_one_that_looks_for_a_fixed_point() -> None:
    dice = random.Random(3)
    for _ in range(12):
        graph = random_graph(dice)
        policy = synthesise(graph, range(len(graph.launches)))
        for kind, mutant in mutants(policy, dice, 9):
            if kind == "early":
                continue
            every = {(s, t) for s, stage in enumerate(mutant.stages) for t in range(stage.tiles)}
            bad = runs_without(mutant, (-1, -1)) != every
            for p, c, b in graph.links[["producer", "consumer", "block"]].itertuples(index=False):
                parent, child, _ = graph.blocks[b].edges()
                for tile in set(parent.tolist()):
                    outcome = runs_without(mutant, (p, tile))
                    bad |= any((c, int(t)) in outcome for t in child[parent == tile])
            assert harmful(mutant, graph) == bad


def test_two_consumers_may_fill_a_device_that_neither_fills() -> None:
    relation: Relation = {(0, 1): {(0, t) for t in range(3)}, (0, 2): {(0, t) for t in range(3)}}
    graph = graph_of([(1, 1, 1), (3, 1, 1), (3, 1, 1)], relation, sms=6)
    assert synthesise(graph, [0, 1, 2]).options.wait_kernel
    graph = graph_of([(1, 1, 1), (3, 1, 1), (3, 1, 1)], relation, sms=7)
    assert not synthesise(graph, [0, 1, 2]).options.wait_kernel


def test_stages_that_could_each_be_kept_out_but_not_together_run() -> None:
    """Blocks that leave no room for one of the first three stages leave some for another of them."""
    small, wide, large = (128, 48, 48_000), (256, 96, 0), (1024, 64, 48_000)
    relation: Relation = {(n, n + 1): {(t, t) for t in range(tiles)} for n, tiles in enumerate((4, 8, 1))}
    grids = [(30, 1, 1), (21, 1, 1), (12, 1, 1), (2, 1, 1)]
    graph = graph_of(grids, relation, sms=4, kernels=[small, wide, small, large])
    policy = exact_policy(graph, tuple(stage_of(graph, n) for n in range(4)), range(4), renamed=True)
    policy = replace(policy, options=replace(policy.options, wait_kernel=False))
    demands = _demands(graph, range(4))
    assert _kept_out_one_by_one(policy, lower(policy), demands, {0, 1, 2}, sms=4) == {0, 1, 2}
    assert not hangs(policy, graph)
    assert verify(policy, graph).sound


def test_a_launch_between_stages_is_found_through_others() -> None:
    steps: Relation = {(n, n + 1): {(0, 0)} for n in range(3)}
    graph = graph_of([(1, 1, 1)] * 4, steps)
    policy = synthesise(graph, [0, 1, 2, 3])
    assert policy.edges
    ends = replace(policy, stages=(policy.stages[0], policy.stages[3]), semaphores=(), edges=(), guard={})
    assert [s.split()[1] for s in verify(ends, graph).never] == ["1", "2"]
