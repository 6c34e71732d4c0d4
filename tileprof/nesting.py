"""JSON from elsewhere, read only where it is nested to a bounded depth.

Python's reader calls itself once per level, and what a deep text does to it depends on the interpreter and on the
stack of its caller: an exception in one version, an answer in another. So the depth is counted first.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

MOST_LEVELS: Final = 64
"""Lists and objects inside each other. Files of tileprof have at most a dozen levels."""

_STEPS: Final = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1
_MATTERS: Final = b'[]{}"'
_OTHERS: Final = bytes(set(range(256)) - set(_MATTERS))


class NestingError(ValueError):
    """Lists and objects lie inside each other at more than `MOST_LEVELS` levels."""

    def __init__(self) -> None:
        super().__init__(f"lists and objects are nested too deeply: more than {MOST_LEVELS} levels")


def parse_json(text: str, **hooks: Any) -> Any:
    """The value of a JSON text; ``hooks`` are those of `json.loads`.

    Raises `NestingError` where it is nested too deeply, and `ValueError` where it is no JSON.
    """
    if levels_of_json(text) > MOST_LEVELS:
        raise NestingError
    return json.loads(text, **hooks)


def levels_of_json(text: str) -> int:
    """How deeply lists and objects lie inside each other; at least that where the text is no JSON."""
    data = text.encode("utf-8", "surrogatepass")
    if b"\\" in data:  # what is escaped ends no string; an escaped backslash escapes nothing
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    letters = np.frombuffer(data.translate(None, _OTHERS), np.uint8)
    quoted = np.cumsum(letters == ord('"'), dtype=np.int64) % 2 == 1
    return int(np.cumsum(np.where(quoted, 0, _STEPS[letters]), dtype=np.int64).max(initial=0))


def check_levels(value: Any) -> None:
    """Raise `NestingError` where lists and dictionaries of a parsed value lie inside each other too deeply."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return
    raise NestingError


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
