"""Every input that a verb once did not refuse in one sentence, and a few hundred new ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz.harness import case_of, run

CORPUS = [json.loads(line) for line in Path(__file__).with_name("corpus.jsonl").read_text().splitlines()]
NEW = 250
"""Drawn from a fixed seed; `make fuzz` draws others."""


@pytest.mark.parametrize("line", CORPUS, ids=[f"{n}-{line['verb'][0]}" for n, line in enumerate(CORPUS)])
def test_an_input_that_once_failed_is_refused_or_taken(bases: Path, tmp_path: Path, line: dict) -> None:
    outcome = run(bases, tmp_path / "one", line["base"], line["operations"], line["verb"])
    assert not outcome.fault, outcome.fault


def test_other_inputs_end_with_0_1_or_2_and_without_a_warning(bases: Path, tmp_path: Path) -> None:
    codes = set()
    for number in range(NEW):
        one = case_of(0, number, bases)
        outcome = run(bases, tmp_path / str(number), one["base"], one["operations"], one["verb"])
        assert not outcome.fault, json.dumps(one) + outcome.fault
        codes.add(outcome.code)
    assert codes >= {0, 2}, "inputs that are refused and inputs that are not were drawn"
