"""``tileprof run`` without a GPU."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from dataclasses import replace
from io import StringIO

import pytest
from rich.progress import Progress

from tests.support.runtime.chains import convolutions, mlp
from tileprof.cli.verbs.run import VERB
from tileprof.errors import UserError
from tileprof.policy.format import Range
from tileprof.policy.format.expression import parse
from tileprof.runtime.executor import search


def run(*words: object) -> int:
    parser = ArgumentParser()
    VERB.prepare(parser)
    return VERB.run(parser.parse_args([str(w) for w in words]))


def test_a_sound_policy_runs_and_says_that_nothing_was_measured(tmp_path, capsys) -> None:
    convolutions().policy().save(tmp_path / "p.json")
    assert run(tmp_path / "p.json") == 0
    output = capsys.readouterr().out
    assert "found neither race nor deadlock" in output
    assert "y 2x9x9x8 float16: agrees with PyTorch" in output
    assert "nothing was measured" in output


def test_a_weakened_policy_fails_and_names_tiles_and_bytes(tmp_path, capsys) -> None:
    policy = mlp().policy()
    weak = replace(policy.edges[0], value=parse("0", ("x", "y", "z")))
    replace(policy, edges=(weak,)).save(tmp_path / "p.json")
    assert run(tmp_path / "p.json", "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["races"] > 0
    assert not document["numbers"][0]["same_in_every_order"]
    assert "before tile (" in document["findings"][0]
    assert "bytes of h (from byte" in document["findings"][0]


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


@pytest.mark.parametrize("words", [["--random", "4"], ["--delayed", "64"], ["--seed", "0"]])
def test_orders_mean_nothing_to_a_comparison(tmp_path, words) -> None:
    with pytest.raises(UserError, match=rf"^{words[0]} is about orders .* --compare measures and executes none"):
        run(tmp_path / "p.json", "--compare", *words)


@pytest.mark.parametrize("words", [["--compile", "9"], ["--compare", "--compile", "0"]])
def test_a_time_to_compile_is_for_comparisons_and_above_zero(tmp_path, words) -> None:
    with pytest.raises(UserError, match="--compile SECONDS needs --compare"):
        run(tmp_path / "p.json", *words)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def update_and_draw(progress: Progress, *words: object, update=Progress.update, **options: object) -> None:
    """Every step is drawn, not only those that last until the next tenth of a second."""
    update(progress, *words, **options)
    progress.refresh()


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_progress_is_shown_on_a_terminal_and_the_output_stays_the_same(tmp_path, capsys, monkeypatch, words) -> None:
    mlp().policy().save(tmp_path / "p.json")
    run(tmp_path / "p.json", *words)
    quiet = capsys.readouterr()
    assert quiet.err == ""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(Progress, "update", update_and_draw)
    run(tmp_path / "p.json", *words)
    progress = sys.stderr.getvalue()
    assert capsys.readouterr().out == quiet.out
    assert "watching accesses, execution 30 of 30" in progress
    assert "computing the stages by PyTorch" in progress
    assert "computing every tile, order 3 of 3" in progress


def test_a_search_says_how_many_executions_there_are() -> None:
    policy, actual = mlp().policy(), []
    result = search(policy, mlp().memory(), random=2, delayed=5, progress=lambda *at: actual.append(at))
    assert [number for number, _ in actual] == list(range(1, result.executions + 1))
    assert {most for _, most in actual} == {result.executions}


def test_a_policy_whose_waits_leave_the_grid_is_refused_with_its_file(tmp_path) -> None:
    policy = mlp().policy()
    away = replace(policy.edges[0], waits=tuple(Range.parse(text) for text in ("0", "y + 9", "0")))
    replace(policy, edges=(away,)).save(tmp_path / "away.json")
    with pytest.raises(UserError, match=r"away\.json: edge 0, awaited by stage 1 \(down\), axis v: tile 0 names 9"):
        run(tmp_path / "away.json")
