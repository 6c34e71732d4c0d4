# ruff: noqa: INP001, PLC0415 - runs inside other programs: a script that imports little, and late
"""``tileprof.capture()`` inside a program that the CUDA recorder runs: regions begin and end in the injection library.

Also the end of Python: what is on the device is copied before modules, and with them contexts, go away.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

changed: list[Callable[[bool], None]] = []
"""Called with True when a region has begun and with False when it is about to end, whoever begins it."""


def start() -> None:
    """Listen to captured regions as soon as the program imports tileprof's."""
    from tileprof_after import after_import  # type: ignore[import-not-found]

    after_import("tileprof.record.capture", lambda module: module.listen(_Regions()))
    # Registered before the program registers anything, so called after all of its handlers.
    atexit.register(ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).tileprof_drain)


def tell(*, begun: bool) -> None:
    """Tell whoever listens that a region has begun or is about to end."""
    for listener in changed:
        listener(begun)


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
                tell(begun=True)

    def end_capture(self) -> None:
        with self.lock:
            self.open -= 1
            if self.open == 0:
                tell(begun=False)
                self.library.tileprof_capture(0)
