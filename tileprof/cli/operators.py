"""Traces of the CUDA recorder for policies: their operators in the tiles that the runtime's kernels have."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tileprof.analysis import TileGraph
    from tileprof.policy.format import Policy


def in_tiles_of_stages(graph: TileGraph, launches: Sequence[int] | None) -> tuple[TileGraph, list[int] | None]:
    """The graph of the recording with its operators cut into the runtime's tiles, and ``launches`` in its numbers.

    Both unchanged where none of ``launches`` (all, for None) says how its operator was called.
    """
    from tileprof.analysis import build_graph  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.trace import load  # noqa: PLC0415 - likewise

    trace = graph.trace
    if trace.manifest["recorder"] != "cuda":
        return graph, _listed(launches)
    calls = trace.launches["call"].astype(str)
    if not any('"number":' in calls.iloc[n] for n in (range(len(calls)) if launches is None else launches)):
        return graph, _listed(launches)
    try:
        from tileprof.record.model.recut import recut  # noqa: PLC0415 - needs torch
    except ImportError:
        print("The operators of this recording can be cut into stages where PyTorch is installed.", file=sys.stderr)
        return graph, _listed(launches)
    folder = Path(tempfile.mkdtemp(prefix="tileprof-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = recut(trace, folder / "operators.tileprof")
    if not made.operators:
        return graph, _listed(launches)
    numbers = None if launches is None else sorted({new for old in launches for new in made.launches[old]})
    return build_graph(load(made.path)), numbers


def fitting(policy: Policy, graph: TileGraph) -> TileGraph:
    """The graph whose launches the policy names: the recording's own, or the one of `in_tiles_of_stages`."""
    if _names(policy, graph):
        return graph
    other, _ = in_tiles_of_stages(graph, None)
    return other if _names(policy, other) else graph


def _names(policy: Policy, graph: TileGraph) -> bool:
    kernels = graph.launches["kernel"].astype(str)
    named = [s for s in policy.stages if s.launch is not None and s.kernel]
    return all(s.launch is not None and s.launch < len(kernels) and s.kernel == kernels.iloc[s.launch] for s in named)


def _listed(launches: Sequence[int] | None) -> list[int] | None:
    return None if launches is None else list(launches)
