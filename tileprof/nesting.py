"""JSON and regular expressions, read only where they are nested to a bounded depth.

Python's readers call themselves once per level, and what a deep text does to them depends on the interpreter and on the
stack of its caller: an exception in one version, an answer in another. So the depth is counted first.
"""

from __future__ import annotations

import json
import re
import warnings
from typing import Any, Final

MOST_LEVELS: Final = 64
"""Lists and objects inside each other. Files of tileprof have at most a dozen levels."""

_MATTERS: Final = b'[]{}"'
_OTHERS: Final = bytes(set(range(256)) - set(_MATTERS))


class NestingError(ValueError):
    """Lists and objects lie inside each other at more than `MOST_LEVELS` levels."""

    def __init__(self) -> None:
        super().__init__(f"lists and objects are nested too deeply: more than {MOST_LEVELS} levels")


def parse_json(text: str, **hooks: Any) -> Any:
    """Return the value of a JSON text; ``hooks`` are those of `json.loads`.

    Raises `NestingError` where it is nested too deeply, and `ValueError` where it is no JSON.
    """
    if levels_of_json(text) > MOST_LEVELS:
        raise NestingError
    return json.loads(text, **hooks)


def levels_of_json(text: str) -> int:
    """Return how deeply lists and objects lie inside each other; at least that where the text is no JSON."""
    import numpy as np  # noqa: PLC0415 - a tenth of a second, which `--help` need not wait

    data = text.encode("utf-8", "surrogatepass")
    if b"\\" in data:  # what is escaped ends no string; an escaped backslash escapes nothing
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    letters = np.frombuffer(data.translate(None, _OTHERS), np.uint8)
    quoted = np.cumsum(letters == ord('"'), dtype=np.int64) % 2 == 1
    opens, closes = (np.isin(letters, list(brackets)) & ~quoted for brackets in (b"[{", b"]}"))
    return int(np.cumsum(opens.astype(np.int8) - closes.astype(np.int8), dtype=np.int64).max(initial=0))


def check_levels(value: Any) -> None:
    """Raise `NestingError` where lists and dictionaries of a parsed value lie inside each other too deeply."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return
    raise NestingError


def compile_pattern(text: str) -> re.Pattern[str]:
    """Return the regular expression in ``text``; raises `re.error` for what is none or has more than `MOST_LEVELS`
    groups.
    """
    if text.count("(") > MOST_LEVELS:
        raise re.error(f"more than {MOST_LEVELS} groups")
    with warnings.catch_warnings(action="ignore"):  # of `[[`, which later versions may take for a set of sets
        return re.compile(text)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
