"""One line on the terminal that says how far the recording is; nothing where stderr is not a terminal."""

from __future__ import annotations

import sys
import time

_INTERVAL_S = 0.25
_ERASE_LINE = "\r\x1b[2K"


class Progress:
    """A line that rewrites itself, at most four times a second, and leaves nothing behind.

    The cursor rests in the first column, so that what the program prints takes the line's place.
    """

    def __init__(self, *, on: bool = True) -> None:
        self._on = on and sys.stderr is not None and sys.stderr.isatty()
        self._next = time.monotonic() + _INTERVAL_S if self._on else float("inf")
        self._shown = False

    def say(self, launches: int, tiles: int, module: str) -> None:
        """Show where the recording is, if it is time to."""
        if not self._on:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _INTERVAL_S
        line = f"tileprof: {launches:,} launches, {tiles:,} tiles {module}"
        sys.stderr.write(f"{_ERASE_LINE}{line[:78]}\r")
        sys.stderr.flush()
        self._shown = True

    def end(self) -> None:
        """Erase the line."""
        if self._shown:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
        self._next, self._shown = float("inf"), False
