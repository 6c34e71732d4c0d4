"""The time that overlapping each dependent pair of launches could save, per pair and folded over repeated layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.analysis.bounds.bounder import Bounder, Bounds
from tileprof.analysis.bounds.durations import MEASURED, timed_rows
from tileprof.analysis.bounds.list_schedule import alone
from tileprof.analysis.waves import PairWaves, pair_waves
from tileprof.trace.schema import COVERAGES, NEVER

if TYPE_CHECKING:
    from tileprof.analysis.dependencies.graph import TileGraph
    from tileprof.trace import Recording

EARLY_MARGIN = 0.01
"""A consumer tile starts early when it could start this share of the producer's time before the producer's end:
less is within the spread of measured block times."""

OVERLAP_MARGIN = 0.02
"""Share of a pair's time that overlap must save to be worth naming: less is within the spread of any measurement."""

MOST_ANSWERS: Final = 8192
"""Pairs of different footprints, durations or relations that are bounded, a few milliseconds each: a program whose
every step has another shape has as many as it has pairs. Those with the fewest launches in between come first.
"""

NOT_COMPUTED: Final = "not computed"
"""The binding bound of the others."""

_REACH = 8192
"""Paths between two launches are looked for within this many launches: 8192 bits per launch, 100 MB for 1e5 launches.
"""


@dataclass(frozen=True, slots=True)
class PairAnswer:
    """One pair in isolation; times in nanoseconds."""

    bounds: Bounds
    early: float
    lead_ns: float
    waves: PairWaves


def pair_gains(bounder: Bounder) -> pd.DataFrame:
    """Return ``graph.pairs`` with what overlap could save, one row per pair, in order of producer and consumer.

    Added columns: ``direct`` (no path through a launch in between orders the two anyway), ``apart`` (launches issued
    between them), ``last_producer`` (the consumer needs no launch that is issued after this producer: while everything
    else stays ordered, only such a pair gains from overlap), ``recorded_ns`` (both launches and the gap between them,
    as recorded, without what others did in between), ``bound_ns`` and ``binding`` (no schedule of the two alone is
    faster; see `Bounds`), ``gain_ns`` (their difference, never negative), ``listed_ns`` (what list scheduling needs for
    the two), ``early`` (share of the consumer's tiles that could start before the producer ends: all their parents in
    this producer have ended by then, each launch in stream order with recorded durations; hazards of recycled memory
    aside), ``lead_ns`` (how long before that end, mean over all tiles of the consumer), ``overlap_ns`` (what the list
    schedule saves beyond the gap between the launches, which needs no tile-level overlap; 0 below `OVERLAP_MARGIN`),
    ``stream_waves`` and ``overlapped_waves`` (see `PairWaves`), ``key`` (equal numbers mean equal answers).

    A pair is computed once for all pairs of equal footprints, durations and relations, and at most `MOST_ANSWERS`
    different ones are: ``binding`` of the others is `NOT_COMPUTED`, and they save nothing.
    """
    graph = bounder.graph
    pairs = graph.pairs.sort_values(["producer", "consumer"], ignore_index=True)
    producers, consumers = (pairs[c].to_numpy(np.int64) for c in ("producer", "consumer"))
    answers = _Answers(bounder, producers, consumers)
    number: dict[_Key, int] = {}
    key = np.array([number.setdefault(key, len(number)) for key in answers.keys], np.int64)
    of_key: dict[int, PairAnswer] = {}
    for row in np.argsort(consumers - producers, kind="stable").tolist():
        if key[row] not in of_key:
            of_key[int(key[row])] = answers.of(row) if len(of_key) < MOST_ANSWERS else answers.none(row)
    pair_answers = [of_key[each] for each in key.tolist()]
    bounds = [of_key[each].bounds for each in range(len(number))]
    recorded = answers.recorded_ns
    bound = np.array([b.bound_ns for b in bounds], np.float64)[key]
    listed = np.array([np.nan if b.listed_ns is None else b.listed_ns for b in bounds], np.float64)[key]
    own = np.minimum(bounder.launch_ns[producers] + bounder.launch_ns[consumers], recorded)
    parents = _true_parents(graph)
    return pairs.assign(
        direct=direct(len(graph.tile_base) - 1, parents, producers.tolist(), consumers.tolist()),
        apart=consumers - producers - 1,
        last_producer=_last(parents, producers.tolist(), consumers.tolist()),
        recorded_ns=recorded,
        bound_ns=bound,
        binding=pd.Series([b.binding for b in bounds], dtype=object).take(key).reset_index(drop=True),
        gain_ns=np.maximum(recorded - bound, 0.0),
        listed_ns=listed,
        overlap_ns=np.where(own - listed > OVERLAP_MARGIN * own, own - listed, 0.0),
        early=np.array([a.early for a in pair_answers], np.float64),
        lead_ns=np.array([a.lead_ns for a in pair_answers], np.float64),
        stream_waves=np.array([a.waves.stream for a in pair_answers], np.int64),
        overlapped_waves=np.array([a.waves.overlapped for a in pair_answers], np.float64),
        key=key,
    )


_Key = tuple[tuple[object, ...], tuple[object, ...], float]
"""The facts that an answer depends on: tiles and their dependencies, bytes, and the recorded time."""


class _Answers:
    """Facts of pairs, by which of them two pairs have the same answer, and answers.

    Hazards of recycled memory are no part of an answer, nor is where in a buffer a launch works unless both work there.
    """

    def __init__(self, bounder: Bounder, producers: NDArray[np.int64], consumers: NDArray[np.int64]) -> None:
        graph, launches = bounder.graph, bounder.graph.launches
        self._bounder = bounder
        self._pairs = list(zip(producers.tolist(), consumers.tolist(), strict=True))
        self._tiles = launches["tiles"].tolist()
        self._slots = bounder.slots.tolist()
        times = graph.recording.times
        self._timed = timed_rows(graph.recording)
        self._tile = times["tile"].to_numpy(np.int64)
        self._tile_end_ns = times["end_ns"].to_numpy(np.float64)
        self._ends: dict[tuple[int, int], NDArray[np.float64]] = {}
        self._scheduled: dict[tuple[object, ...], tuple[Bounds, float, float]] = {}
        self._moved: dict[tuple[object, ...], tuple[float, int]] = {}
        self._blocks: dict[tuple[int, int], list[int]] = {pair: [] for pair in self._pairs}
        links = graph.links[~graph.links["reuse"].to_numpy(bool)]
        for p, c, block in zip(*(links[name].tolist() for name in ("producer", "consumer", "block")), strict=True):
            self._blocks[p, c].append(block)
        self.recorded_ns = _recorded_ns(bounder, producers, consumers)
        self.keys = self._keys()

    def of(self, row: int) -> PairAnswer:
        """Return the answer on one pair."""
        tiles, traffic, recorded_ns = self.keys[row]
        pair = self._pairs[row]
        if tiles not in self._scheduled:
            self._scheduled[tiles] = self._bounder.renamed(pair), *self._head_start(*pair)
        if traffic not in self._moved:
            self._moved[traffic] = self._bounder.dram(pair)
        bounds, early, lead_ns = self._scheduled[tiles]
        return PairAnswer(bounds.completed(recorded_ns, *self._moved[traffic]), early, lead_ns, self._waves(*pair))

    def none(self, row: int) -> PairAnswer:
        """Return the answer on a pair beyond `MOST_ANSWERS`, which claims no saving."""
        recorded_ns = self.keys[row][2]
        bounds = Bounds(recorded_ns, {NOT_COMPUTED: recorded_ns}, {}, 0, None, None, (NOT_COMPUTED,))
        return PairAnswer(bounds, 0.0, 0.0, self._waves(*self._pairs[row]))

    def _keys(self) -> list[_Key]:
        bounder, launches = self._bounder, self._bounder.graph.launches
        footprints, begins = launches["footprint"].tolist(), bounder.durations.begins.tolist()
        units, demand, flops = bounder.units.tolist(), bounder.demand.tolist(), launches["flops"].tolist()
        alike = list(zip(footprints, begins, flops, units, demand, strict=True))
        guessed = (launches["coverage"] == "conservative").tolist()
        bindings = _bindings(bounder.graph.recording)
        keys = []
        for (p, c), recorded_ns in zip(self._pairs, self.recorded_ns.tolist(), strict=True):
            own, its = bindings[p], bindings[c]
            shared = (
                (own.slots[b], its.slots[b], its.offsets[b] - own.offsets[b]) for b in own.slots.keys() & its.slots
            )
            moves = footprints[p], guessed[p], own.alone, footprints[c], guessed[c], its.alone, *sorted(shared)
            keys.append(((alike[p], alike[c], *sorted(self._blocks[p, c])), moves, recorded_ns))
        return keys

    def _waves(self, producer: int, consumer: int) -> PairWaves:
        tiles, slots = self._tiles, self._slots
        return pair_waves((tiles[producer], tiles[consumer]), (slots[producer], slots[consumer]))

    def _head_start(self, producer: int, consumer: int) -> tuple[float, float]:
        """Return the share of the consumer's tiles that could start early, and by how much on average, ns."""
        ends = self._ends_of(producer)
        end_ns = float(ends.max(initial=0.0))
        ready = np.zeros(self._tiles[consumer])
        for number in self._blocks[producer, consumer]:
            block = self._bounder.graph.blocks[number]
            if len(block.parent):
                of_set = np.maximum.reduceat(ends[block.parent], block.indptr[:-1])
                waits = block.set_of >= 0
                ready[waits] = np.maximum(ready[waits], of_set[block.set_of[waits]])
        if not len(ready) or end_ns <= 0:
            return 0.0, 0.0
        return float((ready < (1 - EARLY_MARGIN) * end_ns).mean()), float((end_ns - ready).mean())

    def _ends_of(self, launch: int) -> NDArray[np.float64]:
        """Return ``[tiles]`` ends in stream order: as measured, or each tile on the next free slot."""
        durations = self._bounder.durations
        key = (int(durations.begins[launch]), self._slots[launch])
        if key not in self._ends:
            ends = alone(durations.of(launch, self._tiles[launch]), self._slots[launch])
            if durations.source[launch] == MEASURED:
                rows = self._timed[launch]
                ends[self._tile[rows]] = self._tile_end_ns[rows] * durations.calibration[launch]
            self._ends[key] = ends
        return self._ends[key]


def _recorded_ns(bounder: Bounder, producers: NDArray[np.int64], consumers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return ``[pairs]`` both launches, less their overlap, plus the gap between them up to the device's launch gap: a
    longer gap is other launches or a slow host, which overlapping these two does not remove.
    """
    launches, took_ns = bounder.graph.launches, bounder.launch_ns
    begin_ns, duration_ns = (launches[name].to_numpy(np.float64) for name in ("begin_ns", "duration_ns"))
    both = took_ns[producers] + took_ns[consumers]
    if not begin_ns.any():
        return both
    between = begin_ns[consumers] - begin_ns[producers] - duration_ns[producers]
    least = -np.minimum(took_ns[producers], took_ns[consumers])
    return np.asarray(both + np.clip(between, least, bounder.machine.device.launch_gap_ns), np.float64)


class _Binding(NamedTuple):
    """The first operand slot of a launch that is bound to each buffer, and the offset there. ``alone``: for each slot,
    that first slot of its buffer, the distance from its offset, and whether the buffer is kept to the end.
    """

    slots: dict[int, int]
    offsets: dict[int, int]
    alone: tuple[tuple[int, int, bool], ...]


def _bindings(trace: Recording) -> list[_Binding]:
    """Return ``[launches]`` of a recording."""
    lasting = (trace.buffers["freed_at"].to_numpy(np.int64) == NEVER).tolist()
    bindings = []
    for launch in range(len(trace.launches)):
        slots: dict[int, int] = {}
        offsets: dict[int, int] = {}
        alone_ = []
        for slot, (buffer, offset) in enumerate(zip(*(c.tolist() for c in trace.operands_of(launch)), strict=True)):
            first = offsets.setdefault(buffer, offset)
            alone_.append((slots.setdefault(buffer, slot), offset - first, lasting[buffer]))
        bindings.append(_Binding(slots, offsets, tuple(alone_)))
    return bindings


def _true_parents(graph: TileGraph) -> dict[int, set[int]]:
    """Return launches that each launch depends on, hazards of recycled memory aside."""
    links = graph.links[~graph.links["reuse"].to_numpy(bool)]
    parents: dict[int, set[int]] = {}
    for p, c in zip(links["producer"].tolist(), links["consumer"].tolist(), strict=True):
        parents.setdefault(c, set()).add(p)
    return parents


def _last(parents: dict[int, set[int]], producers: Sequence[int], consumers: Sequence[int]) -> NDArray[np.bool_]:
    """Return ``[pairs]`` whether the consumer needs no launch that is issued after the producer."""
    return np.array([p >= max(parents.get(c, {p})) for p, c in zip(producers, consumers, strict=True)], np.bool_)


def direct(
    launches: int, parents: dict[int, set[int]], producers: Sequence[int], consumers: Sequence[int]
) -> NDArray[np.bool_]:
    """Return ``[pairs]`` whether no other launch on a path of dependencies from producer to consumer lies in between.

    Paths longer than `_REACH` launches are not followed.
    """
    above: list[int] = []  # bit k of above[c]: launch c - 1 - k is an ancestor of c
    beyond: list[int] = []  # the same, by paths of two steps or more
    mask = (1 << _REACH) - 1
    for c in range(launches):
        own = through = 0
        for p in parents.get(c, ()):
            own |= 1 << (c - 1 - p)
            through |= above[p] << (c - p)
        beyond.append(through & mask)
        above.append((own | through) & mask)
    return np.array(
        [not beyond[int(c)] >> int(c - 1 - p) & 1 for p, c in zip(producers, consumers, strict=True)], np.bool_
    )


_SUMMED = ("recorded_ns", "bound_ns", "listed_ns", "gain_ns", "listed_gain_ns", "overlap_ns")


def fold(gains: pd.DataFrame, launches: pd.DataFrame) -> pd.DataFrame:
    """Return pairs of repeated layers as one row: equal footprints, kernels, pattern and map, and modules that differ
    in digits only.

    Columns of `pair_gains`, of the first of them, but sums in ``*_ns`` (``lead_ns`` and ``early``: mean); and ``times``
    (pairs folded), ``producers`` and ``consumers`` (tuples of launches), ``listed_gain_ns`` (recorded time less the
    list schedule's), ``coverage`` (worst of both launches), ``kernel``, ``op`` and ``module`` of both sides
    (``producer_kernel`` ...; digits that differ as ``*``). Sorted: direct pairs first, of these the ones that renaming
    of memory would not separate and whose producer is the consumer's last, then neighbours (launches in between keep
    their order, so that the consumer of another pair meets the last of these, not its producer), then by what overlap
    saves beyond the launch gap, by gain and by bytes, largest first.
    """
    rows = gains.assign(
        map=gains["map"].fillna("").astype(str),
        pattern=gains["pattern"].astype(str),
        listed_gain_ns=np.maximum(gains["recorded_ns"] - gains["listed_ns"], 0.0),
    )
    by = ["pattern", "map", "direct", "apart", "last_producer", "reuse_only"]
    worst = np.zeros(len(rows), np.int64)
    for side in ("producer", "consumer"):
        facts = launches.iloc[gains[side].to_numpy(np.int64)]
        for name in ("footprint", "kernel", "op", "module"):
            rows[f"{side}_{name}"] = facts[name].to_numpy()
        rows[f"{side}_family"] = facts["module"].astype(str).str.replace(r"\d+", "#", regex=True).to_numpy()
        by += [f"{side}_{name}" for name in ("footprint", "kernel", "op", "family")]
        worst = np.maximum(worst, [COVERAGES.index(str(c)) for c in facts["coverage"]])
    rows["coverage"] = [COVERAGES[i] for i in worst]
    group = rows.groupby(by, sort=False, observed=True).ngroup().to_numpy(np.int64)
    members = [np.flatnonzero(group == g) for g in range(int(group.max(initial=-1)) + 1)]
    folded = rows.iloc[[m[0] for m in members]].reset_index(drop=True)
    folded["times"] = np.array([len(m) for m in members], np.int64)
    for side in ("producer", "consumer"):
        ids, names = rows[side].to_numpy(np.int64), rows[f"{side}_module"].tolist()
        folded[f"{side}s"] = pd.Series([tuple(ids[m].tolist()) for m in members], dtype=object)
        folded[f"{side}_module"] = pd.Series([common_name([names[i] for i in m]) for m in members], dtype=object)
    for name in _SUMMED:
        folded[name] = np.bincount(group, rows[name].to_numpy(np.float64), len(members))
    for name in ("early", "lead_ns"):
        folded[name] = np.bincount(group, rows[name].to_numpy(np.float64), len(members)) / folded["times"]
    order = ["direct", "true", "last_producer", "next", "overlap_ns", "gain_ns", "bytes"]
    marked = folded.assign(true=~folded["reuse_only"].astype(bool), next=folded["apart"] == 0)
    ranked = marked.sort_values(order, ascending=False, kind="stable")
    return ranked.drop(columns=["producer", "consumer", "key", "true", "next"]).reset_index(drop=True)


def direct_and_known(groups: pd.DataFrame) -> NDArray[np.bool_]:
    """Return rows of `fold` that are worth looking at: direct pairs with something to gain while everything else stays
    ordered, whose accesses are known and that renaming of memory would not separate.
    """
    worth = groups["direct"].to_numpy(bool) & (groups["gain_ns"].to_numpy(np.float64) > 0)
    worth &= groups["last_producer"].to_numpy(bool)
    certain = (groups["coverage"] != "conservative").to_numpy(bool) & ~groups["reuse_only"].to_numpy(bool)
    return np.asarray(worth & certain, dtype=np.bool_)


def described_edges(row: Mapping[Any, Any]) -> int:
    """Return dependencies of a pair that its pattern and bytes speak of: RAW, or where there are none the hazards that
    renaming leaves, or those of recycled memory.
    """
    return int(row["raw"] or row["war"] + row["waw"] or row["edges"]) if "raw" in row else int(row["edges"])


def common_name(names: Sequence[str]) -> str:
    """Return one name for names that differ in digits only: ``h.*.mlp`` for ``h.0.mlp`` and ``h.1.mlp``."""
    parts = [re.split(r"(\d+)", name) for name in names]
    if len({len(p) for p in parts}) != 1:
        return names[0]
    columns = [set(column) for column in zip(*parts, strict=True)]
    return "".join(column.pop() if len(column) == 1 else "*" for column in columns)
