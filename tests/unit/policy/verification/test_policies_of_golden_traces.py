"""Traces recorded on a real GPU: they are whole, their graphs have edges, and their policies are sound."""

from __future__ import annotations

from pathlib import Path

import pytest

import tileprof
from tileprof.analysis import build_graph
from tileprof.policy.format import from_dict, to_dict
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.verification.verifier import verify
from tileprof.trace import validate

GOLDEN = sorted((Path(__file__).parents[3] / "golden").glob("*.tileprof"))


def test_there_are_golden_traces() -> None:
    assert {"gemm_pair", "gpt2", "convolution"} <= {path.stem for path in GOLDEN}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_a_golden_trace_is_valid_and_its_policy_sound(path: Path) -> None:
    trace = tileprof.load(path)
    assert validate(trace) == []
    graph = build_graph(trace)
    launches = graph.launches["launch"].tolist()
    if len(launches) < 2:
        assert graph.links.empty
        return
    assert not graph.links.empty
    policy = synthesise(graph, launches)
    assert verify(from_dict(to_dict(policy)), graph).sound
    weaker_policy = to_dict(policy)
    del weaker_policy["edges"][0]
    assert not verify(from_dict(weaker_policy), graph).sound
