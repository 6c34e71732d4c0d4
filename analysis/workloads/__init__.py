"""Synthetic workloads for what recorded programs lack; every generator takes a seed and says what it is after.

Spawn events (`Spawns`, for `tileprof.analysis.simulate.spawning`): `bfs`, `sssp`, `amr`, `mandelbrot`, `join`. Task graphs, written as traces that
every command reads: `wavefront`, `random_wired`, `rigid_bodies`.
"""

from collections.abc import Callable

from tileprof.analysis.simulate.spawning import Spawns
from tileprof.analysis.workloads.graphs import Graph, power_law, rmat
from tileprof.analysis.workloads.nested import amr, bfs, join, mandelbrot, sssp
from tileprof.analysis.workloads.tasks import random_wired, rigid_bodies, wavefront

SPAWNS: dict[str, Callable[..., Spawns]] = {
    "bfs": bfs,
    "sssp": sssp,
    "amr": amr,
    "mandelbrot": mandelbrot,
    "join": join,
}

__all__ = [
    "SPAWNS", "Graph", "amr", "bfs", "join", "mandelbrot", "power_law", "random_wired", "rigid_bodies", "rmat", "sssp", "wavefront",
]  # fmt: skip
