"""The terminal that verbs print to: plain ASCII where it can show no more, quiet where its reader has gone."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NoReturn, TextIO, cast

from rich.console import Console

WIDEST = 140
"""Maximum number of columns: wider tables are hard to read."""

_BLOCKS, _ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
_SIGNS = "→…\N{MULTIPLICATION SIGN}"
# One character for one, so that tables stay straight.
_PLAIN = str.maketrans(_SIGNS + _BLOCKS, ">~x" + _ASCII)


class Terminal(Console):
    """A rich console whose closed pipe is the caller's BrokenPipeError, which `main` ends quietly; rich itself exits
    with 1.
    """

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


class _Plain:
    """A text file that gets ASCII only, one character for one."""

    encoding = "ascii"

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(text.translate(_PLAIN).encode("ascii", "backslashreplace").decode())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def plain_streams() -> Iterator[None]:
    """Let stdout and stderr hold ASCII only."""
    with ExitStack() as stack:
        if sys.stderr is not None:
            stack.enter_context(redirect_stderr(cast("TextIO", _Plain(sys.stderr))))
        if sys.stdout is not None:
            stack.enter_context(redirect_stdout(cast("TextIO", _Plain(sys.stdout))))
        yield


def terminal(*, plain: bool = False, file: TextIO | None = None) -> Terminal:
    """Return stdout (or ``file``); ``plain`` asks for ASCII without colour, which a stdout of another encoding gets
    anyway.
    """
    file = file or sys.stdout
    if not plain and _carries(file.encoding or "ascii"):
        console = Terminal(file=file, highlight=False)
    else:
        console = Terminal(file=cast("TextIO", _Plain(file)), highlight=False, no_color=plain or None)
    console.width = min(console.width, WIDEST)
    return console


def _carries(encoding: str) -> bool:
    try:
        (_BLOCKS + _SIGNS).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def sparkline(shares: Iterable[float]) -> str:
    """Return shares from 0 to 1 as blocks of that height; what is not quite nothing is seen."""
    return "".join(_BLOCKS[0 if s <= 0 else max(1, min(8, round(8 * s)))] for s in shares)


def plain(text: str, most: int = 0) -> str:
    """Return untrusted text on one line, control and format characters as escapes; longer than ``most`` loses its
    middle.
    """
    escaped_text = "".join(
        c if unicodedata.category(c)[0] != "C" else c.encode("unicode_escape").decode() for c in text
    )
    if most and len(escaped_text) > most:
        half = (most - 1) // 2
        escaped_text = f"{escaped_text[:half]}…{escaped_text[len(escaped_text) - (most - 1 - half) :]}"
    return escaped_text
