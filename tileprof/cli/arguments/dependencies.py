"""What the dependencies of a trace are taken from: the recorded accesses, or the filters that its blocks filled."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from tileprof.cli.text.messages import say
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph
    from tileprof.trace import Trace


def add_by_filters(parser: ArgumentParser) -> None:
    """Add ``--by-filters``."""
    parser.add_argument(
        "--by-filters",
        action="store_true",
        help="take dependencies from the Bloom filters of the trace (`record --filters`), a superset, instead of its "
        "accesses",
    )


def graph_of(trace: Trace, options: Namespace) -> TileGraph:
    """Return the graph of a trace. One by filters is held against the accesses of the same run first.

    Raises UserError where the trace has no filters, and where they miss a dependency.
    """
    from tileprof.analysis import build_graph  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.analysis.simulate.filters.filter_graph import against, filter_graph  # noqa: PLC0415 - as above

    exact = build_graph(trace)
    if not options.by_filters:
        return exact
    graph = filter_graph(trace)
    agreement = against(graph, exact)
    if agreement.lacking:
        raise UserError(
            f"the filters of {trace.path} miss {agreement.lacking:,} of {agreement.exact:,} dependencies that its "
            "accesses have (memory mapped at two addresses has two names in filters); leave --by-filters out"
        )
    say(
        f"tileprof: {graph.basis}: {agreement.by_filters:,} pairs of tiles, {agreement.false:,} of which share no "
        f"byte that either writes; by accesses {agreement.exact:,}, all of them among these."
    )
    return graph
