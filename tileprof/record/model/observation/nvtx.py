"""NVTX ranges of ``torch.cuda.nvtx`` under the model recorder, also where PyTorch was built without NVTX.

There the functions raise; here they mark ranges, as they do on a machine with a GPU.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from torch.cuda import nvtx

from tileprof.nesting import compile_pattern

_NO_DEPTH: Final = -2
"""The result of a push and a pop where no tool counts depths (NVTX_NO_PUSH_POP_TRACKING)."""


class Ranges:
    """Tells of the ranges whose name ``pattern`` matches anywhere, however they nest and in whichever thread they end.

    ``matched`` counts them; ``names`` counts all that were opened.
    """

    def __init__(self, pattern: str, opened: Callable[[], None], closed: Callable[[], None]) -> None:
        self.pattern = pattern
        self.matched = 0
        self.names: Counter[str] = Counter()
        self._search = compile_pattern(pattern).search
        self._opened, self._closed = opened, closed
        self._stack = threading.local()
        self._started: set[int] = set()
        self._ids = itertools.count(1)
        self._real: Any = None

    def install(self) -> Callable[[], None]:
        """Replace PyTorch's NVTX functions, which are still called. Return a function that restores them."""
        self._real = before = nvtx._nvtx  # noqa: SLF001 - what its public functions call, also for modules that imported those
        nvtx._nvtx = self  # noqa: SLF001 - as above

        def restore() -> None:
            nvtx._nvtx = before  # noqa: SLF001 - as above

        return restore

    # ---- PyTorch's names

    def rangePushA(self, name: str) -> int:  # noqa: N802
        depth = self._ask("rangePushA", name, otherwise=_NO_DEPTH)
        stack = self._stack.__dict__.setdefault("open", [])
        stack.append(self._matches(name))
        if stack[-1]:
            self._opened()
        return int(depth)

    def rangePop(self) -> int:  # noqa: N802
        stack = self._stack.__dict__.get("open")
        if stack and stack.pop():
            self._closed()
        return int(self._ask("rangePop", otherwise=_NO_DEPTH))

    def rangeStartA(self, name: str) -> int:  # noqa: N802
        number = int(self._ask("rangeStartA", name, otherwise=0)) or next(self._ids)
        if self._matches(name):
            self._started.add(number)
            self._opened()
        return number

    def rangeEnd(self, number: int) -> None:  # noqa: N802
        if number in self._started:
            self._started.remove(number)
            self._closed()
        self._ask("rangeEnd", number)

    def __getattr__(self, name: str) -> Any:
        """Marks, and ranges of streams: nothing to record by, but they do not raise either."""
        return lambda *arguments: self._ask(name, *arguments)

    # ---- how

    def _ask(self, function: str, *arguments: Any, otherwise: Any = None) -> Any:
        """Return PyTorch's own function, where it has one: the class in its place has another name than the module."""
        if isinstance(self._real, type(nvtx)):
            return getattr(self._real, function)(*arguments)
        return otherwise

    def _matches(self, name: str) -> bool:
        self.names[name] += 1
        matches = self._search(name) is not None
        self.matched += matches
        return matches
