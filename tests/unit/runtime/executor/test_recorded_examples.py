"""Synthesised policies over recorded programs pass in every order; weakened ones do not."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

import tileprof
from tileprof import devices
from tileprof.analysis import build_graph
from tileprof.policy.format import WaitTable
from tileprof.policy.format.lowering import lower
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.verification.verifier import verify
from tileprof.record import Options
from tileprof.record.model.session import Session
from tileprof.record.model.tiles import load_all
from tileprof.runtime.executor import Memory, recorded_touches, search

PROGRAMS = {
    "mlp": ["--preset", "llama", "--tokens", "256"],
    "resnet38": ["--image", "64", "--dtype", "float16"],
    "gpt2": [],
}
LAUNCHES = 24


@pytest.fixture(scope="module", params=list(PROGRAMS))
def graph(request, tmp_path_factory):
    load_all()
    output = tmp_path_factory.mktemp("traces") / f"{request.param}.tileprof"
    program = import_module(f"tileprof.examples.{request.param}")
    session = Session(Options(program=("test",), output=output, fake=True), devices.get("H200"), ["test"])
    session.start()
    try:
        program.main(PROGRAMS[request.param])
    finally:
        session.stop()
    assert session.failure is None
    session.writer.close()
    return build_graph(tileprof.load(output))


@pytest.fixture(scope="module")
def policy(graph):
    return synthesise(graph, range(min(LAUNCHES, len(graph.launches))))


@pytest.fixture(scope="module")
def memory(graph, policy):
    rows = graph.launches["footprint"]
    touches = [
        recorded_touches(graph.footprint(int(rows.iloc[s.launch])), graph.recording.operands_of(s.launch), s.grid)
        for s in policy.stages
    ]
    return Memory.build([s.tiles for s in policy.stages], touches)


def test_a_synthesised_policy_runs_clean(policy, memory) -> None:
    assert policy.edges
    assert search(policy, memory, random=2, delayed=24).clean


def test_a_policy_without_an_edge_is_caught_where_the_verifier_says_so(graph, policy, memory) -> None:
    for number in np.linspace(0, len(policy.edges) - 1, 4).astype(int):
        edges = tuple(e for n, e in enumerate(policy.edges) if n != number)
        bad = replace(policy, edges=edges)
        findings = search(bad, memory, random=2, delayed=24, enough=1)
        if findings.clean:  # a race of one tile among hundreds: hold back each of them
            findings = search(bad, memory, random=0, delayed=sum(s.tiles for s in policy.stages), enough=1)
        assert findings.clean == verify(bad, graph).sound


def test_a_wait_that_names_the_wrong_semaphore_is_caught(graph, policy, memory) -> None:
    """The first wait of a tile goes to the next semaphore, where there is more than one."""
    attempts = 0
    for number, waits in enumerate(lower(policy)):
        count = len(waits.posts)
        if count < 2 or len(waits.semaphore) == 0 or attempts == 3:
            continue
        attempts += 1
        semaphores = waits.semaphore.copy()
        semaphores[0] = (semaphores[0] + 1) % count
        value = np.minimum(waits.value, waits.posts[semaphores])
        edge = replace(
            policy.edges[number], value=tuple(value.tolist()),
            waits=WaitTable(tuple(waits.indptr.tolist()), tuple(semaphores.tolist())),
        )  # fmt: skip
        bad = replace(policy, edges=(*policy.edges[:number], edge, *policy.edges[number + 1 :]))
        sound = verify(bad, graph).sound
        assert search(bad, memory, delayed=10**6 if memory.base[-1] < 2000 else 64, enough=1).clean == sound
