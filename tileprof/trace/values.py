"""Checks what recorders hand over, and turns it into the values of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tileprof.trace import schema
from tileprof.trace.footprint import Footprint, Launch


def enum_code(column: str, word: str, words: tuple[str, ...]) -> int:
    """Return the word's place among the column's values. Raises ValueError for another word."""
    if word not in words:
        raise ValueError(f"{column} is {word!r}, expected one of {', '.join(words)}")
    return words.index(word)


def known_word(column: str, word: str, words: tuple[str, ...]) -> str:
    """Return the word. Raises ValueError where it is none of the column's values."""
    return words[enum_code(column, word, words)]


def utf8(text: str) -> str:
    """Return text that UTF-8 can hold: file names and module names may carry lone surrogates."""
    return text if type(text) is str and text.isascii() else str(text).encode("utf-8", "replace").decode()


def ints(values: Sequence[int]) -> list[int]:
    """Return plain integers, whatever integers came (torch.Size, numpy)."""
    return [int(v) for v in values]


def checked_footprint(footprint: Footprint) -> Footprint:
    """Return the footprint with its boxes sorted by tile. Raises ValueError for boxes that no trace may hold."""
    boxes, tiles = footprint.boxes, footprint.tiles
    if footprint.block.shape != (tiles, 3):
        raise ValueError(f"block has shape {footprint.block.shape}, expected {(tiles, 3)}")
    if not tiles:
        raise ValueError("a footprint has at least one tile")
    if footprint.duration_ns is not None and footprint.duration_ns.shape != (tiles,):
        raise ValueError(f"duration_ns has shape {footprint.duration_ns.shape}, expected {(tiles,)}")
    if not len(boxes):
        return footprint
    rules = {
        "a tile beyond the footprint's": (boxes.tile < 0) | (boxes.tile >= tiles),
        "a negative operand": boxes.operand < 0,
        "an unknown mode": (boxes.mode < 0) | (boxes.mode >= len(schema.MODES)),
        "a length below 1": boxes.length < 1,
        "a count below 1": (boxes.count_0 < 1) | (boxes.count_1 < 1),
    }
    for rule, broken in rules.items():
        if broken.any():
            raise ValueError(f"box {int(broken.argmax())} of {len(boxes)} has {rule}")
    if (np.diff(boxes.tile) < 0).any():
        boxes = boxes.take(np.argsort(boxes.tile, kind="stable"))
    return Footprint(footprint.block, boxes, footprint.duration_ns)


def launch_row(number: int, launch: Launch, tiles: int) -> tuple[Any, ...]:
    """Return the row's values in the order of ``schema.LAUNCHES``."""
    return LaunchRows(launch, tiles).row(number, launch.module, launch.begin_ns, launch.call)


class LaunchRows:
    """Rows of launches that differ from ``launch`` in their number, module, begin and call alone.

    A program of small operators launches the same few kernels thousands of times; what is equal is checked once.
    """

    __slots__ = ("_after", "_before", "_between", "_last", "launch", "operands", "tiles")

    def __init__(self, launch: Launch, tiles: int, operands: int = 0) -> None:
        self.launch = launch
        self.tiles = tiles
        self.operands = operands
        """Slots that the footprint has: a launch binds as many at least."""
        self._before, self._between, self._after = _columns(launch, tiles)
        self._last = (
            utf8(launch.device),
            known_word("shape_source", launch.shape_source, schema.SHAPE_SOURCES),
            known_word("time_source", launch.time_source, schema.TIME_SOURCES),
        )

    def row(self, number: int, module: str, begin_ns: int, call: str) -> tuple[Any, ...]:
        """Return the values in the order of ``schema.LAUNCHES``."""
        head = (number, *self._before, utf8(module), *self._between, int(begin_ns))
        return (*head, *self._after, utf8(call), *self._last)


def _columns(launch: Launch, tiles: int) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Return the columns between number and module, between module and begin, and between begin and call."""
    before = (launch.footprint, utf8(launch.kernel), utf8(launch.fingerprint), utf8(launch.op))
    between = (
        launch.stream,
        launch.graph,
        *launch.grid,
        *launch.block,
        *launch.cluster,
        launch.registers,
        launch.shared_bytes,
        launch.blocks_per_sm,
        tiles,
    )
    after = (
        int(launch.duration_ns),
        int(launch.flops),
        enum_code("timing", launch.timing, schema.TIMINGS),
        enum_code("coverage", launch.coverage, schema.COVERAGES),
        utf8(launch.note),
    )
    return before, between, after
