# ruff: noqa: INP001, PLC0415 - runs inside other programs: a script that imports little, and late
"""``tileprof.capture()`` inside a program that the CUDA recorder runs: regions begin and end in the injection library."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any


def start() -> None:
    """Listen to captured regions as soon as the program imports tileprof's."""
    from tileprof_after import after_import  # type: ignore[import-not-found]

    after_import("tileprof.record.capture", lambda module: module.listen(_Regions()))


class _Regions:
    """Regions may nest, in any thread; the outermost counts."""

    def __init__(self) -> None:
        self.library: Any = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
        self.lock = threading.Lock()
        self.open = 0

    def begin_capture(self) -> None:
        with self.lock:
            self.open += 1
            if self.open == 1:
                self.library.tileprof_capture(1)

    def end_capture(self) -> None:
        with self.lock:
            self.open -= 1
            if self.open == 0:
                self.library.tileprof_capture(0)
