"""Lines for people, on stderr: names in them come from files, so that nothing in a line is obeyed by a terminal."""

from __future__ import annotations

import sys

from tileprof.terminal_text import harmless


def say(text: str, *, end: str = "\n") -> None:
    """Print ``text`` on stderr as `harmless` shows it; ``end`` is written as it is."""
    print(harmless(text), end=end, file=sys.stderr, flush=True)


def why_empty(*, complete: bool) -> str:
    """Return why a trace holds no launches."""
    if complete:
        return "nothing that runs on a GPU was recorded"
    return "the recording was cut before anything was saved"
