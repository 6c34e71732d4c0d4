"""Traces for policies: their operators in the tiles that the runtime's kernels have."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from tileprof.cli.text.messages import say

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from tileprof.analysis import TileGraph
    from tileprof.policy.format import Policy, Stage
    from tileprof.runtime.suited_tiles import Suited


MOST_PAIRS = 50
"""Pairs of a recording that are tried for stages with operators."""

ROWS = "rows"
"""The tiles of an epilogue: see `tileprof.record.model.recut_gpu_recording`."""

MOST_SETS = 16
"""Different sets of products for which tiles are looked for."""

MOST_SIDE = 1 << 20
"""Most rows or columns of a tile in a policy."""

TILED = frozenset({"gemm", "conv2d"})
"""Operators whose tiles are chosen."""

TOLERANCE = 0.001
"""Share of the time that finer waits must save."""

ARCHITECTURE = "sm_90"
"""Architecture of the device whose persistent kernel takes products and convolutions."""


KERNEL_MODEL = "this package's kernels: one launch per stage in stream order, all stages in one launch"
"""The name of the prediction that `with_kernel_prediction` makes."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The graph of a recording whose operators have the tiles of stages; ``launches``: its numbers by recorded ones."""

    graph: TileGraph
    launches: dict[int, tuple[int, ...]]
    recorded_graph: TileGraph

    def numbers(self, launches: Sequence[int]) -> list[int]:
        """Return the launches that stand for these recorded ones."""
        return sorted({new for old in launches for new in self.launches[old]})

    def by_recorded_launch(self, words: Mapping[int, str]) -> dict[int, str]:
        """Return the words about launches of the cut by the recorded launches that they stand for."""
        return {old: words[new[0]] for old, new in self.launches.items() if len(new) == 1 and new[0] in words}


@dataclass(frozen=True, slots=True)
class StageLaunches:
    """Launches of a cut that are stages, those that become their epilogues, and the tiles that suit the runtime."""

    stages: tuple[int, ...]
    folded: tuple[int, ...]
    suited: Suited


def in_tiles_of_stages(graph: TileGraph, tiles: Mapping[int, str] | None = None) -> Cut | None:
    """Return the recording with its operators cut into the runtime's tiles; None where no launch says how its operator
    was called. ``tiles``: those of some operators, by recorded launch; others follow a rule.
    """
    from tileprof.analysis import build_graph  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.trace import load  # noqa: PLC0415 - as above

    trace = graph.recording
    if not trace.launches["call"].astype(str).str.contains('"number":').any():
        return None
    try:
        from tileprof.record.model.recut_gpu_recording import recut  # noqa: PLC0415 - needs torch
    except ImportError:
        say("The operators of this recording can be cut into stages where PyTorch is installed.")
        return None
    folder = Path(tempfile.mkdtemp(prefix="tileprof-"))
    try:
        recutting = recut(trace, folder / "operators.tileprof", tiles)
        cut = Cut(build_graph(load(recutting.path)), recutting.launches, graph) if recutting.operators else None
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if cut is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:  # its tables are read when they are asked for
        weakref.finalize(cut.graph.recording, shutil.rmtree, folder, ignore_errors=True)
    return cut


def chosen_by_runtime(graph: TileGraph, sets: Iterable[Sequence[int]]) -> StageLaunches | None:
    """Return that one of some sets of launches for which the runtime's model saves most time; None where its persistent
    kernel takes none.
    """
    from tileprof.policy.synthesis.stage_choice import epilogues_between, stages_with  # noqa: PLC0415 - heavy
    from tileprof.runtime.suited_tiles import suited  # noqa: PLC0415 - imports PyTorch

    device = graph.device
    if device.architecture != ARCHITECTURE:
        return None
    fits: dict[str, tuple[StageLaunches, Policy] | None] = {}
    for stages in sets:
        folded = epilogues_between(graph, stages)
        policy = stages_with(graph, stages, folded)
        if policy is None:
            continue
        key = json.dumps([{**s.operator, "operands": _layouts(s)} for s in policy.stages], sort_keys=True)
        if key not in fits:
            if len(fits) == MOST_SETS:
                break
            fit = suited(policy, device.sms)
            fits[key] = None if fit is None else (StageLaunches(tuple(stages), tuple(folded), fit), policy)
    accepted = [each for each in fits.values() if each is not None]
    if not accepted:
        return None
    best_cut, policy = max(accepted, key=lambda each: each[0].suited.alone_us - each[0].suited.together_us)
    return replace(best_cut, suited=suited(policy, device.sms, thorough=True) or best_cut.suited)


def _layouts(stage: Stage) -> dict[str, Any]:
    operands = stage.operator["operands"]
    return {role: {k: v for k, v in view.items() if k != "tensor"} for role, view in operands.items()}


def retiled(cut: Cut, chosen: StageLaunches) -> Cut:
    """Return the recording cut again, with the tiles that suit the chosen stages."""
    words = {
        launch: tile_word(name, tile)
        for launch, name, tile in zip(chosen.stages, chosen.suited.names, chosen.suited.tiles, strict=True)
    }
    words |= dict.fromkeys(chosen.folded, ROWS)
    return in_tiles_of_stages(cut.recorded_graph, cut.by_recorded_launch(words)) or cut


def tile_word(name: str, tile: Sequence[int]) -> str:
    """Return a tile of a stage's operator as the tile models take it."""
    family = {"gemm": "gemm", "conv2d": "conv"}[name]
    return f"{family}={tile[0]}x{tile[1]}x64,split=1"


def with_best_waits(policy: Policy, graph: TileGraph, launches: Sequence[int]) -> Policy:
    """Return the policy, or the same stages with the exact waits of their operators, where the runtime's model is
    faster so.

    Synthesis ranks waits by tiles that run as recorded; in one persistent kernel a tile that may begin earlier loads
    earlier, too.
    """
    from tileprof.policy.synthesis.search import with_prediction  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.policy.verification.verifier import verify  # noqa: PLC0415 - as above

    device = graph.device
    if device.architecture != ARCHITECTURE or not all(s.operator.get("name") in TILED for s in policy.stages):
        return policy
    from tileprof.runtime.suited_tiles import modelled_us, with_exact_waits  # noqa: PLC0415 - imports PyTorch

    before = modelled_us(policy, device.sms)
    if before is None:
        return policy
    exact = with_exact_waits(policy)
    after = modelled_us(exact, device.sms)
    if after is None or after > before * (1 - TOLERANCE) or not verify(exact, graph, launches, excess=False).sound:
        return policy
    edges = tuple(replace(edge, reason=f"{edge.kind}: exact, for the persistent kernel") for edge in exact.edges)
    return with_prediction(replace(exact, edges=edges), graph, launches)


def with_kernel_prediction(policy: Policy, fit: Suited, sms: int) -> Policy:
    """Return the policy with what the model of the kernel that will run it says; tiles as recorded are another
    kernel's.
    """
    from tileprof.runtime.suited_tiles import modelled_us  # noqa: PLC0415 - imports PyTorch

    after_us = modelled_us(policy, sms) or fit.together_us
    prediction = {
        "model": KERNEL_MODEL,
        "stream_us": round(fit.alone_us, 3),
        "policy_us": round(after_us, 3),
        "gain_percent": round(100 * (1 - after_us / fit.alone_us), 2),
    }
    return replace(policy, prediction=prediction)


def best_stages(graph: TileGraph, cut: Cut, *, around: bool) -> list[int] | None:
    """Return the stages of the first pair of the report that the runtime computes, in the numbers of ``cut``; None
    where it computes none.

    ``around``: activations at the ends of a pair are left to the launches around them. A stage is worth a kernel of its
    own: a pair of pointwise launches is none. Where every pair of the recording is inside an operator (a fill and its
    product), the pairs of the operators are ranked.
    """
    from tileprof.policy.synthesis.stage_choice import around_epilogues, is_stage, ranked_pairs  # noqa: PLC0415 - heavy

    recorded = (cut.numbers(pair) for pair in islice(ranked_pairs(graph), MOST_PAIRS))
    pairs = () if cut.graph is graph else islice(ranked_pairs(cut.graph), MOST_PAIRS)
    for candidate in chain(recorded, map(list, pairs)):
        numbers = candidate
        if around and len(candidate) == 2:
            numbers = list(around_epilogues(cut.graph, (candidate[0], candidate[1])))
        if len(numbers) > 1 and all(is_stage(cut.graph, n) for n in numbers):
            return numbers
    return None


def fitting(policy: Policy, graph: TileGraph) -> TileGraph:
    """Return the graph whose launches the policy names: the recording's own, or the one of `in_tiles_of_stages`."""
    if _names(policy, graph):
        return graph
    cut, words = in_tiles_of_stages(graph), _words(policy)
    if cut is not None and words and not _names(policy, cut.graph):
        cut = in_tiles_of_stages(graph, cut.by_recorded_launch(words))
    return cut.graph if cut is not None and _names(policy, cut.graph) else graph


def _words(policy: Policy) -> dict[int, str]:
    """Return the tiles of a policy's stages, by launch."""
    words = {}
    for stage in policy.stages:
        name, tile = stage.operator.get("name"), stage.operator.get("parameters", {}).get("tile")
        sizes = isinstance(tile, list) and len(tile) == 2 and all(type(n) is int and 0 < n <= MOST_SIDE for n in tile)
        if name in TILED and sizes and stage.launch is not None:
            words[stage.launch] = tile_word(str(name), tile)
    epilogues = policy.guard.get("epilogues", [])
    return words | {launch: ROWS for launch in epilogues if type(launch) is int}


def _names(policy: Policy, graph: TileGraph) -> bool:
    kernels = graph.launches["kernel"].astype(str)
    stages = [s for s in policy.stages if s.launch is not None and s.kernel]
    return all(s.launch is not None and s.launch < len(kernels) and s.kernel == kernels.iloc[s.launch] for s in stages)
