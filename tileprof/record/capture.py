"""``tileprof.capture()``: the recorded program says which part of itself to keep."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Listener(Protocol):
    """A recorder that is told where a captured region begins and ends."""

    def begin_capture(self) -> None: ...
    def end_capture(self) -> None: ...


_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    """Tell ``listener`` of every captured region from now on."""
    _listeners.append(listener)


def listening() -> bool:
    """Whether anything is being recorded."""
    return bool(_listeners)


def ignore(listener: Listener) -> None:
    """Tell ``listener`` no more."""
    _listeners.remove(listener)


@contextmanager
def capture() -> Iterator[None]:
    """Keep only what runs inside, in any thread; as a context manager or a decorator.

    A program that captures anything keeps nothing else: what was recorded before the first region is dropped.
    Regions may nest and repeat; together they make one trace. Does nothing in a program that is not recorded.
    """
    listeners = tuple(_listeners)
    for listener in listeners:
        listener.begin_capture()
    try:
        yield
    finally:
        for listener in listeners:
            listener.end_capture()
