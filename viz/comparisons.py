"""The comparisons of a page: the program under every scheduler, and on GPUs of other sizes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from tileprof.analysis.bounds import Bounder, Machine
from tileprof.analysis.simulate import SCHEDULERS, Simulator
from tileprof.analysis.waves import launch_waves
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph
    from tileprof.analysis.simulate import Schedule

SIMULATED_TILES = 5_000_000
"""Tiles simulated for one page, all schedules and sizes together: ten seconds or so of two cores."""

_LAUNCH_TILES = 30
"""The cost of a launch in a simulation, in tiles: programs of many small launches have few tiles, and take as long."""

SIZES = (0.5, 0.75, 1.0, 1.5, 2.0)
"""SM counts of the what-if table, in units of the device's."""

OCCUPANCIES = (0, 1, 2)
"""Blocks an SM of the what-if table; 0: of each launch as recorded."""

_FIRST = ("stream", "list", "graph", "cusync")
"""Schedulers to run where there is no time for all."""


@dataclass(frozen=True, slots=True)
class Size:
    """The program on a GPU of these SMs and blocks per SM (0: as recorded): one launch after the other, with gaps of
    plain launches and of a CUDA graph, and list-scheduled with free launches.
    """

    sms: int
    occupancy: int
    stream_ns: float
    graph_ns: float
    list_ns: float


@dataclass(frozen=True, slots=True)
class Study:
    """``schedules`` on the recorded GPU, in the order of `SCHEDULERS`; ``skipped`` names those not run for the
    program's size; ``refused`` says which would not take the program, and why.
    """

    schedules: tuple[Schedule, ...]
    skipped: tuple[str, ...]
    sizes: tuple[Size, ...]
    refused: tuple[str, ...] = ()


def cost(graph: TileGraph) -> int:
    """Return what one simulation of a program costs, in tiles."""
    return max(int(graph.tile_base[-1]), 1) + _LAUNCH_TILES * len(graph.launches)


def study(graph: TileGraph, *, simulated_tiles: int = SIMULATED_TILES) -> Study:
    """Run as many schedulers and sizes as ``simulated_tiles`` allows; stream and list order always."""
    each = cost(graph)
    if len(graph.launches) == 0:
        return Study((), (), ())
    names = [*_FIRST, *(n for n in SCHEDULERS if n not in _FIRST)]
    detailed_names = set(names[: max(2, simulated_tiles // each)])
    simulator = Simulator(graph)
    chosen_names = [name for name in SCHEDULERS if name in detailed_names]
    with ThreadPoolExecutor(2) as pool:  # the engine holds no lock while it runs
        answers = list(pool.map(lambda name: _run(simulator, name), chosen_names))
        schedules = tuple(a for a in answers if not isinstance(a, str))
        room = simulated_tiles // each - len(chosen_names)
        listed = next(s.time_ns for s in schedules if s.scheduler == "list")
        sizes = tuple(pool.map(lambda at: _size(graph, at[0], at[1], listed), _points(graph.device.sms, room)))
    skipped = tuple(name for name in SCHEDULERS if name not in detailed_names)
    return Study(schedules, skipped, sizes, tuple(a for a in answers if isinstance(a, str)))


def _run(simulator: Simulator, name: str) -> Schedule | str:
    """Return the schedule, or why the scheduler does not take this program."""
    try:
        return simulator.run(SCHEDULERS[name])
    except UserError as error:
        return f"{name}: {error}"


def _points(sms: int, simulations: int) -> Iterator[tuple[int, int]]:
    """Yield (SMs, occupancy) of the table, whole rows of it while there are simulations left."""
    counts = sorted({max(1, round(sms * size)) for size in SIZES})
    for occupancy in OCCUPANCIES:
        simulations -= len(counts)
        if simulations < 0:
            return
        yield from ((count, occupancy) for count in counts)


def size(graph: TileGraph, sms: int, occupancy: int) -> Size:
    """Return the program on one other size of GPU. Raises `UserError` where there is no such GPU."""
    return _size(graph, sms, occupancy, None)


def _size(graph: TileGraph, sms: int, occupancy: int, listed_ns: float | None) -> Size:
    """Simulate one size of GPU. ``listed_ns``: the list schedule's time on the recorded GPU, where it is known."""
    device = graph.device
    machine = Machine(device, sms, occupancy or None)
    known_ns = listed_ns if machine == Machine(device) else None
    bounder = Bounder(graph, machine)
    alone_ns = float(launch_waves(graph.launches, bounder.slots, bounder.durations)["alone_ns"].sum())
    gaps = max(len(graph.launches) - 1, 0)
    return Size(
        sms,
        occupancy,
        alone_ns + gaps * float(device.launch_gap_ns),
        alone_ns + gaps * float(device.graph_gap_ns),
        Simulator(graph, machine).run(SCHEDULERS["list"]).time_ns if known_ns is None else known_ns,
    )


def plain(size: Size) -> dict[str, float | None]:
    """Return a row of the table for JSON."""
    return asdict(size) | {"list_ns": finite(size.list_ns)}


def finite(ns: float) -> float | None:
    """Return a number for JSON, which has no infinity."""
    return ns if np.isfinite(ns) else None
