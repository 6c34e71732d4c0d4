"""What a command says of itself while it works, where nobody watches a terminal."""

from __future__ import annotations

import time

from tileprof.cli import progress


def test_a_long_command_says_in_a_log_where_it_is(monkeypatch, capsys) -> None:
    monkeypatch.setenv(progress.EVERY, "0.05")
    with progress.steps() as say:
        say("reading")
        say("watching accesses")
        time.sleep(0.3)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[0] == "tileprof: watching accesses, 0 s"
    assert 2 <= len(told.err.splitlines()) <= 6
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
