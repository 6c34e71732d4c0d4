"""Mutants of policies, and an oracle that runs a policy tile by tile to decide which mutants are harmless."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.support.policies.progress import hangs
from tileprof.analysis.dependencies.blocks import merge_blocks
from tileprof.analysis.dependencies.graph import TileGraph
from tileprof.policy.format import Edge, Policy, Semaphores, Stage, to_dict
from tileprof.policy.format.document import _policy as policy_of
from tileprof.policy.format.lowering import lower
from tileprof.policy.synthesis.semaphore_groupings import Grouping, edge_for
from tileprof.policy.verification.verifier import verify

RESIDENCY_KINDS = ("no wait kernel", "occupancy", "SM count", "device", "device name")
"""Kinds of mutants of policies without a wait kernel: unchanged; other blocks per SM in their stages; another number of
SMs; another device; a guard that names another device.

The verifier refuses the last two by rule, whether they are harmful or not.
"""
BY_RULE = ("device", "device name")

KINDS = ("drop", "shift", "shift all", "lower", "raise", "alias", "merge", "edge", "order", "early")
"""Kinds of mutants: a wait dropped; one wait for another tile's semaphore; all waits those of the neighbour; a value
lowered, or raised above the number of posts; a tile that posts another semaphore; two semaphores merged, with their
values unchanged; an edge dropped; tiles in another order; no wait kernel, so that waiting blocks may come first (the
order that can deadlock).
"""


def exact_policy(graph: TileGraph, stages: tuple[Stage, ...], launches: Sequence[int], *, renamed: bool) -> Policy:
    """Return the policy with one semaphore per tile and one wait per dependency, whatever it costs."""
    semaphores: list[Semaphores] = []
    edges: list[Edge] = []
    links = graph.links
    coordinates = [graph.footprint(int(graph.launches["footprint"].iloc[n])).block.astype("int64") for n in launches]
    for i, producer in enumerate(launches):
        grouping = Grouping("tile", stages[i].grid, ("x", "y", "z"))
        for j in range(i + 1, len(launches)):
            rows = links[(links["producer"] == producer) & (links["consumer"] == launches[j])]
            rows = rows[~rows["reuse"]] if renamed else rows
            if not rows.empty:
                block = merge_blocks([graph.blocks[b] for b in sorted(set(rows["block"].tolist()))])
                array, edge = edge_for(block, grouping, coordinates[i], coordinates[j], (i, j), ("RAW",))
                edges.append(replace(edge, semaphores=len(semaphores)))
                semaphores.append(array)
    return Policy(stages, tuple(semaphores), tuple(edges), guard={"renamed": renamed})


def with_tables(policy: Policy) -> dict[str, Any]:
    """Return the policy as JSON with every wait and post written out, so that each can be changed alone."""
    value = to_dict(policy)
    for edge, waits in zip(value["edges"], lower(policy), strict=True):
        edge["waits"] = {"indptr": waits.indptr.tolist(), "semaphore": waits.semaphore.tolist()}
        edge["value"] = waits.value.tolist()
        value["semaphores"][edge["semaphores"]]["of"] = waits.of.tolist()
    return value


def mutant(value: dict[str, Any], kind: str, dice: random.Random) -> Policy | None:
    """Return a policy that differs from the `tabled` one in one place, or None if there is no such place."""
    mutation = {**value, "edges": [{**e} for e in value["edges"]], "semaphores": [{**s} for s in value["semaphores"]]}
    number = dice.randrange(len(mutation["edges"]))
    edge = mutation["edges"][number]
    if kind == "early":
        return policy_of({**mutation, "options": {"wait_kernel": False}})
    if kind == "edge":
        return policy_of({**mutation, "edges": [e for n, e in enumerate(mutation["edges"]) if n != number]})
    if kind == "order":
        stage = dice.randrange(len(mutation["stages"]))
        tiles = int(np.prod(mutation["stages"][stage]["grid"]))
        stages = [*mutation["stages"]]
        stages[stage] = {**stages[stage], "order": dice.sample(range(tiles), tiles)}
        return policy_of({**mutation, "stages": stages})
    if kind == "alias":
        array = mutation["semaphores"][edge["semaphores"]] = {**mutation["semaphores"][edge["semaphores"]]}
        array["of"] = _with_another_value(array["of"], dice, array["grid"][0] * array["grid"][1] * array["grid"][2])
        return policy_of(mutation) if array["of"] else None
    if kind == "merge":
        return _with_merged_semaphores(mutation, edge["semaphores"], dice)
    return _of_waits(mutation, edge, kind, dice)


def _with_merged_semaphores(mutation: dict[str, Any], number: int, dice: random.Random) -> Policy | None:
    """Make all posts to one semaphore, and all waits for it, go to another."""
    array = mutation["semaphores"][number]
    semaphores = sorted(set(array["of"]))
    if len(semaphores) < 2:
        return None
    merged_from, merged_into = dice.sample(semaphores, 2)
    array["of"] = [merged_into if n == merged_from else n for n in array["of"]]
    for edge in mutation["edges"]:
        if edge["semaphores"] == number:
            waits = edge["waits"]
            edge["waits"] = {**waits, "semaphore": [merged_into if n == merged_from else n for n in waits["semaphore"]]}
    return policy_of(mutation)


def _of_waits(mutation: dict[str, Any], edge: dict[str, Any], kind: str, dice: random.Random) -> Policy | None:
    indptr, semaphore = list(edge["waits"]["indptr"]), list(edge["waits"]["semaphore"])
    values = list(edge["value"])
    if not semaphore:
        return None
    count = np.prod(mutation["semaphores"][edge["semaphores"]]["grid"])
    place = dice.randrange(len(semaphore))
    match kind:
        case "drop":
            del semaphore[place], values[place]
            indptr = [n - (n > place) for n in indptr]
        case "shift":
            semaphore = _with_another_value(semaphore, dice, int(count), place)
        case "shift all":
            # every tile waits for what its neighbour waits for
            rows = [slice(indptr[t], indptr[t + 1]) for t in range(len(indptr) - 1)]
            rows = rows[1:] + rows[:1]
            indptr = np.cumsum([0] + [r.stop - r.start for r in rows]).tolist()
            semaphore, values = [s for r in rows for s in semaphore[r]], [v for r in rows for v in values[r]]
        case "lower":
            values[place] -= 1 if values[place] > 0 else 0
        case "raise":
            values[place] += dice.randint(1, 3)
    if not semaphore:
        return None
    edge["waits"], edge["value"] = {"indptr": indptr, "semaphore": semaphore}, values
    return policy_of(mutation)


def _with_another_value(values: list[int], dice: random.Random, count: int, place: int | None = None) -> list[int]:
    """Return the list with one value changed to another below ``count``, or an empty list if there is no other
    value.
    """
    if count < 2:
        return []
    at = dice.randrange(len(values)) if place is None else place
    other = dice.randrange(count - 1)
    return [other + (other >= v) if n == at else v for n, v in enumerate(values)]


def harmful(policy: Policy, graph: TileGraph) -> bool:
    """Return whether some schedule of the policy reads too early or never ends, by running it.

    Every tile that others depend on is held back in turn; the tiles that depend on it must then not run. With nothing
    held back, everything must run. Without a wait kernel, waiting blocks of all stages may come first, and must leave
    room (`progress.hangs`).
    """
    edge_waits = lower(policy)
    absent = [(-1, -1)]
    needs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    columns = (graph.links[name].tolist() for name in ("producer", "consumer", "block"))
    for producer, consumer, number in zip(*columns, strict=True):
        parent, child, _ = graph.blocks[number].edges()
        for p, c in zip(parent.tolist(), child.tolist(), strict=True):
            needs.setdefault((producer, p), []).append((consumer, c))
    absent += list(needs)
    runs: list[np.ndarray] = []
    for stage, description in enumerate(policy.stages):
        is_done = np.ones((len(absent), description.tiles), bool)
        for waits in (w for w in edge_waits if w.edge.consumer == stage):
            post_counts = np.zeros((len(absent), len(waits.posts)), np.int64)
            for tile, semaphore in enumerate(waits.of.tolist()):
                post_counts[:, semaphore] += runs[waits.edge.producer][:, tile]
            for tile in range(description.tiles):
                for k in range(waits.indptr[tile], waits.indptr[tile + 1]):
                    is_done[:, tile] &= post_counts[:, waits.semaphore[k]] >= waits.value[k]
        for row, (stage_held, tile) in enumerate(absent):
            if stage_held == stage:
                is_done[row, tile] = False
        runs.append(is_done)
    if not all(is_done[0].all() for is_done in runs):
        return True
    if any(runs[c][row, t] for row, key in enumerate(absent[1:], start=1) for c, t in needs[key]):
        return True
    return not policy.options.wait_kernel and graph.source is not None and hangs(policy, graph)


def residency_mutants(
    policy: Policy, graph: TileGraph, on: Callable[..., TileGraph], dice: random.Random
) -> Iterator[tuple[str, Policy, TileGraph]]:
    """Yield the policy without a wait kernel, one mutant per kind of `RESIDENCY_KINDS`, and the graph to verify it on.

    ``on(sms=, device=)`` gives the same launches on another device.
    """
    early = replace(policy, options=replace(policy.options, wait_kernel=False))
    sms, name = graph.device.sms, graph.device.name
    yield "no wait kernel", early, graph
    forged_stages = tuple(replace(stage, blocks_per_sm=dice.choice([0, 1, 2, 4, 32, 1024])) for stage in early.stages)
    yield "occupancy", replace(early, stages=forged_stages), graph
    yield "SM count", early, on(sms=max(1, sms + dice.choice([-2, -1, 1, 2])), device=name)
    other = dice.choice([d for d in ("V100", "A100", "H100", "B200") if d != name])
    other_graph = on(sms=sms, device=other)
    if (other_graph.launches["blocks_per_sm"] > 0).all():
        yield "device", early, other_graph
        yield "device name", replace(early, guard={**early.guard, "device": other}), graph


@dataclass
class Tally:
    """Results of the mutants.

    ``escapes`` holds harmful mutants that the verifier accepted; the counters are by kind.
    """

    total: int = 0
    harmless: int = 0
    catches: int = 0
    cautious: int = 0
    by_rule: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    harmful_kinds: Counter[str] = field(default_factory=Counter)
    cautious_kinds: Counter[str] = field(default_factory=Counter)
    escapes: list[tuple[str, Policy]] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.total:,} mutants: {self.catches:,} harmful and caught, "
            f"{len(self.escapes):,} harmful and not caught, "
            f"{self.harmless:,} harmless and passed, {self.cautious:,} harmless and refused, "
            f"{self.by_rule:,} refused by rule for another device "
            "(harmful of all: "
            f"{', '.join(f'{k} {self.harmful_kinds[k]:,} of {n:,}' for k, n in sorted(self.kinds.items()))}"
            f"{self._cautious()})"
        )

    def _cautious(self) -> str:
        message = ", ".join(f"{k} {n:,}" for k, n in self.cautious_kinds.most_common() if n)
        return f"; refused although harmless: {message}" if message else ""

    def add(self, kind: str, policy: Policy, graph: TileGraph) -> None:
        sound, bad = verify(policy, graph, range(len(policy.stages)), excess=False).sound, harmful(policy, graph)
        self.total += 1
        self.kinds[kind] += 1
        if bad and sound:
            self.escapes.append((kind, policy))
        self.catches += bad and not sound
        self.harmless += not bad and sound
        is_refused = not bad and not sound
        self.by_rule += is_refused and kind in BY_RULE
        self.cautious += is_refused and kind not in BY_RULE
        self.harmful_kinds[kind] += bad
        self.cautious_kinds[kind] += is_refused and kind not in BY_RULE


def mutants(policy: Policy, dice: random.Random, count: int) -> Iterator[tuple[str, Policy]]:
    """Yield ``count`` mutants, of every kind in turn."""
    value = with_tables(policy)
    if not value["edges"]:
        return
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        result = mutant(value, kind, dice)
        if result is not None:
            yield kind, result
