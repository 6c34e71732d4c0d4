"""Lets one process of a test run compile each numba function, while the others wait and read its cache.

Otherwise each worker compiles the functions that it meets first, which takes most of the processor time of a run with a
cold cache. Two workers that compile one function for different types at the same time may also take the same file for
it.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba.core import errors
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.targetconfig import TargetConfig

WARM_UP = (
    ("report", "tests/golden/gemm_pair.tileprof"),
    ("simulate", "tests/golden/gemm_pair.tileprof"),
)
"""Commands that compile the functions that most tests need."""


_locks: set[str] = set()


def install() -> None:
    """Let this process compile a function only while it holds the lock beside the function's cache."""
    plain = Dispatcher.compile
    if getattr(plain, "compiles_once", False):
        return

    def compile_once(self: Any, sig: Any) -> Any:
        folder = self._cache.cache_path
        name = f"{self.py_func.__module__}.{self.py_func.__qualname__}.lock"
        if folder is None or name in _locks:
            return plain(self, sig)
        Path(folder).mkdir(parents=True, exist_ok=True)
        # Take the lock between threads first. A function locks itself before the functions that it calls, and none of
        # these calls it, so no two processes wait for each other.
        with global_compiler_lock, (Path(folder) / name).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _locks.add(name)
            try:
                return plain(self, sig)
            finally:
                _locks.remove(name)

    replacement: Callable[..., Any] = compile_once
    replacement.compiles_once = True  # type: ignore[attr-defined]
    Dispatcher.compile = replacement
    _spare_work()


def _spare_work() -> None:
    """Spare numba a fifteenth of the time to compile.

    Each typed call compares sets of compiler options, nearly always equal ones: what was set is compared before all
    values are collected. And each failed attempt to type a call has a coloured message, which is thrown away.
    """
    if hasattr(errors, "HighlightColorScheme"):  # where colorama is installed
        errors.HighlightColorScheme._markup = lambda _, message, *_colour, **_style: message
    plain = TargetConfig.__eq__

    def equals(self: Any, other: object) -> Any:
        same = isinstance(other, TargetConfig) and self._values == other._values
        return same or plain(self, other)

    TargetConfig.__eq__ = equals


def main() -> None:
    install()
    from tileprof.cli.entry import main as command

    for words in WARM_UP:
        command(list(words))


if __name__ == "__main__":
    sys.exit(main())
