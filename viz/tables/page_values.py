"""Values on their way into a page: numbers packed for the browser, text made harmless, JSON made inert.

Numbers travel as ``{"n", "type", "delta", "data"}``: ``data`` is base64 of ``n`` little-endian values of ``type`` (a
numpy code that has a typed array in JavaScript), or of zlib of them where that is `WORTH_BYTES` shorter, which its
length tells; with ``delta`` the browser sums them up.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

LONGEST_TEXT = 400
"""Characters of one name that a page keeps; C++ template names run to thousands."""

WORTH_BYTES = 256
"""Fewer bytes are not worth a stream of decompression: a browser takes 0.3 ms for each, a third of the time to open a
small page.
"""

_INTEGERS = ("i1", "i2", "i4")

Packed = dict[str, Any]


def pack(values: ArrayLike, *, delta: bool = False) -> Packed:
    """Return one column for the browser: integers exactly (up to 2**53), floats as float32 (NaN stays NaN).

    ``delta`` stores differences: for sorted or slowly changing columns.
    """
    array = np.asarray(values)
    if array.dtype.kind == "f":
        return _packed(array.astype("<f4"), "f4", delta=False)
    array = array.astype(np.int64)
    if delta:
        array = np.diff(array, prepend=0)
    code = _smallest(array)
    return _packed(array.astype("<" + code), code, delta=delta)


def packed_bytes(packed: Packed) -> int:
    """Return how much of the page a packed column takes, in bytes."""
    return len(packed["data"]) + 60


def printable(text: str) -> str:
    """Return a name that shows what it holds: control, bidi and other invisible characters become escapes."""
    shown_text = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text[:LONGEST_TEXT])
    return shown_text if len(text) <= LONGEST_TEXT else f"{shown_text}… ({len(text) - LONGEST_TEXT} more)"


def inert_json(value: Any) -> str:
    """Return JSON that cannot end a script element or a line: ASCII only, and no ``<``, ``>`` or ``&``."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _smallest(array: np.ndarray) -> str:
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for code in _INTEGERS:
        limits = np.iinfo(code)
        if limits.min <= low and high <= limits.max:
            return code
    return "f8"  # JavaScript has no 64-bit integer array worth its trouble; doubles are exact to 2**53


def _packed(array: np.ndarray, code: str, *, delta: bool) -> Packed:
    plain = array.tobytes()
    compressed = zlib.compress(plain, 6)
    data = base64.b64encode(compressed if len(compressed) + WORTH_BYTES <= len(plain) else plain).decode("ascii")
    return {"n": int(array.size), "type": code, "delta": delta, "data": data}
