"""Choices that Inductor makes by measuring (``mode="max-autotune"``), made without: the first candidate in order.

Inductor puts the library's kernel first and its templates after it, each with the configurations of its heuristics.
Which is fastest is not known without a GPU; the library's kernel wins most products on one, and the note says so.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tileprof.record.model.compiled.wrapper import Listener


@contextmanager
def unmeasured(_listener: Listener) -> Iterator[None]:
    """Let no candidate be run."""
    selection: Any = __import__("torch._inductor.select_algorithm", fromlist=["AlgorithmSelectorCache"])
    cache = selection.AlgorithmSelectorCache
    with mock.patch.object(cache, "__call__", cache.__call__):
        yield
