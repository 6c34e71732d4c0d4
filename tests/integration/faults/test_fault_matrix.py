"""The table of faults in the documentation is what was counted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.integration.faults.fault_matrix import RESULTS, ROWS, counts, table

PAGE = Path(__file__).parents[3] / "docs" / "robustness.md"
FAULTS = Path(__file__).with_name("test_faults.py")


def test_the_documentation_has_the_results() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert table(results) in PAGE.read_text(encoding="utf-8"), (
        "paste what `python -m tests.integration.faults.fault_matrix` prints"
    )


def test_each_fault_has_a_test_and_each_test_a_fault() -> None:
    names = re.findall(r"^def (test_\w+)", FAULTS.read_text(encoding="utf-8"), re.MULTILINE)
    assert names
    for pattern in ROWS.values():
        plain = re.split(r"\.\*|\\\[", pattern)[0]
        assert any(re.search(plain, name) for name in names), pattern
    for name in names:
        assert any(re.search(re.split(r"\.\*|\\\[", pattern)[0], name) for pattern in ROWS.values()), name


def test_results_are_counted_by_fault(tmp_path: Path) -> None:
    path = tmp_path / "results.xml"
    path.write_text(
        "<testsuites><testsuite>"
        '<testcase name="test_a_program_killed_at_a_random_time_x[0]"/>'
        '<testcase name="test_a_program_killed_at_a_random_time_x[1]"><failure>no</failure></testcase>'
        '<testcase name="test_another_user_reads"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    rows = {row: outcomes for row, outcomes in counts(path).items() if outcomes}
    assert list(rows.values()) == [{"failed": 1, "passed": 1}, {"skipped": 1}]
    assert "| 1 of 2 |" in table({"tests": {"3.14.1": counts(path)}})
    path.write_text('<testsuite><testcase name="test_of_something_else"/></testsuite>')
    with pytest.raises(ValueError, match="no row"):
        counts(path)
