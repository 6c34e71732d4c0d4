"""Checks that the search would notice a verb that leaves its folders."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.fuzz import harness
from tests.fuzz.watch import BAIT, SECRET

GOOD = ["report", "IN"]


def trial(bases: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> str:
    """Return the fault that the harness reports for a verb that does this."""
    monkeypatch.setattr(harness, "main", lambda words: (act(), 0)[1])
    return harness.run(bases, folder / "one", "tiny", [], GOOD, everywhere=True).fault


def access_is_noted(path: Path) -> bool:
    """Return whether this file system keeps access times; some are mounted without."""
    path.write_text("x")
    os.utime(path, (1, 2))
    path.read_text()
    return path.stat().st_atime != 1


def test_each_way_of_leaving_the_folders_is_a_fault(bases: Path, tmp_path: Path, monkeypatch) -> None:
    bait, beside = bases / BAIT, tmp_path / "beside"
    beside.mkdir()
    (beside / "kept").write_text("kept")
    acts: dict[str, Callable[[], object]] = {
        "read by Python": (bait / "secret").read_text,
        "listed": lambda: os.listdir(bait),  # noqa: PTH208 - the call that is heard
        "read past Python": lambda: pq.read_table(bait / "mlp.tileprof" / "launches" / "000000.parquet"),
        "told": lambda: sys.stdout.write(SECRET),
        "written": lambda: (beside / "new").write_text("x"),
        "removed": (beside / "kept").unlink,
        "removed in an open folder": lambda: shutil.rmtree(beside),
        "changed past Python": lambda: sqlite3.connect(bait / "nsys.sqlite").execute("create table t (a)"),
        "written beside the input": lambda: Path("new").write_text("x"),
        "a process": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    }
    if not access_is_noted(beside / "noted"):
        del acts["read past Python"]
    faults = {}
    for number, (name, act) in enumerate(acts.items()):
        faults[name] = trial(bases, tmp_path / str(number), monkeypatch, act)
    assert [name for name, fault in faults.items() if not fault] == []


def test_what_stays_in_its_folders_is_none(bases: Path, tmp_path: Path) -> None:
    assert harness.run(bases, tmp_path / "one", "tiny", [], GOOD).fault == ""
