"""Text for a terminal: names in it come from files and programs, and nothing in it is obeyed."""

from __future__ import annotations

import unicodedata


def harmless(text: str) -> str:
    """Return the text with control and format characters as escapes; line breaks and tabs stay."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c)[0] != "C" else c.encode("unicode_escape").decode() for c in text
    )
