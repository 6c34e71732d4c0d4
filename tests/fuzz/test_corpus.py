"""Every input that a verb once did not refuse in one sentence, and a few hundred new ones."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.fuzz.harness import VERBS, kind_of, run
from tests.fuzz.inputs import draw

CORPUS = [json.loads(line) for line in Path(__file__).with_name("corpus.jsonl").read_text().splitlines()]
NEW = 250
"""Drawn from a fixed seed; `make fuzz` draws others."""


@pytest.mark.parametrize("line", CORPUS, ids=[f"{n}-{line['verb'][0]}" for n, line in enumerate(CORPUS)])
def test_an_input_that_once_failed_is_refused_or_taken(bases: Path, tmp_path: Path, line: dict) -> None:
    outcome = run(bases, tmp_path / "one", line["base"], line["operations"], line["verb"])
    assert not outcome.fault, outcome.fault


def test_other_inputs_end_with_0_1_or_2_and_without_a_warning(bases: Path, tmp_path: Path) -> None:
    dice, codes = random.Random(0), set()
    for number in range(NEW):
        base, operations = draw(dice, bases)
        verb = dice.choice(VERBS[kind_of(base)])
        outcome = run(bases, tmp_path / str(number), base, operations, verb)
        assert not outcome.fault, json.dumps({"base": base, "operations": operations, "verb": verb}) + outcome.fault
        codes.add(outcome.code)
    assert codes >= {0, 2}, "inputs that are refused and inputs that are not were drawn"
