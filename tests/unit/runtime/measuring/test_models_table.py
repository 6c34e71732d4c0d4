"""The table that `measure_models.py` makes of its rows, and the page about whole models, which contains it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[4]
sys.path.append(str(ROOT / "tests/gpu/measuring/models"))

from measure_models import merge, names, sentence, table, what_ran  # noqa: E402 - found there

RESULTS = ROOT / "tests/gpu/results/models.json"
ROW = {
    "compile_seconds": {"eager": 0.5, "inductor": 20.0, "tileprof": 8.0},
    "error": {"eager": 3e-3, "inductor": 1e-3, "tileprof": 2e-3},
    "predicted_us": 104.2,
    "peak_mb": {"eager": 301.2, "inductor": 290.0, "tileprof": 299.6},
    "us": {"eager": [300.0, 290.0, 320.0], "inductor": [200.0, 199.0, 210.0], "tileprof": [100.0, 99.0, 110.0]},
    "log": ["taken: a decoder", "whole program: 100.0 us against Inductor's 200.0 us; kept tileprof's (a decoder)"],
}


def test_a_row_has_times_gain_errors_and_the_program_that_ran() -> None:
    (line,) = table({"rows": {"GPT-2, 128 tokens": ROW}})[2:]
    assert line == "| GPT-2, 128 tokens | 300 | 200 | 100 | 104 | 2.00 | 2.0e-03, 1.0e-03 | 300, 290 | a decoder |"


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (["whole program: 3.0 us against Inductor's 2.0 us; kept Inductor's (a decoder)"], "Inductor"),
        (["left to Inductor: shapes are dynamic"], "Inductor"),
        ([*ROW["log"], "whole program: Inductor's from now on: semaphore 7"], "Inductor"),
        ([], ""),
    ],
)
def test_what_ran_is_inductors_program_unless_ours_was_kept(log, message) -> None:
    assert what_ran({"log": log}) == message


def test_a_model_that_failed_says_why_and_takes_no_good_rows_place(tmp_path) -> None:
    out, more, worse = (tmp_path / f"{n}.json" for n in ("out", "more", "worse"))
    more.write_text(json.dumps({"measured": "2026-11-22", "machine": {}, "rows": {"VGG-16": ROW}}))
    worse.write_text(
        json.dumps(
            {
                "measured": "2026-11-23",
                "rows": {"VGG-16": {"failed": "out of time"}, "ResNet-18": {"failed": "no memory"}},
            }
        )
    )
    merge(out, [more, worse])
    document = json.loads(out.read_text())
    assert document["rows"]["VGG-16"] == {"measured": "2026-11-22", **ROW}
    assert table(document)[2].startswith("| ResNet-18 |")
    assert "no memory" in table(document)[2]
    assert sentence(document["rows"]["ResNet-18"]) == "FAILED: no memory"


@pytest.mark.parametrize(
    ("held_out", "everything", "only", "expected"),
    [
        (False, False, None, 11),
        (True, False, None, 12),
        (False, True, None, 23),
        (False, True, ["T5", "VGG"], 2),
        (False, False, ["LLaMA-1B, 1 token"], 1),
        (False, False, ["LLaMA"], 4),
        (False, False, ["T5"], 1),
        (False, False, ["nothing of this name"], 0),
    ],
)
def test_models_are_chosen_by_group_and_name(held_out, everything, only, expected) -> None:
    options = argparse.Namespace(held_out=held_out, everything=everything, only=only)
    assert len(names(options)) == expected


def test_the_page_holds_what_the_results_say() -> None:
    page = (ROOT / "docs/whole-models.md").read_text(encoding="utf-8")
    for line in table(json.loads(RESULTS.read_text(encoding="utf-8"))):
        assert line in page.splitlines()
