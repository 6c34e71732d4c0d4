"""The variants that the what-if view moves through: schedulers on GPUs of other sizes and with other options, simulated
beforehand.

A *knob* is one option of a scheduler with the values that its slider has. A *variant* moves away from the recorded GPU
and the scheduler's own options in one knob, or in one or both sizes; other combinations are for a served page.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tileprof.analysis.bounds import Machine
from tileprof.analysis.simulate import SCHEDULERS, Simulator, scheduler
from tileprof.errors import UserError
from tileprof.viz.comparisons import OCCUPANCIES, SIZES, cost, finite
from tileprof.viz.tables.page_values import printable

if TYPE_CHECKING:
    from dataclasses import Field

    from tileprof.analysis import TileGraph

VARIANT_TILES = 10_000_000
"""Tiles simulated for the sliders of one page, all variants together: ten seconds or so of one core."""
_MOST_TILES = 300_000
"""Tiles of a program whose page has sliders at all: of a larger one each run takes a second, and a page is not waited
for so long.
"""
MOST_VARIANTS = 120
"""However small the program: a simulation of nothing takes a millisecond or so too."""
_FIRST = ("cusync", "list", "pdl", "graph", "stream", "acs-sw", "acs-hw")
"""Schedulers whose sliders come first where there is no time for all."""
_IN_STUDY = ("stream", "graph", "list")
"""Schedulers whose times on other sizes are in `Study.sizes`."""
_COST = {"dataflow-bloom": 60}
"""The cost of a run relative to the others: its filters are filled again from every access."""
_STEPS_NS = (0.0, 500.0, 1000.0, 2000.0, 4000.0)
"""Values for an option in ns that has no default of its own to be scaled."""


@dataclass(frozen=True, slots=True)
class Knob:
    """``default`` (None: the device's own figure) is among ``values``, which ascend, None first."""

    key: str
    meaning: str
    default: float | None
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """One run: ``key`` and ``value`` of the knob that was moved ("" for none); ``occupancy`` 0: as recorded;
    ``time_ns`` is infinite for a deadlock.
    """

    scheduler: str
    key: str
    value: float | None
    sms: int
    occupancy: int
    time_ns: float

    def to_json(self) -> list[Any]:
        return [self.scheduler, self.key, self.value, self.sms, self.occupancy, finite(self.time_ns)]


@cache
def knobs(name: str) -> tuple[Knob, ...]:
    """Return the options of a scheduler, those that say most first (as its class lists them)."""
    return tuple(_knob(field) for field in fields(cast("Any", SCHEDULERS[name])))


def _knob(field: Field[Any]) -> Knob:
    least, most, whole = (field.metadata[name] for name in ("least", "most", "whole"))
    default = cast("float | None", field.default)
    if default is None or default == 0:
        steps: tuple[float, ...] = _STEPS_NS if field.name.endswith("_ns") else (0, 1, 2, 4, 8)
        steps = (0.0, 0.25, 0.5, 0.75, 1.0) if most == 1 and not whole else steps
    else:
        steps = tuple(default * scale for scale in (0, 0.5, 1, 2, 4))
    numbers = {float(int(n)) if whole else float(n) for n in steps}
    inside = sorted(min(max(n, least), most) for n in numbers)
    values = tuple(dict.fromkeys(inside))
    return Knob(field.name, field.metadata["meaning"], default, (None, *values) if default is None else values)


def variants(graph: TileGraph, *, simulated_tiles: int = VARIANT_TILES) -> tuple[Variant, ...]:
    """Return whole sliders while ``simulated_tiles`` lasts; what a scheduler refuses is left out."""
    tiles = max(int(graph.tile_base[-1]), 1)
    if len(graph.launches) == 0 or tiles > _MOST_TILES:
        return ()
    each = cost(graph)
    budget = simulated_tiles
    variants_so_far: list[Variant] = []
    for points in _sliders(graph.device.sms):
        costs = each * sum(_COST.get(point.scheduler, 1) for point in points)
        if costs <= budget and len(variants_so_far) + len(points) <= MOST_VARIANTS:
            variants_so_far += points
            budget -= costs
    device = graph.device
    sizes = dict.fromkeys((w.sms, w.occupancy) for w in variants_so_far)
    with ThreadPoolExecutor(2) as pool:  # the engine holds no lock while it runs
        machines = pool.map(lambda at: Simulator(graph, Machine(device, at[0], at[1] or None)), sizes)
        simulators = dict(zip(sizes, machines, strict=True))
        results = pool.map(lambda w: _run(simulators[w.sms, w.occupancy], w), variants_so_far)
        return tuple(v for v in results if v is not None)


def _sliders(sms: int) -> Iterator[list[Variant]]:
    """Yield the points of one slider after another, without those that a page has anyway."""
    names = [*_FIRST, *(n for n in SCHEDULERS if n not in _FIRST)]
    counts = sorted({max(1, round(sms * size)) for size in SIZES} - {sms})
    no_time_ns = np.nan
    for name in names:
        if name not in _IN_STUDY:
            yield [Variant(name, "", None, count, 0, no_time_ns) for count in counts]
    for rank in range(max(len(knobs(name)) for name in names)):
        if rank == 1:
            for name in names:
                if name not in _IN_STUDY:
                    yield [
                        Variant(name, "", None, sms, occupancy, no_time_ns) for occupancy in OCCUPANCIES if occupancy
                    ]
        for name in names:
            for knob in knobs(name)[rank : rank + 1]:
                others = [value for value in knob.values if value != knob.default]
                yield [Variant(name, knob.key, value, sms, 0, no_time_ns) for value in others]
    for name in names:  # last, where there is time: both sizes moved together
        if name not in _IN_STUDY:
            yield [
                Variant(name, "", None, count, occupancy, no_time_ns)
                for occupancy in OCCUPANCIES
                if occupancy
                for count in counts
            ]


def _run(simulator: Simulator, variant: Variant) -> Variant | None:
    options = {} if variant.value is None else {variant.key: f"{variant.value:g}"}
    try:
        schedule = simulator.run(SCHEDULERS[variant.scheduler].with_options(options))
    except UserError:
        return None  # the study says which schedulers do not take the program
    return Variant(variant.scheduler, variant.key, variant.value, variant.sms, variant.occupancy, schedule.time_ns)


def variant_tables(variants: tuple[Variant, ...]) -> dict[str, Any]:
    """Return ``knobs`` (by scheduler: key, meaning, default, values) and ``variants`` of a page (rows in the order of
    `Variant`'s fields).
    """
    return {
        "knobs": {
            name: [[k.key, printable(k.meaning), k.default, list(k.values)] for k in knobs(name)] for name in SCHEDULERS
        },
        "variants": [v.to_json() for v in variants],
    }


def variant_value(graph: TileGraph, text: str, sms: int, occupancy: int) -> dict[str, Any]:
    """Return ``name:key=value,…`` on one size of GPU (0 blocks: as recorded). Raises `UserError` for what
    there is not.
    """
    schedule = Simulator(graph, Machine(graph.device, sms, occupancy or None)).run(scheduler(text))
    return {"time_ns": finite(schedule.time_ns), "deadlock": printable(schedule.deadlock)}
