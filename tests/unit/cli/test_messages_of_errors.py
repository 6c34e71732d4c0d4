"""Control characters do not reach the terminal through an error's message."""

from __future__ import annotations

import pytest

from tileprof.cli import entry
from tileprof.errors import UserError


@pytest.mark.parametrize(
    ("message", "terminal_text"),
    [
        ("stage \x1b[31mred\x07", r"stage \x1b[31mred\x07"),
        ("turned \u202eround", r"turned \u202eround"),
        ("half \ud800", r"half \ud800"),
        ("two\nlines\tand ümlaut", "two\nlines\tand ümlaut"),
    ],
)
def test_an_error_is_printed_without_what_a_terminal_obeys(monkeypatch, capsys, message, terminal_text) -> None:
    def fail(_: list[str]) -> int:
        raise UserError(message)

    monkeypatch.setattr(entry, "_run", fail)
    assert entry.main(["verify"]) == 2
    assert capsys.readouterr().err == f"tileprof: {terminal_text}\n"


@pytest.mark.parametrize("verb", ["view", "export"])
def test_what_may_not_be_looked_at_is_named_and_is_no_bug(monkeypatch, capsys, verb) -> None:
    def fail(_: list[str]) -> int:
        raise PermissionError(13, "Permission denied", "locked/page.html")

    monkeypatch.setattr(entry, "_run", fail)
    assert entry.main([verb]) == 2
    assert capsys.readouterr().err == "tileprof: no permission for locked/page.html\n"
