"""Whole recorded programs: joins, several consumers and repeated layers, synthesised and verified."""

from __future__ import annotations

import io
from collections import Counter
from contextlib import redirect_stdout
from importlib import import_module

import pytest

from tests.support.policies.recorded_modules import TILES, record
from tileprof.policy.format import from_dict, to_dict
from tileprof.policy.synthesis.candidates import TOLERANCE
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.verification.verifier import verify

PROGRAMS = {
    "llama": (["--layers", "2", "--tokens", "64"], True),
    "resnet38": (["--image", "32", "--channels-last", "--batch", "3"], False),
    "moe": (["--tokens", "32", "--width", "64", "--inner", "96"], False),
}
"""Options, and whether tensors have no values; the routes of the mixture of experts depend on values."""


@pytest.fixture(scope="module", params=list(PROGRAMS))
def program(request, tmp_path_factory):
    words, fake = PROGRAMS[request.param]
    module = import_module(f"tileprof.examples.{request.param}")

    def run() -> None:
        with redirect_stdout(io.StringIO()):
            module.main(words)

    path = tmp_path_factory.mktemp("examples") / "t.tileprof"
    graph = record(run, path, fake=fake, tile=TILES[:1])
    return request.param, graph, synthesise(graph, range(len(graph.launches)))


def test_a_whole_program_has_a_sound_policy_that_is_no_slower_than_with_a_semaphore_a_grid(program) -> None:
    _, graph, policy = program
    verdict = verify(from_dict(to_dict(policy)), graph)
    assert verdict.sound
    assert verdict.covered >= verdict.needed - len(verdict.renamable)
    assert policy.prediction["policy_us"] <= policy.prediction["stream_us"] * (1 + TOLERANCE) + 0.35 * len(
        policy.stages
    )


def test_joins_and_several_consumers_are_waited_for(program) -> None:
    name, _, policy = program
    if name == "resnet38":
        pytest.skip("its residuals are covered through the convolutions between, and need no wait of their own")
    into, out = Counter(e.consumer for e in policy.edges), Counter(e.producer for e in policy.edges)
    assert max(into.values()) > 1
    assert max(out.values()) > 1
    shared = Counter((e.producer, e.semaphores) for e in policy.edges)
    assert max(shared.values()) > 1, "consumers that wait for the same grouping share its semaphores"


def test_repeated_layers_get_one_policy(program) -> None:
    name, _, policy = program
    if name != "llama":
        pytest.skip("its layers differ")
    result = {}
    for number in (0, 1):
        inside = [n for n, s in enumerate(policy.stages) if f"layers.{number}." in s.module]
        result[number] = [
            (e.producer - inside[0], e.consumer - inside[0], e.kind, tuple(map(str, e.waits)), str(e.value))
            for e in policy.edges
            if e.producer in inside and e.consumer in inside
        ]
    assert result[0] == result[1]
    assert result[0]
