"""Synthetic workloads for what recorded programs lack; every generator says what it is after, and takes a seed where it
draws anything.

Spawn events (`Spawns`, for `tileprof.analysis.simulate.spawning`): those of `SPAWNS`. Task graphs, written as traces
that every command reads: `wavefront`, `random_wired`, `searched`, `squeezed`, `gated`, `rigid_bodies`, and
`application` for programs of many dependent kernels.
"""

from collections.abc import Callable

from tileprof.analysis.simulate.spawning import Spawns
from tileprof.analysis.workloads.applications import APPLICATIONS, application
from tileprof.analysis.workloads.graphs import Graph, citation, kronecker, power_law, rmat
from tileprof.analysis.workloads.nested import (
    amr,
    amr_nested,
    bfs,
    bfs_citation,
    join,
    join_gaussian,
    mandelbrot,
    sssp,
    sssp_citation,
)
from tileprof.analysis.workloads.tasks import (
    BODIES,
    gated,
    random_wired,
    rigid_bodies,
    searched,
    squeezed,
    wavefront,
)

SPAWNS: dict[str, Callable[..., Spawns]] = {
    "bfs": bfs,
    "bfs-citation": bfs_citation,
    "sssp": sssp,
    "sssp-citation": sssp_citation,
    "join": join,
    "join-gaussian": join_gaussian,
    "amr": amr,
    "amr-nested": amr_nested,
    "mandelbrot": mandelbrot,
}

__all__ = [
    "APPLICATIONS", "BODIES", "SPAWNS", "Graph", "amr", "amr_nested", "application", "bfs", "bfs_citation",
    "citation", "gated", "join", "join_gaussian", "kronecker", "mandelbrot", "power_law", "random_wired",
    "rigid_bodies", "rmat", "searched", "squeezed", "sssp", "sssp_citation", "wavefront",
]  # fmt: skip
