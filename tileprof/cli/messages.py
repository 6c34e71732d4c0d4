"""Lines for people, on stderr: names in them come from files, so that nothing in a line is obeyed by a terminal."""

from __future__ import annotations

import sys
import unicodedata


def say(text: str, *, end: str = "\n") -> None:
    """Print ``text`` on stderr as `harmless` shows it; ``end`` is written as it is."""
    print(harmless(text), end=end, file=sys.stderr, flush=True)


def harmless(text: str) -> str:
    """The text with control and format characters as escapes; line breaks and tabs stay."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c)[0] != "C" else c.encode("unicode_escape").decode() for c in text
    )
