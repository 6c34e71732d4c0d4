"""``tileprof run`` where there is no GPU."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import replace

import pytest
from chains import convolutions, mlp

from tileprof.cli.run import VERB
from tileprof.errors import UserError
from tileprof.policy.expression import parse


def run(*words: object) -> int:
    parser = ArgumentParser()
    VERB.prepare(parser)
    return VERB.run(parser.parse_args([str(w) for w in words]))


def test_a_sound_policy_runs_and_says_that_nothing_was_measured(tmp_path, capsys) -> None:
    convolutions().policy().save(tmp_path / "p.json")
    assert run(tmp_path / "p.json") == 0
    said = capsys.readouterr().out
    assert "found neither race nor deadlock" in said
    assert "y 2x9x9x8 float16: agrees with PyTorch" in said
    assert "nothing was measured" in said


def test_a_weakened_policy_fails_and_names_tiles_and_bytes(tmp_path, capsys) -> None:
    policy = mlp().policy()
    weak = replace(policy.edges[0], value=parse("0", ("x", "y", "z")))
    replace(policy, edges=(weak,)).save(tmp_path / "p.json")
    assert run(tmp_path / "p.json", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["races"] > 0
    assert not found["numbers"][0]["same_in_every_order"]
    assert "before tile (" in found["findings"][0]
    assert "bytes of h (from byte" in found["findings"][0]


def test_a_wait_that_never_ends_is_reported_and_nothing_computed(tmp_path, capsys) -> None:
    policy = mlp().policy()
    strong = replace(policy.edges[0], value=parse("9", ("x", "y", "z")))
    replace(policy, edges=(strong,)).save(tmp_path / "p.json")
    assert run(tmp_path / "p.json") == 1
    assert "expected 9" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--random", "-1"], ["--delayed", "-2"]])
def test_negative_counts_are_refused(tmp_path, words) -> None:
    with pytest.raises(UserError, match="give a number from 0"):
        run(tmp_path / "p.json", *words)
