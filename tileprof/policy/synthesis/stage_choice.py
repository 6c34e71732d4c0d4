"""Launches of a trace as stages of a policy, and which launches to take where the user names none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tileprof.analysis.bounds.bounder import Bounder
from tileprof.analysis.reporting.gains import direct_and_known, fold, pair_gains
from tileprof.errors import UserError
from tileprof.nesting import compile_pattern
from tileprof.policy.format import Policy, PolicyError, Stage
from tileprof.policy.format.tile_numbers import grid_of, tile_numbers
from tileprof.policy.operators.describe import describe
from tileprof.policy.operators.kinds import draft
from tileprof.policy.operators.recorded_call import RecordedCall, UnknownStageError
from tileprof.policy.verification.operand_guard import guard_of
from tileprof.policy.verification.overtaken import overtaken_launches

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph

PRODUCTS: Final = frozenset({"gemm", "conv2d"})
_MOVES: Final = ("memset", "memcpy")
PASSED: Final = frozenset({"pointwise", "batch_norm"})
"""Launches that can be epilogues of products."""


def stage_of(graph: TileGraph, launch: int) -> Stage:
    """Return the stage that runs the tiles of a launch; raises `PolicyError` where they fill no grid."""
    row = graph.launches.iloc[launch]
    tile_numbers(graph, launch)
    module = str(row["module"])
    says = bool(module.strip("0123456789."))  # places in containers alone do not: "0"
    return Stage(
        name=module
        if says
        else f"{module} {row['op']}"
        if module
        else f"{row['op'] or _short(row['kernel'])} {launch}",
        grid=grid_of(graph, launch),
        launch=launch,
        kernel=str(row["kernel"]),
        op=str(row["op"]),
        module=module,
        blocks_per_sm=int(row["blocks_per_sm"]),
    )


def _short(kernel: str) -> str:
    """Return the name of a kernel without namespaces, templates and parameters."""
    return str(kernel).partition("(")[0].partition("<")[0].rpartition("::")[2].strip()


def rebound(policy: Policy, graph: TileGraph, launches: Sequence[int]) -> Policy:
    """Return the policy with its stages on these launches, under their names and with their occupancies; stages that
    name their launch already keep the rest. The guard is that of these launches.
    """
    stages = [
        replace(stage, blocks_per_sm=int(graph.launches["blocks_per_sm"].iloc[launch]))
        if stage.launch == launch
        else replace(stage_of(graph, launch), order=stage.order, operator=stage.operator, reason=stage.reason)
        for stage, launch in zip(policy.stages, launches, strict=True)
    ]
    return replace(policy, stages=tuple(stages), guard={**policy.guard, **guard_of(graph, launches)})


def best_pair(graph: TileGraph) -> tuple[int, int]:
    """Return the pair that the report says to look at first and whose launches can be stages; raises `UserError` where
    there is none.

    Fills and copies are stages only where there is no other pair: overlap with them saves nothing else.
    """
    kernels = graph.launches["kernel"].astype(str)
    first = None
    for pair in ranked_pairs(graph):
        if not any(kernels.iloc[launch].startswith(_MOVES) for launch in pair):
            return pair
        first = first or pair
    if first is not None:
        return first
    raise UserError("no two launches of this trace depend on each other so that overlap could save anything")


def ranked_pairs(graph: TileGraph) -> Iterator[tuple[int, int]]:
    """Yield pairs whose launches can be stages, in the order in which the report says to look at them."""
    groups = fold(pair_gains(Bounder(graph)), graph.launches)
    rows = groups[direct_and_known(groups)]
    for producers, consumers in zip(rows["producers"].tolist(), rows["consumers"].tolist(), strict=True):
        pair = int(producers[0]), int(consumers[0])
        try:
            for launch in pair:
                tile_numbers(graph, launch)
        except PolicyError:
            continue
        yield pair


def around_epilogues(graph: TileGraph, pair: tuple[int, int]) -> tuple[int, int]:
    """Return the pair without its pointwise ends: the launch whose result the producer transforms, and the one that
    reads the consumer's.

    An activation between two products is an epilogue of the first, not a stage: the pair (activation, product) becomes
    (product, product). An end stays where no such launch exists, or where what it transforms cannot be an operator of a
    stage.
    """
    producer, consumer = pair
    while _is_pointwise(graph, producer):
        before = _through_memory(graph, "consumer", "producer", producer)
        if len(before) == 0 or _operator_name(graph, max(before)) == "":
            break
        producer = max(before)
    while _is_pointwise(graph, consumer):
        after = _through_memory(graph, "producer", "consumer", consumer)
        if len(after) == 0 or _operator_name(graph, min(after)) == "":
            break
        consumer = min(after)
    return producer, consumer


def product_sets(graph: TileGraph) -> Iterator[tuple[int, ...]]:
    """Yield every product or convolution with those whose results it reads, directly or through pointwise launches; in
    issue order.
    """
    links = graph.links[(graph.links["hazard"] == "RAW") & ~graph.links["reuse"]]
    read: dict[int, list[int]] = {}
    for producer, consumer in zip(links["producer"].tolist(), links["consumer"].tolist(), strict=True):
        read.setdefault(consumer, []).append(producer)
    names: dict[int, str] = {}
    for launch in sorted(read):
        if _cached_name(graph, launch, names) not in PRODUCTS:
            continue
        producers, waiting = set(), list(read[launch])
        while waiting:
            producer = waiting.pop()
            name = _cached_name(graph, producer, names)
            if name in PRODUCTS:
                producers.add(producer)
            elif name in PASSED:
                waiting += read.get(producer, [])
        if producers:
            yield (*sorted(producers), launch)


def _cached_name(graph: TileGraph, launch: int, names: dict[int, str]) -> str:
    if launch not in names:
        names[launch] = _operator_name(graph, launch)
    return names[launch]


def epilogues_between(graph: TileGraph, launches: Sequence[int]) -> list[int]:
    """Return the launches between ``launches`` where all of them can be epilogues of the stages before them, which then
    all have an operator; otherwise none.
    """
    between = overtaken_launches(graph, launches)
    return between if stages_with(graph, launches, between) is not None else []


def stages_with(graph: TileGraph, launches: Sequence[int], folded: Sequence[int]) -> Policy | None:
    """Return the launches as stages with operators, without waits; ``folded`` are epilogues. None where one has no
    operator.
    """
    try:
        stages = describe(graph, [stage_of(graph, launch) for launch in launches], folded)
    except PolicyError:
        return None
    return Policy(stages, (), ()) if all(stage.operator for stage in stages) else None


def _through_memory(graph: TileGraph, near: str, far: str, launch: int) -> list[int]:
    """Return launches at the other end of true RAW dependencies."""
    links = graph.links
    rows = links[(links[near] == launch) & (links["hazard"] == "RAW") & ~links["reuse"]]
    return [int(number) for number in rows[far]]


def _is_pointwise(graph: TileGraph, launch: int) -> bool:
    return _operator_name(graph, launch) == "pointwise"


def is_stage(graph: TileGraph, launch: int) -> bool:
    """Return whether a stage operator computes the launch that is worth a kernel: not a pointwise one, which belongs
    into an epilogue.
    """
    return _operator_name(graph, launch) not in {"", "pointwise"}


def _operator_name(graph: TileGraph, launch: int) -> str:
    try:
        return draft(RecordedCall.of(graph, launch)).name
    except UnknownStageError:
        return ""


def of_module(graph: TileGraph, pattern: str) -> list[int]:
    """Return launches whose module path matches a regular expression somewhere; raises `UserError`."""
    try:
        expression = compile_pattern(pattern)
    except re.error as error:
        raise UserError(f"--module {pattern!r} is not a regular expression: {error}") from None
    numbers = [n for n, name in enumerate(graph.launches["module"].astype(str)) if expression.search(name)]
    if len(numbers) < 2:
        raise UserError(f"--module {pattern!r} matches {len(numbers)} launches; a policy is for at least two")
    return numbers


def checked(graph: TileGraph, launches: Sequence[int]) -> list[int]:
    """Return ``launches`` in order, each once; raises `UserError` for one that is not in the trace."""
    for launch in launches:
        if not 0 <= launch < len(graph.launches):
            raise UserError(f"there is no launch {launch}; the trace has launches 0 to {len(graph.launches) - 1}")
    return sorted(set(launches))
