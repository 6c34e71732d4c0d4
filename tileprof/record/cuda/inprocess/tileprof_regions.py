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
"""Called with True when a region has begun and with False when it is about to end, whatever began it."""


def start() -> None:
    """Listen to captured regions as soon as the program imports tileprof's, or to the NVTX ranges that are asked
    for.
    """
    from tileprof_after import after_import  # type: ignore[import-not-found]

    library = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
    # Registered before the program registers anything, so called after all of its handlers.
    atexit.register(library.tileprof_drain)
    if not by_ranges():
        after_import("tileprof.record.capture", lambda module: module.listen(_Regions()))
    elif os.environ.get("TILEPROF_HOOKS"):
        _Ranges(library)


def by_ranges() -> bool:
    """Return whether NVTX ranges alone say what is recorded.

    With ``--capture``, too, hooks follow the regions around them.
    """
    return "TILEPROF_NVTX" in os.environ and os.environ.get("TILEPROF_CAPTURE") != "0"


def tell(*, active: bool) -> None:
    """Tell the listener that a region has begun or is about to end."""
    for listener in changed:
        listener(active)


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
                tell(active=True)

    def end_capture(self) -> None:
        with self.lock:
            self.open -= 1
            if self.open == 0:
                tell(active=False)
                self.library.tileprof_capture(0)


class _Ranges:
    """Matching NVTX ranges, as the library tells of them in the threads that mark them; the outermost counts."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.lock = threading.RLock()
        self.open = 0
        self.listener = ctypes.CFUNCTYPE(None, ctypes.c_int)(self.change)
        library.tileprof_listen(self.listener)
        atexit.register(
            self.stop
        )  # Python cannot be called when it has ended; this also keeps the listener alive until then

    def stop(self) -> None:
        self.library.tileprof_listen(None)

    def change(self, change: int) -> None:
        with self.lock:
            self.open += change
            if self.open == max(change, 0):
                tell(active=change > 0)
