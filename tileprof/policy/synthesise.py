"""The coarsest policy that loses no predicted gain, from a tile graph.

For every pair of stages the candidates are tried from one semaphore for the whole grid down to one a tile (`groupings`); each is
a superset of the dependencies by construction, and the verifier has the last word on the result. Candidates are ranked by
the predicted time of the pair; within `TOLERANCE` of the best the fewest semaphores win. An edge whose dependencies
are already covered through other edges is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.analysis.blocks import EdgeBlock, merge_blocks
from tileprof.errors import UserError
from tileprof.policy.format import Edge, Options, Policy, Semaphores
from tileprof.policy.grouping import edge_for, groupings
from tileprof.policy.guarantees import Guarantees
from tileprof.policy.guard import guard_of
from tileprof.policy.lower import lower_edge
from tileprof.policy.predict import Prediction, Predictor
from tileprof.policy.residency import kept_out
from tileprof.policy.stages import stage_of
from tileprof.policy.tiles import tile_numbers
from tileprof.policy.verify import verify

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph

TOLERANCE: Final = 0.001
"""Share of the pair's time that a coarser candidate may lose: below what any measurement resolves."""

I64 = NDArray[np.int64]


def synthesise(
    graph: TileGraph, launches: Sequence[int], *, renamed: bool = True, predictor: Predictor | None = None
) -> Policy:
    """A verified policy for some launches of a graph, in issue order.

    ``renamed``: the runtime gives every stage memory of its own, so hazards that exist only because memory was recycled need no
    waits; the guard says so. Raises `UserError` where the launches cannot be stages.
    """
    chosen = sorted(set(launches))
    if len(chosen) < 2:
        raise UserError(f"a policy needs at least two launches; {len(chosen)} given")
    predict = predictor or Predictor(graph)
    stages = tuple(stage_of(graph, launch) for launch in chosen)
    policy = Policy(stages, (), (), Options(), {"renamed": renamed, **guard_of(graph, chosen)})
    numbers = [tile_numbers(graph, launch) for launch in chosen]
    needs = _needs(graph, chosen, renamed=renamed)
    guaranteed = Guarantees(needs)
    known: dict[tuple[object, ...], tuple[Semaphores, Edge]] = {}
    # Nearest producers first: what lies further back is mostly covered through them.
    for producer, consumer in sorted(needs, key=lambda pair: (pair[1], -pair[0])):
        blocks, hazards = needs[producer, consumer]
        block = merge_blocks([graph.blocks[b] for b in blocks])
        parent, child, _ = block.edges()
        if guaranteed.holds(producer, consumer, numbers[producer][parent], numbers[consumer][child]).all():
            continue
        pair = chosen[producer], chosen[consumer]
        key = (blocks, hazards, *(int(graph.launches["footprint"].iloc[launch]) for launch in pair))
        if key not in known:
            known[key] = _best(predict, graph, pair, block, hazards)
        semaphores, edge = known[key]
        policy = _joined(policy, replace(semaphores, producer=producer), edge, producer, consumer)
        guaranteed.add(lower_edge(policy, len(policy.edges) - 1), (producer, consumer))
    verdict = verify(policy, graph, chosen)
    if not verdict.missing.empty:
        raise AssertionError(f"synthesised an unsound policy: {len(verdict.missing)} dependencies missing")
    if verdict.never:
        raise UserError(f"no policy for launches {_few(chosen)}: {'; '.join(verdict.never)}")
    whole = predict(policy, chosen)
    notes = _notes(graph, chosen, verdict.renamable, whole, renamed=renamed)
    options = _options(policy, graph)
    return replace(policy, prediction=_prediction(whole, predict), options=options, notes=notes)


def _few(launches: list[int]) -> str:
    shown = ", ".join(map(str, launches[:6]))
    return shown if len(launches) <= 6 else f"{shown}, … ({len(launches)})"


def _needs(
    graph: TileGraph, launches: list[int], *, renamed: bool
) -> dict[tuple[int, int], tuple[tuple[int, ...], tuple[str, ...]]]:
    """Blocks and hazards between each two stages that depend on each other."""
    links = graph.links
    inside = links[links["producer"].isin(launches) & links["consumer"].isin(launches)]
    if renamed:
        inside = inside[~inside["reuse"]]
    stage = {launch: number for number, launch in enumerate(launches)}
    found: dict[tuple[int, int], tuple[set[int], set[str]]] = {}
    columns = (inside[name].tolist() for name in ("producer", "consumer", "block", "hazard"))
    for producer, consumer, block, hazard in zip(*columns, strict=True):
        blocks, hazards = found.setdefault((stage[producer], stage[consumer]), (set(), set()))
        blocks.add(int(block))
        hazards.add(str(hazard))
    return {pair: (tuple(sorted(blocks)), tuple(sorted(hazards))) for pair, (blocks, hazards) in found.items()}


def _best(
    predict: Predictor, graph: TileGraph, pair: tuple[int, int], block: EdgeBlock, hazards: tuple[str, ...]
) -> tuple[Semaphores, Edge]:
    footprints = [graph.trace.footprint(int(graph.launches["footprint"].iloc[launch])) for launch in pair]
    producer, consumer = (f.block.astype(np.int64) for f in footprints)
    owner = np.repeat(np.arange(block.sets), np.diff(block.indptr))
    stages = tuple(stage_of(graph, launch) for launch in pair)
    tried: list[tuple[float, int, Semaphores, Edge]] = []
    for grouping in groupings(stages[0].grid, producer[block.parent], owner):
        semaphores, edge = edge_for(block, grouping, producer, consumer, (0, 1), hazards)
        time = predict(Policy(stages, (semaphores,), (edge,)), pair).policy_ns
        tried.append((time, semaphores.count, semaphores, edge))
    limit = min(t[0] for t in tried) * (1 + TOLERANCE)
    _, _, semaphores, edge = min((t for t in tried if t[0] <= limit), key=lambda t: (t[1], t[0]))
    return semaphores, edge


def _joined(policy: Policy, semaphores: Semaphores, edge: Edge, producer: int, consumer: int) -> Policy:
    """The policy with one more edge; an equal semaphore array of the same producer is shared."""
    arrays = policy.semaphores
    if semaphores not in arrays:
        arrays = (*arrays, semaphores)
    number = arrays.index(semaphores)
    placed = replace(edge, producer=producer, consumer=consumer, semaphores=number)
    return replace(policy, semaphores=arrays, edges=(*policy.edges, placed))


def _options(policy: Policy, graph: TileGraph) -> Options:
    """The wait kernel goes where no block can keep out another that it waits for."""
    return Options(wait_kernel=bool(kept_out(policy, graph.trace.device.sms)))


def _prediction(whole: Prediction, predict: Predictor) -> dict[str, Any]:
    return {
        "model": "in-order dispatch, waits at entry, recorded or modelled tile durations",
        "stream_us": round(whole.stream_ns / 1000, 3),
        "policy_us": round(whole.policy_ns / 1000, 3),
        "gain_percent": round(100 * whole.gain, 2),
        "post_ns": predict.costs.post_ns,
        "wait_ns": predict.costs.wait_ns,
    }


def _notes(
    graph: TileGraph, launches: list[int], renamable: pd.DataFrame, whole: Prediction, *, renamed: bool
) -> tuple[str, ...]:
    notes = []
    if whole.gain <= 0:
        notes.append("the model expects nothing of overlapping these stages: stream order is as good")
    if renamed and len(renamable):
        notes.append(
            f"{len(renamable)} hazards exist only because memory was recycled; they hold no longer where each stage has memory of "
            "its own, as the runtime gives it"
        )
    rough = graph.launches.iloc[launches]
    rough = rough[rough["coverage"] != "exact"]
    if len(rough):
        notes.append(
            f"{len(rough)} stages were not recorded exactly; the policy waits for a superset of what they need"
        )
    return tuple(notes)
