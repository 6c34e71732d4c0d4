# ruff: noqa: INP001 - runs inside other programs: a script that imports little
"""Recording pauses while Inductor or Triton's autotuner times kernels to choose between them.

Such launches are not the program's: they run hundreds of times, on inputs of their own making, and only in a process
whose caches do not know the choice yet, so that the passes of one recording would differ.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

_TIMING = ("benchmark", "benchmark_gpu", "benchmark_gpu_with_cuda_graph", "bench", "benchmark_all_configs")


class Pauses:
    """Nested and concurrent timings; the outermost pauses. ``pause`` and ``say`` reach the injection library."""

    def __init__(self, pause: Callable[[int], None], say: Callable[[int], None]) -> None:
        self.pause = pause
        self.say = say
        self.lock = threading.Lock()
        self.open = 0

    def __enter__(self) -> None:
        with self.lock:
            self.open += 1
            if self.open == 1:
                self.say(1)
                self.pause(1)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.open -= 1
            if self.open == 0:
                self.pause(0)
                self.say(0)

    def inductor(self, module: Any) -> None:
        """``module`` is `torch._inductor.runtime.benchmarking` or `…triton_heuristics`: their classes that time."""
        for owner in [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]:
            for name in _TIMING:
                if isinstance(owner, type) and name in vars(owner):
                    setattr(owner, name, self._paused(vars(owner)[name]))

    def triton(self, module: Any) -> None:
        """``module`` is `triton.runtime.autotuner`."""
        if hasattr(module.Autotuner, "_bench"):
            module.Autotuner._bench = self._paused(module.Autotuner._bench)  # noqa: SLF001 - there is no other way

    def _paused(self, function: Any) -> Any:
        if not callable(function):  # a property or a class method of another version
            return function

        @functools.wraps(function)
        def paused(*arguments: Any, **options: Any) -> Any:
            with self:
                return function(*arguments, **options)

        return paused
