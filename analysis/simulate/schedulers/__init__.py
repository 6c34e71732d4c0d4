"""Schedulers by name; each in a module of its own, whose docstring cites its source and lists its options."""

from __future__ import annotations

from tileprof.analysis.simulate.scheduler import Scheduler, close
from tileprof.analysis.simulate.schedulers.acs import AcsSoftware
from tileprof.analysis.simulate.schedulers.cusync import CuSync
from tileprof.analysis.simulate.schedulers.dataflow import Dataflow
from tileprof.analysis.simulate.schedulers.graph import Graph
from tileprof.analysis.simulate.schedulers.listing import Listing
from tileprof.analysis.simulate.schedulers.pdl import Pdl
from tileprof.analysis.simulate.schedulers.stream import Stream
from tileprof.analysis.simulate.schedulers.streams import Streams
from tileprof.errors import UserError

SCHEDULERS: dict[str, Scheduler] = {
    s.name: s for s in (Stream(), Graph(), Pdl(), Streams(), AcsSoftware(), CuSync(), Dataflow(), Listing())
}
"""With their default options, from what runs today to what nothing reaches."""


def scheduler(text: str) -> Scheduler:
    """The scheduler that ``name`` or ``name:key=value,…`` asks for.

    Raises UserError for an unknown name or option, with a close match.
    """
    name, _, rest = text.partition(":")
    if name not in SCHEDULERS:
        raise UserError(f"there is no scheduler {name!r}{close(name, SCHEDULERS)}; there are {', '.join(SCHEDULERS)}")
    options = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"scheduler {name}: {part!r} is not key=value")
        options[key] = value
    return SCHEDULERS[name].with_options(options)
