"""The fault matrix: which fault was tried how often on which Python, from pytest's own results.

    python -m pytest tests/integration/faults/test_faults.py --junitxml=3.13.xml
    python -m tests.integration.faults.fault_matrix 3.13.0=3.13.xml 3.14.10=3.14.xml

writes ``results/fault_matrix.json`` and prints the table for docs/robustness.md, which a test holds against that file.
Results of a Python that is not named stay as they are.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

RESULTS = Path(__file__).parent / "results" / "fault_matrix.json"

ROWS = {
    "killed at a random time (SIGINT, SIGTERM, SIGHUP, SIGKILL)": r"killed_at_a_random_time",
    "full disk (small file systems)": r"full_disk|disk_that_is_full",
    "files that may not grow": r"files_that_may_not_grow",
    "output that cannot be written": r"output_that_cannot_be_written",
    "output behind a link": r"output_folder_that_is_a_link",
    "no `HOME`, `TERM=dumb`, `NO_COLOR`": r"without_tileprof\[no HOME",
    "C locale, 40 columns": r"without_tileprof\[C locale",
    "caches that cannot be written": r"without_tileprof\[caches",
    "two processes with a cold cache": r"two_processes_with_a_cold_cache",
    "six recorders on one output": r"six_recorders_on_one_output",
    "stdout closed": r"stdout_without_a_reader.*\[closed",
    "a pipe without a reader": r"stdout_without_a_reader.*\[unread",
    "another user, without root's rights": r"another_user",
}
"""Faults, and what the names of their tests match."""

Matrix = dict[str, dict[str, dict[str, int]]]
"""Python, fault, outcome (passed, skipped, failed): tests."""


def counts(path: Path) -> dict[str, dict[str, int]]:
    """Outcomes by fault of one file of results. Raises `ValueError` for a test that is in no row."""
    rows: dict[str, Counter[str]] = {row: Counter() for row in ROWS}
    for case in ET.parse(path).iter("testcase"):
        matching_rows = [row for row, pattern in ROWS.items() if re.search(pattern, case.get("name", ""))]
        if len(matching_rows) != 1:
            raise ValueError(f"{case.get('name')} belongs to {matching_rows or 'no row'}")
        tags = {child.tag for child in case}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        rows[matching_rows[0]][outcome] += 1
    return {row: dict(sorted(outcomes.items())) for row, outcomes in rows.items()}


def table(results: dict[str, Matrix]) -> str:
    """The results as a table in Markdown."""
    pythons = sorted(results["tests"], key=lambda version: [int(part) for part in version.split(".")])
    lines = ["| fault | " + " | ".join(pythons) + " |", "|---|" + "---|" * len(pythons)]
    lines += [
        f"| {row} | " + " | ".join(_cell(results["tests"][version].get(row, {})) for version in pythons) + " |"
        for row in ROWS
    ]
    return "\n".join(lines)


def _cell(outcomes: dict[str, int]) -> str:
    attempts = sum(outcomes.values()) - outcomes.get("skipped", 0)
    text = f"{outcomes.get('passed', 0)} of {attempts}" if attempts else "-"
    return text + (f", {outcomes['skipped']} skipped" if outcomes.get("skipped") else "")


def main() -> int:
    document = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"tests": {}}
    for argument in sys.argv[1:]:
        version, _, path = argument.partition("=")
        document["tests"][version] = counts(Path(path))
    document["date"] = time.strftime("%Y-%m-%d")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    sys.stdout.write(table(document) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
