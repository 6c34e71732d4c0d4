"""A co-pilot, the memory that it shares with a kernel, and the thread that steps it."""

from __future__ import annotations

import atexit
import ctypes
import weakref
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from tileprof.runtime.copilot.copilot_build import compiled_pilot_thread

_MEMORIES: Final[list[Any]] = []
"""Memory of all co-pilots of the process: a captured graph may be replayed when its pipeline is gone, and finds the
word that ends it.
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a co-pilot so far: ``runs``, ``commands``, of these sent ``ahead`` of their inputs and to the ``own``
    cluster of their last input; ``batches`` of completions that it found at once, and the most in one; commands that
    were ``overwritten`` before they were known to be taken, of these ``too_late``: the cluster took the first version.
    """

    runs: int
    commands: int
    ahead: int
    own: int
    batches: int
    most_in_batch: int
    overwritten: int
    too_late: int


class Copilot:
    """Deals the tasks of a kernel for as long as it exists, in the thread of this process that all co-pilots
    share, over page-locked memory.

    Kernels that wait for a co-pilot that has ended see its last word, and end. ``words``: of the memory, as
    `persistent.dealing.link_words` says for a plan. ``library``: as `copilot_build.compiled` makes it.
    ``threaded``: stepped by that thread; tests let it `step`.
    """

    def __init__(self, words: int, library: Path, *, pinned: bool = True, threaded: bool = True) -> None:
        self._library, self._threaded = _copilot_library(library), threaded
        self.memory = torch.zeros(words, dtype=torch.int64, pin_memory=pinned)
        _MEMORIES.append(self.memory)
        self._begin()

    def _begin(self) -> None:
        self._pilot = self._library.pilot_new(self.data_ptr())
        thread = _pilot_thread() if self._threaded else None
        if thread is not None:
            thread.add(self._library.pilot_step, self._pilot)
        self._end = weakref.finalize(self, _delete, self._library, self._pilot, thread)

    def data_ptr(self) -> int:
        """Return the address of the memory, the same on CPU and GPU."""
        return int(self.memory.data_ptr())

    def zero_(self) -> None:
        """Begin again, while no kernel runs, as before the first run."""
        self._end()
        self.memory.zero_()
        self._begin()

    def step(self) -> bool:
        """Read completions, and deal tiles. Return whether there were any. For co-pilots without a thread."""
        return bool(self._library.pilot_step(self._pilot))

    @property
    def stepping(self) -> tuple[Any, int]:
        """`step` as a C function, and what it takes."""
        return self._library.pilot_step, int(self._pilot)

    def counts(self) -> Counts:
        """Return what it has done; to be asked while no kernel runs."""
        eight = (ctypes.c_uint64 * 8)()
        self._library.pilot_counts(self._pilot, eight)
        return Counts(*eight)

    def ended_us(self) -> list[float]:
        """Return the mean over runs, for each program of the plan, from a run's first completion to the program's last,
        by the times at which this thread read of them; to be asked while no kernel runs.
        """
        count = self._library.pilot_ends(self._pilot, None, 0)
        ended_ns = (ctypes.c_uint64 * count)()
        self._library.pilot_ends(self._pilot, ended_ns, count)
        runs = max(1, self.counts().runs)
        return [ns / runs / 1e3 for ns in ended_ns]

    def close(self) -> None:
        """End it, and kernels that wait for it."""
        self._end()


def _delete(library: ctypes.CDLL, pilot: int, thread: PilotThread | None) -> None:
    if thread is not None:
        thread.remove(pilot)
    library.pilot_delete(pilot)


class PilotThread:
    """The one thread of this process that steps through its co-pilots; it ends with the process."""

    def __init__(self) -> None:
        self._library = library = ctypes.CDLL(str(compiled_pilot_thread()))
        library.pilot_thread_new.restype = ctypes.c_void_p
        library.pilot_thread_add.argtypes = [ctypes.c_void_p] * 3
        library.pilot_thread_remove.argtypes = [ctypes.c_void_p] * 2
        library.pilot_thread_close.argtypes = [ctypes.c_void_p]
        self._thread = library.pilot_thread_new()
        atexit.register(library.pilot_thread_close, self._thread)

    def add(self, step: Any, pilot: int) -> None:
        """Step a co-pilot from now on."""
        self._library.pilot_thread_add(self._thread, ctypes.cast(step, ctypes.c_void_p), pilot)

    def remove(self, pilot: int) -> None:
        """Returns once it is not stepped any more."""
        self._library.pilot_thread_remove(self._thread, pilot)


@cache
def _pilot_thread() -> PilotThread:
    return PilotThread()


@cache
def _copilot_library(library: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library))
    loaded.pilot_new.restype = ctypes.c_void_p
    for name, arguments in (
        ("pilot_new", [ctypes.c_void_p]),
        ("pilot_step", [ctypes.c_void_p]),
        ("pilot_delete", [ctypes.c_void_p]),
        ("pilot_counts", [ctypes.c_void_p, ctypes.c_void_p]),
        ("pilot_ends", [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]),
    ):
        getattr(loaded, name).argtypes = arguments
    return loaded
