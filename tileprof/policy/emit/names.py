"""Names of kernels and modules come from the recorded program; none of them may become code where they are emitted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_MOST_CHARACTERS: Final = 40
_MOST_IN_A_COMMENT: Final = 120

_UNSAFE = re.compile(r"[^A-Za-z0-9_ .,:;<>()\[\]{}+=#-]", re.ASCII)
"""No slash and no star: a comment cannot be opened or closed. No backslash: a line cannot be continued. No question
mark: no trigraphs."""

_CONTROL = re.compile(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold."""


def identifiers(names: Sequence[str]) -> list[str]:
    """Return a distinct C++ identifier in CamelCase for each name: ``h.0.mlp.c_fc`` becomes ``H0MlpCFc``.

    Letters and digits of ASCII only, no keyword (all begin with a capital), no reserved underscore; what is left
    empty or taken gets a number.
    """
    reserved: set[str] = set()
    taken_names = []
    for number, name in enumerate(names):
        words = re.findall(r"[A-Za-z0-9]+", name)
        base = "".join(word[0].upper() + word[1:] for word in words)[:_MOST_CHARACTERS]
        if not base or base[0].isdigit():
            base = f"Stage{base}"
        candidate, again = base, 1
        while candidate.lower() in reserved:
            again += 1
            candidate = f"{base}_{again}" if again < len(names) + 2 else f"Stage_{number}"
        reserved.add(candidate.lower())
        taken_names.append(candidate)
    return taken_names


def comment(text: str) -> str:
    """Return ``text`` as part of one line of a C++ comment, inert whatever it holds."""
    plain = _UNSAFE.sub(".", text)
    return plain if len(plain) <= _MOST_IN_A_COMMENT else plain[: _MOST_IN_A_COMMENT - 3] + "..."


def xml_text(text: str) -> str:
    """Return ``text`` without the characters that no XML file can hold."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
