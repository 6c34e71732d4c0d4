"""Graphs of a few tiles whose times can be computed by hand, and these times."""

from tests.support.synthetic_graphs import footprint, graph, one_to_one, trace
from tileprof.analysis.simulate import Simulator, scheduler


def with_trace(g, lives, **launch):
    """Return two slots on the toy GPU, unless the launches say otherwise."""
    footprints = {i: footprint(len(life), duration_ns=life) for i, life in enumerate(lives)}
    rows = [{"footprint": i, "timing": "modelled", "block_x": 256, **launch} for i in footprints]
    g.recording = trace(rows, footprints)
    return g


def chain(first=0.0):
    """Return three launches of three 10 ns tiles on two slots; tile t needs tile t of the launch before."""
    links = [(i, i + 1, one_to_one(3, first=first)) for i in range(2)]
    return with_trace(graph([3, 3, 3], links), [[10.0] * 3] * 3)


def time_of(g, text):
    return Simulator(g).run(scheduler(text)).time_ns
