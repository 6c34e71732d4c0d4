"""File names in commands that a message prints: a shell that gets the command pasted opens the same file."""

from __future__ import annotations

import os
import shlex
import unicodedata

_ESCAPED = {"'": "\\'", "\\": "\\\\"}


def shell_word(path: str | os.PathLike[str]) -> str:
    """Return one word of a command for bash or zsh that names ``path``: quoted where needed.

    Control characters and bytes that are no UTF-8 become hexadecimal escapes in ``$'...'``.
    """
    text = os.fspath(path)
    if all(unicodedata.category(c)[0] != "C" for c in text):
        return shlex.quote(text)
    return "$'" + "".join(_character(c) for c in text) + "'"


def _character(c: str) -> str:
    if unicodedata.category(c)[0] != "C":
        return _ESCAPED.get(c, c)
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(c))
