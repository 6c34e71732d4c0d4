"""The launch-level graph as GraphML: nodes are launches, edges are dependent pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tileprof.policy.emit.names import xml_text

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph

GRAPHML = "graph.graphml"


def graphml_files(graph: TileGraph, launches: Sequence[int] | None = None) -> dict[str, str]:
    """Return texts by file name; ``launches`` keeps those alone. Attributes are the columns of
    `TileGraph.to_networkx`.
    """
    import networkx as nx  # noqa: PLC0415 (0.2 s that only this needs)

    whole = graph.to_networkx()
    subgraph = whole if launches is None else whole.subgraph(launches)
    plain = nx.DiGraph()
    plain.add_nodes_from((node, _plain(values)) for node, values in subgraph.nodes(data=True))
    plain.add_edges_from((p, c, _plain(values)) for p, c, values in subgraph.edges(data=True))
    return {GRAPHML: "\n".join(nx.generate_graphml(plain)) + "\n"}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return attributes as GraphML has them: numbers, truth and text; unknown ones are left out."""
    attributes: dict[str, Any] = {}
    for name, value in values.items():
        plain = value.item() if isinstance(value, np.generic) else value
        if plain is None or plain != plain:  # noqa: PLR0124 (only NaN differs from itself)
            continue
        attributes[name] = plain if isinstance(plain, bool | int | float) else xml_text(str(plain))
    return attributes
