"""Counts the Python lines that a call runs. Code whose work is done by arrays runs few lines, on any machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


def counted_lines(function: Callable[[], Result]) -> tuple[Result, int]:
    """Return the function's result, and the number of Python lines that ran; a line in a loop counts each time."""
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
