"""Choices that Inductor makes by measuring (``mode="max-autotune"``), made without: by rule.

A library's kernel is taken where it is among the candidates: it wins most products on a GPU, and nothing here can tell
otherwise. Among templates alone it is the tile for which the busiest SM loads least, the largest of equals.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from tileprof.record.model.compiled.notes import MEASURED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FULL = 64
"""Rows and columns of a tile that keep a tensor core busy: smaller ones take as long."""

_NUMBER = re.compile(r"\b(BLOCK_M|BLOCK_N|BLOCK_K|num_warps|num_stages)=(\d+)")


@contextmanager
def unmeasured(sms: int, remark: Callable[[str], None]) -> Iterator[None]:
    """Let no candidate be run; ``remark`` hears of a choice among several."""
    selection: Any = __import__("torch._inductor.select_algorithm", fromlist=["AlgorithmSelectorCache"])
    original = selection.AlgorithmSelectorCache.__call__

    def choose(
        self: Any, name: str, candidates: list[Any], input_nodes: Any, layout: Any, *rest: Any, **options: Any
    ) -> Any:
        if len(candidates) > 1:
            remark(MEASURED)
            candidates = [best(candidates, _rows_and_columns(layout), sms)]
        return original(self, name, candidates, input_nodes, layout, *rest, **options)

    with mock.patch.object(selection.AlgorithmSelectorCache, "__call__", choose):
        yield


def _rows_and_columns(layout: Any) -> tuple[int, int, int]:
    """Return batch, rows and columns of a result; 1 for sizes that are not numbers."""
    sizes = [int(n) if str(n).isdigit() else 1 for n in getattr(layout, "size", ())]
    batch = 1
    for size in sizes[:-2]:
        batch *= size
    rows, columns = ([1, 1, *sizes])[-2:]
    return batch, rows, columns


def best(candidates: list[Any], shape: tuple[int, int, int], sms: int) -> Any:
    """Return the candidate to take for a result of ``shape``: batch, rows, columns."""
    for candidate in candidates:
        if type(candidate).__name__.startswith("Extern"):
            return candidate
    return min(candidates, key=lambda candidate: cost(getattr(candidate, "description", ""), shape, sms))


def cost(description: str, shape: tuple[int, int, int], sms: int) -> tuple[float, ...]:
    """Return what is smallest for the template's configuration to take: elements per step of the depth that the busiest
    SM loads; then, smaller is better, what says that a tile is large, deep, and has many warps and stages.
    """
    numbers = {name: int(value) for name, value in _NUMBER.findall(str(description))}
    if "BLOCK_M" not in numbers or "BLOCK_N" not in numbers:
        return (float("inf"),)
    batch, rows, columns = shape
    height, width = numbers["BLOCK_M"], numbers["BLOCK_N"]
    tiles = batch * -(-rows // height) * -(-columns // width)
    loaded = -(-tiles // sms) * (max(height, _FULL) + max(width, _FULL))
    depth, warps, stages = (numbers.get(name, 0) for name in ("BLOCK_K", "num_warps", "num_stages"))
    return loaded, -height * width, -warps, -depth, -stages
