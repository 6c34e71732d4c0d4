"""How much Python a call runs: what is fast because arrays do the work runs few lines, on any machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


def counted_lines(function: Callable[[], Result]) -> tuple[Result, int]:
    """Return what the function returns, and how many lines of Python ran; a loop's lines count each time."""
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return function(), lines
    finally:
        sys.settrace(before)
