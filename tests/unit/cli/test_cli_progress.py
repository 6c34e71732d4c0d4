"""Progress lines of a command when stderr is not a terminal."""

from __future__ import annotations

import re
import time

from tileprof.cli.text import progress


def test_a_long_command_says_in_a_log_where_it_is(monkeypatch, capsys) -> None:
    monkeypatch.setenv(progress.EVERY, "0.02")
    lines: list[str] = []
    with progress.steps() as say:
        say("reading")
        say("watching accesses")
        while len(lines) < 2 or "watching accesses" not in lines[-1]:
            time.sleep(0.02)
            output = capsys.readouterr()
            assert output.out == ""
            lines += output.err.splitlines()
    assert all(re.fullmatch(r"tileprof: (reading|watching accesses), \d+ s", line) for line in lines)
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_log_can_be_kept_free_of_progress(monkeypatch, capsys) -> None:
    monkeypatch.setenv(progress.EVERY, "0")
    with progress.steps() as say:
        say("reading")
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_short_one_says_nothing(capsys) -> None:
    with progress.steps() as say:
        say("reading")
    assert capsys.readouterr().err == ""
