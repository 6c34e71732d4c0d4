"""Schedulers by name; the docstring of each class cites its source and lists its options."""

from __future__ import annotations

from typing import Final

from tileprof.analysis.simulate.scheduler import Scheduler, close, key_values
from tileprof.analysis.simulate.schedulers.acs import AcsHardware, AcsSoftware
from tileprof.analysis.simulate.schedulers.blockmaestro import BlockMaestro
from tileprof.analysis.simulate.schedulers.bloom import DataflowBloom
from tileprof.analysis.simulate.schedulers.ccks import Ccks
from tileprof.analysis.simulate.schedulers.cusync import CuSync
from tileprof.analysis.simulate.schedulers.dataflow import Dataflow
from tileprof.analysis.simulate.schedulers.dynamic import PersistentDynamic
from tileprof.analysis.simulate.schedulers.graph import Graph
from tileprof.analysis.simulate.schedulers.inline import Inline
from tileprof.analysis.simulate.schedulers.list_scheduling import Listing
from tileprof.analysis.simulate.schedulers.pdl import Pdl
from tileprof.analysis.simulate.schedulers.persistent import Persistent
from tileprof.analysis.simulate.schedulers.stream import Stream
from tileprof.analysis.simulate.schedulers.streams import Streams
from tileprof.analysis.simulate.schedulers.wireframe import Wireframe
from tileprof.errors import UserError

SCHEDULERS: dict[str, Scheduler] = {
    s.name: s
    for s in (
        Stream(),
        Graph(),
        Pdl(),
        Streams(),
        AcsSoftware(),
        AcsHardware(),
        CuSync(),
        Persistent(),
        PersistentDynamic(),
        Inline(),
        Ccks(),
        BlockMaestro(),
        Wireframe(),
        DataflowBloom(),
        Dataflow(),
        Listing(),
    )
}
"""All schedulers with their default options, from those that run today to the one that nothing reaches."""


_OF_THE_RUNTIME: Final = {
    "acs": "acs-sw:events=1",
    "acs-graph": "acs-sw:captured=1",
    "ccks-ready": "ccks:speculate=0",
    "ccks-overwrite": "ccks:overwrite=1",
}
"""Names of `tileprof run --scheduler` whose twin has another name here."""


def scheduler(text: str) -> Scheduler:
    """Return the scheduler that ``name`` or ``name:key=value,…`` asks for.

    Raises UserError for an unknown name or option, with a close match.
    """
    name, options = key_values(text)
    if name == "spawn":
        raise UserError(
            "a trace has no spawn events; `tileprof simulate workload:bfs` compares rules for child grids, and the "
            "scheduler inline applies SPAWN's rule to the tiles of a trace"
        )
    if name in _OF_THE_RUNTIME:
        raise UserError(f"{name} is a scheduler of `tileprof run`; the simulator has it as {_OF_THE_RUNTIME[name]}")
    if name not in SCHEDULERS:
        raise UserError(f"there is no scheduler {name!r}{close(name, SCHEDULERS)}; there are {', '.join(SCHEDULERS)}")
    return SCHEDULERS[name].with_options(options)
