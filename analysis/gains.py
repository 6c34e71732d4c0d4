"""What overlapping each dependent pair of launches could save, pair by pair and folded over repeated layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.analysis.bounds.bounder import Bounder, Bounds
from tileprof.analysis.bounds.durations import MEASURED, timed_rows
from tileprof.analysis.bounds.listing import alone
from tileprof.analysis.waves import PairWaves, pair_waves
from tileprof.trace.schema import COVERAGES, NEVER

if TYPE_CHECKING:
    from tileprof.analysis.graph import TileGraph

EARLY_MARGIN = 0.01
"""A consumer tile starts early when it could start this share of the producer's time before the producer's end:
less is within the spread of measured block times."""

OVERLAP_MARGIN = 0.02
"""Share of a pair's time that overlap must save to be worth naming: less is within the spread of any measurement."""

MOST_ANSWERS: Final = 4096
"""Pairs of different footprints, durations or relations that are bounded, a few milliseconds each: a program whose
every step has another shape has as many as it has pairs. Those with the fewest launches in between come first.
"""

NOT_COMPUTED: Final = "not computed"
"""The binding bound of the others."""

_REACH = 8192
"""How many launches back a path between two launches is looked for: 8192 bits a launch, 100 MB for 1e5 launches."""


@dataclass(frozen=True, slots=True)
class PairAnswer:
    """One pair in isolation; times in nanoseconds."""

    bounds: Bounds
    early: float
    lead_ns: float
    stream_waves: int
    overlapped_waves: float


def pair_gains(bounder: Bounder) -> pd.DataFrame:
    """``graph.pairs`` with what overlap could save, one row a pair, in order of producer and consumer.

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
    keys = _Keys(bounder)
    answers: dict[Any, PairAnswer] = {}
    number: dict[Any, int] = {}
    of_pair = [keys.of(*pair) for pair in zip(producers.tolist(), consumers.tolist(), strict=True)]
    for key in of_pair:
        number.setdefault(key, len(number))
    for row in np.argsort(consumers - producers, kind="stable").tolist():
        key, pair = of_pair[row], (int(producers[row]), int(consumers[row]))
        if key not in answers:
            answer = _answer if len(answers) < MOST_ANSWERS else _no_answer
            answers[key] = answer(bounder, keys, *pair)
    pair_answers = [answers[key] for key in of_pair]
    bounds = [a.bounds for a in pair_answers]
    recorded = np.array([b.recorded_ns for b in bounds], np.float64)
    bound = np.array([b.bound_ns for b in bounds], np.float64)
    listed = np.array([b.listed_ns if b.listed_ns is not None else np.nan for b in bounds], np.float64)
    own = np.minimum(bounder.launch_ns[producers] + bounder.launch_ns[consumers], recorded)
    return pairs.assign(
        direct=direct(len(graph.tile_base) - 1, _true_parents(graph), producers.tolist(), consumers.tolist()),
        apart=consumers - producers - 1,
        last_producer=_last(_true_parents(graph), producers.tolist(), consumers.tolist()),
        recorded_ns=recorded,
        bound_ns=bound,
        binding=pd.Series([b.binding for b in bounds], dtype=object),
        gain_ns=np.maximum(recorded - bound, 0.0),
        listed_ns=listed,
        overlap_ns=np.where(own - listed > OVERLAP_MARGIN * own, own - listed, 0.0),
        early=np.array([a.early for a in pair_answers], np.float64),
        lead_ns=np.array([a.lead_ns for a in pair_answers], np.float64),
        stream_waves=np.array([a.stream_waves for a in pair_answers], np.int64),
        overlapped_waves=np.array([a.overlapped_waves for a in pair_answers], np.float64),
        key=np.array([number[key] for key in of_pair], np.int64),
    )


def _no_answer(bounder: Bounder, keys: _Keys, producer: int, consumer: int) -> PairAnswer:
    """Of a pair beyond `MOST_ANSWERS`: nothing is claimed to be saved."""
    recorded = keys.recorded_ns(producer, consumer)
    bounds = Bounds(recorded, {NOT_COMPUTED: recorded}, {}, 0, None, None, (NOT_COMPUTED,))
    waves = _waves(bounder, keys, producer, consumer)
    return PairAnswer(bounds, 0.0, 0.0, waves.stream, waves.overlapped)


def _waves(bounder: Bounder, keys: _Keys, producer: int, consumer: int) -> PairWaves:
    tiles, slots = keys.tiles, bounder.slots
    return pair_waves((int(tiles[producer]), int(tiles[consumer])), (int(slots[producer]), int(slots[consumer])))


def _answer(bounder: Bounder, keys: _Keys, producer: int, consumer: int) -> PairAnswer:
    early, lead_ns = keys.early(producer, consumer)
    waves = _waves(bounder, keys, producer, consumer)
    return PairAnswer(
        bounder.of(keys.recorded_ns(producer, consumer), [producer, consumer]),
        early,
        lead_ns,
        waves.stream,
        waves.overlapped,
    )


class _Keys:
    """Facts of pairs, and by which of them two pairs have the same answer."""

    def __init__(self, bounder: Bounder) -> None:
        graph, launches = bounder.graph, bounder.graph.launches
        self._bounder = bounder
        self._trace = graph.recording
        self.tiles = launches["tiles"].to_numpy(np.int64)
        self._footprint = launches["footprint"].tolist()
        self._begin_ns = launches["begin_ns"].to_numpy(np.float64)
        self._duration_ns = launches["duration_ns"].to_numpy(np.float64)
        self._launch_ns = bounder.launch_ns
        self._placed = bool(self._begin_ns.any())
        self._flops = launches["flops"].tolist()
        self._freed = graph.recording.buffers["freed_at"].to_numpy(np.int64)
        times = graph.recording.times
        self._timed = timed_rows(graph.recording)
        self._tile = times["tile"].to_numpy(np.int64)
        self._tile_end_ns = times["end_ns"].to_numpy(np.float64)
        self._ends: dict[tuple[int, int], NDArray[np.float64]] = {}
        self._blocks: dict[tuple[int, int], list[tuple[int, bool]]] = {}
        links = graph.links
        for p, c, b, reuse in zip(links["producer"], links["consumer"], links["block"], links["reuse"], strict=True):
            self._blocks.setdefault((int(p), int(c)), []).append((int(b), bool(reuse)))

    def of(self, producer: int, consumer: int) -> tuple[object, ...]:
        each = tuple(
            (
                self._footprint[i],
                int(self._bounder.durations.begins[i]),
                self._flops[i],
                int(self._bounder.units[i]),
                int(self._bounder.demand[i]),
            )
            for i in (producer, consumer)
        )
        blocks = tuple(sorted(self._blocks[producer, consumer]))
        return *each, self.recorded_ns(producer, consumer), blocks, self._binding(producer, consumer)

    def _binding(self, producer: int, consumer: int) -> tuple[object, ...]:
        """Which operands share a buffer and where: what the bytes that both touch depend on."""
        names: dict[int, int] = {}
        bound = []
        for launch in (producer, consumer):
            buffers, offsets = self._trace.operands_of(launch)
            for b, offset in zip(buffers.tolist(), offsets.tolist(), strict=True):
                bound.append((names.setdefault(b, len(names)), offset, bool(self._freed[b] == NEVER)))
        return tuple(bound)

    def recorded_ns(self, producer: int, consumer: int) -> float:
        """Both launches, less their overlap, plus the gap between them up to the device's launch gap: a longer gap is
        other launches or a slow host, which overlapping these two does not mend.
        """
        took = self._launch_ns[[producer, consumer]]
        if not self._placed:
            return float(took.sum())
        between = self._begin_ns[consumer] - self._begin_ns[producer] - self._duration_ns[producer]
        return float(took.sum() + np.clip(between, -took.min(), self._bounder.machine.device.launch_gap_ns))

    def early(self, producer: int, consumer: int) -> tuple[float, float]:
        """Share of the consumer's tiles that could start early, and by how much on average, ns."""
        ends = self._ends_of(producer)
        end_ns = float(ends.max(initial=0.0))
        ready = np.zeros(int(self.tiles[consumer]))
        for number, reuse in self._blocks[producer, consumer]:
            block = self._bounder.graph.blocks[number]
            if not reuse and len(block.parent):
                of_set = np.maximum.reduceat(ends[block.parent], block.indptr[:-1])
                waits = block.set_of >= 0
                ready[waits] = np.maximum(ready[waits], of_set[block.set_of[waits]])
        if not len(ready) or end_ns <= 0:
            return 0.0, 0.0
        return float((ready < (1 - EARLY_MARGIN) * end_ns).mean()), float((end_ns - ready).mean())

    def _ends_of(self, launch: int) -> NDArray[np.float64]:
        """``[tiles]`` ends in stream order: as measured, or each tile on the next free slot."""
        durations = self._bounder.durations
        key = (int(durations.begins[launch]), int(self._bounder.slots[launch]))
        if key not in self._ends:
            ends = alone(durations.of(launch, int(self.tiles[launch])), int(self._bounder.slots[launch]))
            if durations.source[launch] == MEASURED:
                rows = self._timed[launch]
                ends[self._tile[rows]] = self._tile_end_ns[rows] * durations.calibration[launch]
            self._ends[key] = ends
        return self._ends[key]


def _true_parents(graph: TileGraph) -> dict[int, set[int]]:
    """Launches that each launch depends on, hazards of recycled memory aside."""
    links = graph.links[~graph.links["reuse"].to_numpy(bool)]
    parents: dict[int, set[int]] = {}
    for p, c in zip(links["producer"].tolist(), links["consumer"].tolist(), strict=True):
        parents.setdefault(c, set()).add(p)
    return parents


def _last(parents: dict[int, set[int]], producers: Sequence[int], consumers: Sequence[int]) -> NDArray[np.bool_]:
    """``[pairs]`` whether the consumer needs no launch that is issued after the producer."""
    return np.array([p >= max(parents.get(c, {p})) for p, c in zip(producers, consumers, strict=True)], np.bool_)


def direct(
    launches: int, parents: dict[int, set[int]], producers: Sequence[int], consumers: Sequence[int]
) -> NDArray[np.bool_]:
    """``[pairs]`` whether no other launch on a path of dependencies from producer to consumer lies in between.

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
    """Pairs of repeated layers as one row: equal footprints, kernels, pattern and map, and modules that differ in
    digits only.

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
    """Rows of `fold` that are worth looking at: direct pairs with something to gain while everything else stays
    ordered, whose accesses are known and that renaming of memory would not separate.
    """
    worth = groups["direct"].to_numpy(bool) & (groups["gain_ns"].to_numpy(np.float64) > 0)
    worth &= groups["last_producer"].to_numpy(bool)
    known = (groups["coverage"] != "conservative").to_numpy(bool) & ~groups["reuse_only"].to_numpy(bool)
    return np.asarray(worth & known, dtype=np.bool_)


def described_edges(row: Mapping[Any, Any]) -> int:
    """Dependencies of a pair that its pattern and bytes speak of: RAW, or where there are none the hazards that
    renaming leaves, or those of recycled memory.
    """
    return int(row["raw"] or row["war"] + row["waw"] or row["edges"]) if "raw" in row else int(row["edges"])


def common_name(names: Sequence[str]) -> str:
    """One name for names that differ in digits only: ``h.*.mlp`` for ``h.0.mlp`` and ``h.1.mlp``."""
    parts = [re.split(r"(\d+)", name) for name in names]
    if len({len(p) for p in parts}) != 1:
        return names[0]
    columns = [set(column) for column in zip(*parts, strict=True)]
    return "".join(column.pop() if len(column) == 1 else "*" for column in columns)
