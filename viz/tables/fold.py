"""Repeated layers: a launch sequence written as ``12 x [one layer]``, layers within layers.

A fold is a list of items. ``{"launch": i}`` is one launch; ``{"start": s, "period": p, "count": n, "items": [...]}``
stands for ``n`` copies of ``p`` launches. Positions inside ``items`` count from the start of a copy. Where more would
be drawn than a reader can take in, launches of one module stand together: an item with ``"module"`` and ``"count": 1``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Item = dict[str, Any]

_SAVES_AT_LEAST = 3
"""Launches that a fold must hide; two equal neighbours are easier to read unfolded."""

_LONGEST_PERIOD = 2_000
"""Launches in one copy: the search costs launches x longest period."""

_LONGEST_SEQUENCE = 50_000

_MOST_DRAWN = 30
"""Launches that are drawn one by one at first; of more, those of one module are one box that can be opened."""

_MOST_IN_MODULE = 12

_LEAST_BOXES = 6
"""A drawing of fewer boxes says nothing: then the module around most launches is open."""

_DIGITS = re.compile(r"\d+")


def fold_launches(launches: pd.DataFrame) -> list[Item]:
    """Fold launches that repeat: equal kernel, operator and grid, and modules equal up to their digits."""
    modules = launches["module"].astype(str)
    shape = modules.str.replace(_DIGITS, "#", regex=True)
    columns = [launches[c].astype(str) for c in ("kernel", "op", "grid_x", "grid_y", "grid_z")]
    keys = pd.factorize(pd.Series(list(zip(shape, *columns, strict=True)), dtype=object))[0]
    numbers = pd.factorize(modules.map(lambda m: "".join(_DIGITS.findall(m)[:1])))[0]
    items = fold(keys, numbers)
    return _split_largest(by_module(items, [m.split(".") if m else [] for m in modules], 0, 0, _MOST_DRAWN))


def by_module(
    items: list[Item], modules: Sequence[list[str]], origin: int, prefix_length: int, most: int
) -> list[Item]:
    """Return the items with those of one module together, module in module, where more than ``most`` would be drawn.

    ``modules`` are the launches' paths, ``origin`` the launch from which the items count, ``known`` how many parts of
    the path the module around them has.
    """
    if sum(map(_drawn_launches, items)) <= most:
        return items
    paths = [_path(item, modules, origin) for item in items]
    prefix_length = max(prefix_length, len(_common_parts([path for path in paths if path])))
    grouped: list[Item] = []
    for key, run in groupby(zip(paths, items, strict=True), lambda pair: _key(pair[0], prefix_length)):
        inside = [item for _, item in run]
        start = _begin(inside[0])
        if key is None or (len(inside) == 1 and "launch" in inside[0]):
            grouped += inside
        elif len(inside) == 1:
            (group,) = inside
            deeper = by_module(group["items"], modules, origin + start, prefix_length, _MOST_IN_MODULE)
            grouped.append(group | {"items": deeper})
        else:
            shifted_items = [
                item | {"launch" if "launch" in item else "start": _begin(item) - start} for item in inside
            ]
            deeper = by_module(shifted_items, modules, origin + start, len(key), _MOST_IN_MODULE)
            period = sum(map(_launches, inside))
            grouped.append({"start": start, "period": period, "count": 1, "module": ".".join(key), "items": deeper})
    return grouped


def _split_largest(items: list[Item]) -> list[Item]:
    """Return the items with the largest modules taken apart until enough boxes are drawn for a reader to see a
    structure.
    """
    while _boxes(items) < _LEAST_BOXES:
        modules = [k for k, item in enumerate(items) if "module" in item]
        if not modules:
            break
        at = max(modules, key=lambda k: _launches(items[k]))
        items = [*items[:at], *_inside(items[at]), *items[at + 1 :]]
    return items


def _inside(group: Item) -> list[Item]:
    """Return what stands in a module, counted as the module was; of many launches that are the module's own, each run
    is one module again, so that they do not hide the modules in it.
    """
    start = group["start"]
    shifted_items = [
        item | {"launch" if "launch" in item else "start": _begin(item) + start} for item in group["items"]
    ]
    if _boxes(shifted_items) <= _MOST_IN_MODULE:
        return shifted_items
    inside: list[Item] = []
    for own, run in groupby(shifted_items, lambda item: "launch" in item):
        stretch = list(run)
        if own and len(stretch) > _SAVES_AT_LEAST:
            begin = _begin(stretch[0])
            launches = [{"launch": _begin(item) - begin} for item in stretch]
            inside.append(group | {"start": begin, "period": len(stretch), "items": launches})
        else:
            inside += stretch
    return inside


def _boxes(items: list[Item]) -> int:
    """Return boxes that are drawn while every module is closed and one copy of each repeated layer is shown."""
    return sum(1 if "launch" in item or "module" in item else _boxes(item["items"]) for item in items)


def _begin(item: Item) -> int:
    return int(item["launch" if "launch" in item else "start"])


def _launches(item: Item) -> int:
    return 1 if "launch" in item else int(item["period"] * item["count"])


def _drawn_launches(item: Item) -> int:
    return 1 if "launch" in item else sum(map(_drawn_launches, item["items"]))


def _common_parts(paths: Sequence[list[str]]) -> list[str]:
    """Return the parts with which all paths begin."""
    if not paths:
        return []
    first, last = min(paths), max(paths)
    same = next((k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]


def _path(item: Item, modules: Sequence[list[str]], origin: int) -> list[str]:
    """Return the path that all launches of an item share."""
    begin = origin + _begin(item)
    return _common_parts(modules[begin : begin + _launches(item)])


def _key(path: list[str], prefix_length: int) -> tuple[str, ...] | None:
    """Return the module that an item stands with: its path up to the first number after ``known`` parts, or one part
    more.
    """
    number = next((k for k in range(prefix_length, len(path)) if path[k].isdecimal()), prefix_length)
    return tuple(path[: number + 1]) if len(path) > prefix_length else None


def fold(keys: Sequence[int] | NDArray[np.int64], numbers: Sequence[int] | NDArray[np.int64]) -> list[Item]:
    """Fold a sequence whose equal ``keys`` may stand for each other.

    ``numbers`` tell copies apart where they can (the layer's number): of the ways to cut a repetition into copies,
    the one whose cuts fall where the number changes is taken.
    """
    keys, numbers = np.asarray(keys), np.asarray(numbers)
    if len(keys) > _LONGEST_SEQUENCE:
        return [{"launch": i} for i in range(len(keys))]
    return _fold(keys, numbers, 0, len(keys), 0)


def _fold(keys: NDArray[np.int64], numbers: NDArray[np.int64], low: int, high: int, origin: int) -> list[Item]:
    repeat = _best_repeat(keys[low:high])
    if repeat is None:
        return [{"launch": i - origin} for i in range(low, high)]
    begin, period, length = repeat
    count = length // period
    start = low + begin + _phase(numbers[low + begin : low + begin + length], period)
    end = start + count * period
    group: Item = {
        "start": start - origin,
        "period": period,
        "count": count,
        "items": _fold(keys, numbers, start, start + period, start),
    }
    return [
        *_fold(keys, numbers, low, start, origin),
        group,
        *_fold(keys, numbers, end, high, origin),
    ]


def _best_repeat(keys: NDArray[np.int64]) -> tuple[int, int, int] | None:
    """Return (begin, period, length) of the stretch whose folding hides most launches."""
    best, most = None, _SAVES_AT_LEAST - 1
    for period in range(1, min(len(keys) // 2, _LONGEST_PERIOD) + 1):
        equal = keys[:-period] == keys[period:]
        if np.count_nonzero(equal) <= most:
            continue
        breaks = np.concatenate(([-1], np.flatnonzero(~equal), [len(equal)]))
        runs = np.diff(breaks) - 1
        widest = int(np.argmax(runs))
        saved = int(runs[widest]) // period * period
        if saved > most:
            best, most = (int(breaks[widest]) + 1, period, int(runs[widest]) + period), saved
    return best


def _phase(numbers: NDArray[np.int64], period: int) -> int:
    """Return where in the stretch the first copy begins: the offset whose cuts see most changes of the number."""
    changes = np.concatenate(([True], numbers[1:] != numbers[:-1]))
    slack = len(numbers) % period
    scores = [int(np.count_nonzero(changes[offset::period])) for offset in range(slack + 1)]
    return int(np.argmax(scores))
