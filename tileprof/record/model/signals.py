"""Signals that end a recorded program: SIGTERM and SIGHUP end it as Ctrl-C does, and all wait for the trace."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_TOLD_TWICE_S: Final = 1.0
"""`timeout` sends its signal to the process and to its group: the second within this time is the first one again."""

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """SIGTERM or SIGHUP came, which the program does not handle."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Raises:
    """The handler of a signal whose action was the default one."""

    def __init__(self) -> None:
        self._last = -_TOLD_TWICE_S

    def __call__(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last >= _TOLD_TWICE_S:
            self._last = now
            raise Terminated(number)


def raise_terminated() -> None:
    """Let SIGTERM and SIGHUP raise `Terminated` from now on, unless they are handled or ignored already. Forked
    children have the default action again.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # no other may set handlers
    handler = _Raises()
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, handler)

    def in_child() -> None:
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                if signal.getsignal(number) is handler:
                    signal.signal(number, signal.SIG_DFL)

    os.register_at_fork(after_in_child=in_child)


@contextmanager
def held() -> Iterator[list[int]]:
    """Collect the signals that would end the process, instead of acting on them."""
    heard: list[int] = []
    before = {n: signal.getsignal(n) for n in _ENDING}
    for number, action in before.items():
        if action not in (None, signal.SIG_IGN):
            signal.signal(number, lambda n, _: heard.append(n))
    try:
        yield heard
    finally:
        for number, action in before.items():
            if action not in (None, signal.SIG_IGN):
                signal.signal(number, action)


def die_of(number: int) -> None:
    """End this process by the signal."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
