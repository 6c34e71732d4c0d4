"""``tileprof.capture()``: the recorded program says which part of itself to keep."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Listener(Protocol):
    """A recorder that is told where a captured region begins and ends."""

    def begin_capture(self) -> None: ...
    def end_capture(self) -> None: ...


_listeners: list[Listener] = []

INJECTED: Final = "CUDA_INJECTION64_PATH"
"""Set in a program that the CUDA recorder runs, which may go by NVTX ranges and then does not listen."""

_warned = False


def listen(listener: Listener) -> None:
    """Tell ``listener`` of every captured region from now on."""
    _listeners.append(listener)


def listening() -> bool:
    """Return whether anything is being recorded."""
    return bool(_listeners)


def ignore(listener: Listener) -> None:
    """Tell ``listener`` no more."""
    _listeners.remove(listener)


def unheard() -> None:
    """A recorder goes by other ranges: regions are ignored without a word."""
    global _warned  # noqa: PLW0603 - once per process
    _warned = True


@contextmanager
def capture() -> Iterator[None]:
    """Keep only what runs inside, in any thread; as a context manager or a decorator.

    A program that captures anything keeps nothing else: what was recorded before the first region is dropped.
    Regions may nest and repeat; together they make one trace. In a program that is not recorded it does nothing, and
    says so once on stderr.
    """
    listeners = tuple(_listeners)
    if not listeners:
        _say_that_nothing_is_recorded()
    for listener in listeners:
        listener.begin_capture()
    try:
        yield
    finally:
        for listener in listeners:
            listener.end_capture()


def _say_that_nothing_is_recorded() -> None:
    global _warned  # noqa: PLW0603 - once per process
    if _warned or INJECTED in os.environ or sys.stderr is None:
        return
    _warned = True
    sys.stderr.write(
        "tileprof: note: tileprof.capture() records nothing by itself; record with `tileprof record python ...`, or "
        "inside `with tileprof.record(...)`\n"
    )
