"""Processes of this machine that share a list of jobs, and end with the process that asked."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread, current_thread, main_thread
from typing import Any, TypeVar

from tileprof.errors import UserError

_PR_SET_PDEATHSIG = 1
"""The option of Linux's <sys/prctl.h> for the signal that a process gets when the one that started it ends."""

J = TypeVar("J")
R = TypeVar("R")


def in_processes(
    many: int,
    work: Callable[[J], R],
    jobs: Sequence[J],
    begin: Callable[..., None] | None = None,
    arguments: tuple[Any, ...] = (),
) -> list[R]:
    """Return ``[work(job) for job in jobs]`` in ``many`` new processes, each of which first calls ``begin(*given)``.
    All must be importable.

    Whatever ends this call, Ctrl-C too, ends the processes; so does the end of this process, whatever its reason. They
    leave Ctrl-C to it. What ``work`` raises is raised here; raises UserError where a process dies.
    """
    before = set(active_children())
    try:
        with ProcessPoolExecutor(many, get_context("spawn"), _begin, (os.getpid(), begin, arguments)) as pool:
            try:
                with _no_interrupt():  # for as long as it takes to start processes
                    futures = [pool.submit(work, job) for job in jobs[:many]]
                with _interrupt_afterwards():
                    futures += [pool.submit(work, job) for job in jobs[many:]]
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in set(active_children()) - before:
                    worker.terminate()
                raise
    except BrokenProcessPool:
        raise UserError(
            "a process died while it simulated: out of memory, or ended by another program; simulate fewer points, "
            "or a smaller trace"
        ) from None


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Let processes that are started in here ignore Ctrl-C from their first instruction on: what they import would say
    where it was interrupted.
    """
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _interrupt_afterwards() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block: inside `submit` it could leave a lock of the pool locked, and the pool
    would never end.
    """
    if current_thread() is not main_thread():
        yield
        return
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        signal.raise_signal(signal.SIGINT)


def _begin(parent: int, begin: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before it could have been noticed
            os._exit(1)
    else:
        Thread(target=_end_with_parent, daemon=True).start()
    if begin is not None:
        begin(*arguments)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
    os._exit(1)
