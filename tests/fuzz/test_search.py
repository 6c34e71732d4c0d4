"""The search itself: it is repeatable, continues after an interruption, and survives an input that ends its process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.fuzz import search
from tests.fuzz.harness import Outcome, case_of


@pytest.fixture
def root(bases: Path, tmp_path: Path) -> Path:
    (tmp_path / "bases").symlink_to(bases)
    return tmp_path


def trials(root: Path, numbers: range) -> dict[int, str]:
    return {number: result["fault"] for number, _, result in search._trials(root, 5, numbers)}


def test_an_input_is_drawn_from_its_seed_and_its_number_alone(bases: Path) -> None:
    forwards = [case_of(5, number, bases) for number in range(60)]
    backwards = [case_of(5, number, bases) for number in reversed(range(60))]
    assert json.dumps(forwards) == json.dumps(backwards[::-1])
    assert forwards != [case_of(6, number, bases) for number in range(60)]
    assert len({one["base"] for one in forwards}) > 6


def test_an_input_that_ends_its_process_costs_no_other(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = case_of(5, 3, root / "bases")

    def run(_bases: Path, _place: Path, base: str, operations: list, verb: list[str], **_more: object) -> Outcome:
        if {"base": base, "operations": operations, "verb": verb} == ends:
            os._exit(9)
        return Outcome(2, "")

    monkeypatch.setattr(search, "run", run)
    assert trials(root, range(8)) == {n: "the process ended with 9" if n == 3 else "" for n in range(8)}


def test_what_is_written_past_python_is_a_fault_and_so_is_what_only_company_brings(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = []

    def run(*_: object, **_more: object) -> Outcome:
        records.append(1)
        if len(records) == 2:
            os.write(2, b"from a library")
        return Outcome(0, "third" if len(records) == 3 else "")

    monkeypatch.setattr(search, "run", run)
    faults = trials(root, range(4))
    assert [faults[0], faults[3]] == ["", ""]
    assert "only after inputs 0 to 0: written past Python to the terminal: b'from a library'" in faults[1]
    assert faults[2] == "only after inputs 0 to 1: third"


def test_a_state_is_gone_on_with_by_the_search_that_wrote_it_alone(root: Path) -> None:
    path = root / "state.json"
    first = search.Search(5, 0, path)
    result = {"code": None, "fault": 'File "/x/tileprof/cli/a.py", line 3', "seconds": 2.5, "bytes": 7}
    first.add(4, case_of(5, 4, root / "bases"), result)
    first.next = 20
    first.save()
    again = search.Search(5, 0, path)
    assert (again.next, again.failures, dict(again.faults)) == (20, [4], {"tileprof/cli/a.py 3": 1})
    assert (again.outcomes, again.slowest_s, again.most_bytes) == (first.outcomes, 2.5, 7)
    with pytest.raises(SystemExit, match="another search: seed is 5, here 6"):
        search.Search(6, 0, path)
