"""Traces of the CUDA recorder for policies: their operators in the tiles that the runtime's kernels have."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tileprof.cli.saying import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tileprof.analysis import TileGraph
    from tileprof.policy.format import Policy


MOST_PAIRS = 50
"""Pairs of a recording that are tried for stages with operators."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The graph of a recording whose operators have the tiles of stages; ``launches``: its numbers by recorded ones."""

    graph: TileGraph
    launches: dict[int, tuple[int, ...]]

    def numbers(self, launches: Sequence[int]) -> list[int]:
        """The launches that stand for these recorded ones."""
        return sorted({new for old in launches for new in self.launches[old]})


def in_tiles_of_stages(graph: TileGraph) -> Cut | None:
    """The recording with its operators cut into the runtime's tiles; None where no launch says how its operator was
    called.
    """
    from tileprof.analysis import build_graph  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.trace import load  # noqa: PLC0415 - likewise

    trace = graph.trace
    if trace.manifest["recorder"] != "cuda" or not trace.launches["call"].astype(str).str.contains('"number":').any():
        return None
    try:
        from tileprof.record.model.recut import recut  # noqa: PLC0415 - needs torch
    except ImportError:
        say("The operators of this recording can be cut into stages where PyTorch is installed.")
        return None
    folder = Path(tempfile.mkdtemp(prefix="tileprof-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = recut(trace, folder / "operators.tileprof")
    return Cut(build_graph(load(made.path)), made.launches) if made.operators else None


def best_stages(graph: TileGraph, cut: Cut, *, around: bool) -> list[int] | None:
    """The stages of the first pair of the report that the runtime computes, in the numbers of ``cut``; None where it
    computes none.

    ``around``: activations at the ends of a pair are left to the launches around them. A stage is worth a kernel of its
    own: a pair of pointwise launches is none.
    """
    from tileprof.policy.synthesis.stage_choice import around_epilogues, is_stage, ranked_pairs  # noqa: PLC0415 - heavy

    for pair in islice(ranked_pairs(graph), MOST_PAIRS):
        numbers = cut.numbers(pair)
        if around and len(numbers) == 2:
            numbers = list(around_epilogues(cut.graph, (numbers[0], numbers[1])))
        if len(numbers) > 1 and all(is_stage(cut.graph, n) for n in numbers):
            return numbers
    return None


def fitting(policy: Policy, graph: TileGraph) -> TileGraph:
    """The graph whose launches the policy names: the recording's own, or the one of `in_tiles_of_stages`."""
    if _names(policy, graph):
        return graph
    cut = in_tiles_of_stages(graph)
    return cut.graph if cut is not None and _names(policy, cut.graph) else graph


def _names(policy: Policy, graph: TileGraph) -> bool:
    kernels = graph.launches["kernel"].astype(str)
    named = [s for s in policy.stages if s.launch is not None and s.kernel]
    return all(s.launch is not None and s.launch < len(kernels) and s.kernel == kernels.iloc[s.launch] for s in named)
