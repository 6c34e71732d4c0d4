"""The schedulers' statements about their sources' rules agree with the measurements of `bench_worth.py`."""

import inspect
import json
import sys
from pathlib import Path

import pytest

from tileprof.analysis.simulate import SCHEDULERS, spawning

ROOT = Path(__file__).parents[4]
sys.path.insert(0, str(ROOT / "tests" / "benchmarks" / "simulator"))

from bench_worth import RESULTS, RULES, WINDOW, rows_of, table  # noqa: E402 (found on the path from here on)

WITHOUT = {"list"}
"""Schedulers that follow their source in everything."""


@pytest.fixture(scope="module")
def results():
    return json.loads(RESULTS.read_text())


def test_the_results_are_those_of_all_rules(results):
    assert [(r["scheduler"], r["rule"], r["source"], r["here"]) for r in results] == [
        (r.scheduler, r.rule, r.source, r.here) for r in (*RULES, WINDOW)
    ]
    assert {r.scheduler for r in RULES} == set(SCHEDULERS) - WITHOUT


def test_each_scheduler_has_its_rows_in_its_docstring(results):
    for (name, _), row in rows_of(results).items():
        text = inspect.getdoc(spawning if name == "spawn" else type(SCHEDULERS[name]))
        assert row in text, f"{name}: {row}"


def test_the_page_has_the_table_of_all_rules(results):
    assert table(results) in (ROOT / "docs" / "simulator-accuracy.md").read_text(), table(results)
