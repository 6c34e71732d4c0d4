"""The coarsest policy that loses no predicted gain, from a tile graph.

For every pair of stages orders of tiles are chosen (`orders`), then waits are tried from one semaphore for the whole
grid down to one per tile (`groupings`); each is a superset of the dependencies by construction, and the verifier has
the last word on the result. Candidates are ranked by the predicted time of the pair; within `TOLERANCE` of the best,
expressions win over tables, then the fewest semaphores. An edge whose dependencies are already covered through other
edges is left out. Orders stay where they make the whole faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from tileprof.analysis.dependencies.blocks import merge_blocks
from tileprof.errors import UserError
from tileprof.policy.format import Edge, Options, Policy, Semaphores
from tileprof.policy.format.lowering import lower_edge
from tileprof.policy.format.tile_numbers import tile_numbers
from tileprof.policy.format.tile_orders import ASCENDING, axes_order
from tileprof.policy.operators import describe
from tileprof.policy.synthesis.candidates import TOLERANCE, best_orders, best_waits
from tileprof.policy.synthesis.optimisations import choose_options
from tileprof.policy.synthesis.prediction import Prediction, Predictor
from tileprof.policy.synthesis.stage_choice import stage_of
from tileprof.policy.verification.guarantees import Guarantees
from tileprof.policy.verification.operand_guard import guard_of
from tileprof.policy.verification.verifier import verify

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph

_MANY_TILES: Final = 300_000
"""Number of tiles of all stages that counts as many: a layer of a large model, whose waits take half a minute
to find.
"""


def synthesise(
    graph: TileGraph,
    launches: Sequence[int],
    *,
    renamed: bool = True,
    predictor: Predictor | None = None,
    folded: Sequence[int] = (),
) -> Policy:
    """Return a verified policy for some launches of a graph, in issue order.

    ``renamed``: the runtime gives every stage memory of its own, so hazards that exist only because memory was recycled
    need no waits; the guard says so. ``folded``: launches that `fuse` made part of the stages; the operators compute
    them, and the guard names them. Raises `UserError` where the launches cannot be stages.
    """
    stage_launches = sorted(set(launches))
    if len(stage_launches) < 2:
        raise UserError(f"a policy needs at least two launches; {len(stage_launches)} given")
    predict = predictor or Predictor(graph)
    stages = describe(graph, [stage_of(graph, launch) for launch in stage_launches], folded)
    guard = {"renamed": renamed, **guard_of(graph, stage_launches)}
    if folded:
        guard["epilogues"] = sorted(folded)
    policy = Policy(stages, (), (), Options(), guard)
    candidate = _with_edges(policy, graph, stage_launches, predict, ordered=True)
    if any(stage.order is not None for stage in candidate.stages):
        candidate = _ascending_if_as_good(policy, candidate, graph, stage_launches, predict)
    policy = candidate
    verdict = verify(policy, graph, stage_launches, excess=False)
    if not verdict.missing.empty:
        raise AssertionError(f"synthesised an unsound policy: {len(verdict.missing)} dependencies missing")
    if verdict.never:
        raise UserError(f"no policy for launches {_few(stage_launches)}: {'; '.join(verdict.never)}")
    whole = predict(policy, stage_launches)
    notes = _notes(graph, stage_launches, verdict.renamable, whole, renamed=renamed)
    options = choose_options(policy, graph, stage_launches)
    return replace(policy, prediction=_prediction(whole, predict), options=options, notes=notes)


def _ascending_if_as_good(
    unordered: Policy, ordered: Policy, graph: TileGraph, stage_launches: list[int], predict: Predictor
) -> Policy:
    """Return ``ordered``, or the same without orders where the whole is as fast: orders suit the pairs for which they
    were chosen.

    Without orders coarser waits may do, which are looked for again unless that would take minutes.
    """
    limit_ns = predict(ordered, stage_launches).policy_ns * (1 + TOLERANCE)
    edges = tuple(replace(edge, reason=edge.reason.partition("; the ")[0]) for edge in ordered.edges)
    ascending = replace(ordered, stages=unordered.stages, edges=edges)
    if predict(ascending, stage_launches).policy_ns > limit_ns:
        return ordered
    if sum(stage.tiles for stage in unordered.stages) > _MANY_TILES:
        return ascending
    plain = _with_edges(unordered, graph, stage_launches, predict, ordered=False)
    return plain if predict(plain, stage_launches).policy_ns <= limit_ns else ascending


def _with_edges(
    policy: Policy, graph: TileGraph, stage_launches: list[int], predict: Predictor, *, ordered: bool
) -> Policy:
    """Return the policy with orders of tiles (``ordered``: others than ascending may be chosen), semaphores
    and edges.
    """
    renamed = bool(policy.guard["renamed"])
    numbers = [tile_numbers(graph, launch) for launch in stage_launches]
    needs = _needs(graph, stage_launches, renamed=renamed)
    guaranteed = Guarantees(needs)
    orders: dict[int, str] = {}
    cache: dict[tuple[object, ...], tuple[tuple[str, str], Semaphores, Edge]] = {}
    # Nearest producers first: what lies further back is mostly covered through them.
    for producer, consumer in sorted(needs, key=lambda pair: (pair[1], -pair[0])):
        blocks, hazards = needs[producer, consumer]
        block = merge_blocks([graph.blocks[b] for b in blocks])
        parent, child, _ = block.edges()
        if guaranteed.holds(producer, consumer, numbers[producer][parent], numbers[consumer][child]).all():
            continue
        pair = stage_launches[producer], stage_launches[consumer]
        footprints = (int(graph.launches["footprint"].iloc[launch]) for launch in pair)
        fixed = (orders.get(producer), orders.get(consumer)) if ordered else (ASCENDING, ASCENDING)
        key = (blocks, hazards, fixed, *footprints)
        if key not in cache:
            axes = best_orders(predict, graph, pair, fixed, renamed=renamed)
            cache[key] = axes, *best_waits(predict, graph, pair, block, hazards, axes)
        (orders[producer], orders[consumer]), semaphores, edge = cache[key]
        policy = _with_edge(policy, replace(semaphores, producer=producer), edge, producer, consumer)
        guaranteed.add(lower_edge(policy, len(policy.edges) - 1), (producer, consumer))
    custom = {n: axes for n, axes in orders.items() if axes != ASCENDING}
    stages = tuple(
        replace(stage, order=axes_order(stage.grid, custom[n])) if n in custom else stage
        for n, stage in enumerate(policy.stages)
    )
    return replace(policy, stages=stages)


def _few(launches: list[int]) -> str:
    text = ", ".join(map(str, launches[:6]))
    return text if len(launches) <= 6 else f"{text}, … ({len(launches)})"


def _needs(
    graph: TileGraph, launches: list[int], *, renamed: bool
) -> dict[tuple[int, int], tuple[tuple[int, ...], tuple[str, ...]]]:
    """Return the blocks and hazards between each two stages that depend on each other."""
    links = graph.links
    inside = links[links["producer"].isin(launches) & links["consumer"].isin(launches)]
    if renamed:
        inside = inside[~inside["reuse"]]
    stage = {launch: number for number, launch in enumerate(launches)}
    needs: dict[tuple[int, int], tuple[set[int], set[str]]] = {}
    columns = (inside[name].tolist() for name in ("producer", "consumer", "block", "hazard"))
    for producer, consumer, block, hazard in zip(*columns, strict=True):
        blocks, hazards = needs.setdefault((stage[producer], stage[consumer]), (set(), set()))
        blocks.add(int(block))
        hazards.add(str(hazard))
    return {pair: (tuple(sorted(blocks)), tuple(sorted(hazards))) for pair, (blocks, hazards) in needs.items()}


def _with_edge(policy: Policy, semaphores: Semaphores, edge: Edge, producer: int, consumer: int) -> Policy:
    """Return the policy with one more edge; an equal semaphore array of the same producer is shared."""
    arrays = policy.semaphores
    if semaphores not in arrays:
        arrays = (*arrays, semaphores)
    number = arrays.index(semaphores)
    numbered_edge = replace(edge, producer=producer, consumer=consumer, semaphores=number)
    return replace(policy, semaphores=arrays, edges=(*policy.edges, numbered_edge))


def with_prediction(policy: Policy, graph: TileGraph, launches: Sequence[int]) -> Policy:
    """Return the policy with what the model expects of it on these launches, whatever it said before."""
    predict = Predictor(graph)
    return replace(policy, prediction=_prediction(predict(policy, launches), predict))


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
    notes = [graph.basis] if graph.basis else []
    if whole.gain <= 0:
        notes.append("the model expects nothing of overlapping these stages: stream order is as good")
    if renamed and len(renamable):
        notes.append(
            f"{len(renamable)} hazards exist only because memory was recycled; they do not exist if each stage has "
            "its own memory, as in the runtime"
        )
    rough = graph.launches.iloc[launches]
    rough = rough[rough["coverage"] != "exact"]
    if len(rough):
        notes.append(
            f"{len(rough)} stages were not recorded exactly; the policy waits for a superset of what they need"
        )
    return tuple(notes)
