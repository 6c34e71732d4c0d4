"""The facts that a trace holds about itself and about overlap, as one value: `build_report(graph) -> Report`.

The JSON form (`Report.to_json`, ``tileprof report --json``) is stable under its ``version``; keys are only added. Times
are nanoseconds, sizes bytes, shares 0 to 1; an unknown number is null. ::

    schema        "tileprof report"
    version       1
    trace         path, recorder, command, complete, granule
    device        name, sms, replayed         the GPU that the bounds speak of; replayed: it is not the recorded one,
    and
                  "recorded" times below are stream order on it, tile durations as recorded
    program       launches, tiles, recorded_ns, timing {measured, modelled}, shape_sources {table, learned, neighbour,
                  heuristic, rule, dictated: launches by how the model recorder knew their kernels}, time_sources
                  {calibrated,
                  interpolated, roofline: modelled launches by how it knew their times},
                  tile_times {measured, modelled, spread,
    roofline (launches
                  without a duration: modelled from FLOPs and bytes, and part of recorded_ns)},
                  launch_ns (sum), alone_ns (sum of what the tiles of each launch need alone on the GPU), gap_ns (no
                  kernel ran), waves, last_wave (mean fullness, weighed by time), idle (share of slot-time without a
                  tile, weighed in the same way), bytes_read, bytes_written (summed over tiles), flops
    bounds        of the program: recorded_ns, bounds_ns {name: ns}, area_by_resource_ns, compulsory_dram_bytes,
    bound_ns,
                  binding, ready_gated_bound_ns, gain, list_schedule_ns, list_schedule_with_reuse_ns, achievable_gain
    dependencies_known  false where the trace holds no accesses: bounds then know of no dependency, and what a schedule
    achieves is null unknown_lags  share of edges of which it is not known when in the tiles' lives the bytes are
    touched
    layers        [name, times, first, last (launches of the one that stands for all), bounds (as above, of one)]
    step_graphs   steps, launches, settled, settled_renamed, changes, first_kinds, reused_share of a loop
                  (`tileprof.analysis.reporting.step_graphs`), or null
    pairs         [producers, consumers (launches, first to last of a repeated pair), times, producer {kernel, op,
    module},
                  consumer {...}, pattern, map, edges (all
                  hazards, those of recycled memory too), described_edges (the ones that pattern and bytes speak of),
                  bytes, early, lead_ns, direct, apart, last_producer, reuse_only, stream_waves, overlapped_waves,
                  recorded_ns, bound_ns, binding, list_schedule_ns, gain_ns, overlap_ns, program_share, coverage] sorted
                  as the table is; sums over the repetitions for *_ns, the first pair's for the rest
    conservative  [op, kernel, launches, tiles, notes]
    notes         sentences of the recorder
    assumptions   {bound: sentence}
    first_look    index into pairs, or null
    guidance      added by ``tileprof report``: see tileprof.analysis.guidance.values
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from tileprof.analysis.bounds import ASSUMPTIONS, ROOFLINE, Bounder, Bounds, Machine
from tileprof.analysis.reporting.gains import described_edges, direct_and_known, fold, pair_gains
from tileprof.analysis.reporting.layers import Layer, repeated_layers
from tileprof.analysis.reporting.step_graphs import StepGraphs, step_graphs
from tileprof.analysis.waves import launch_waves
from tileprof.arrays.intervals import union

if TYPE_CHECKING:
    from tileprof.analysis.dependencies.graph import TileGraph
    from tileprof.trace import Recording

SCHEMA: Final = "tileprof report"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Program:
    """The recorded program as a whole; fields as under ``program`` in the module's docstring."""

    launches: int
    tiles: int
    recorded_ns: float
    timing: dict[str, int]
    shape_sources: dict[str, int]
    time_sources: dict[str, int]
    tile_times: dict[str, int]
    launch_ns: float
    alone_ns: float
    gap_ns: float
    waves: int
    last_wave: float
    idle: float
    bytes_read: int
    bytes_written: int
    flops: int


@dataclass(frozen=True, slots=True)
class Source:
    """The recording that a report speaks of."""

    path: str
    recorder: str
    command: tuple[str, ...]
    complete: bool
    reason: str
    granule: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All answers about one trace on one machine.

    ``dependencies_known``: false for a trace without accesses, of which nothing may be concluded from launches being
    independent; ``unknown_lags`` is the share of edges of which it is not known when in the tiles' lives the bytes are
    touched; ``layers`` as `layers.repeated_layers`; ``step_graphs`` as `step_graphs.step_graphs`; ``launch_waves`` as
    `tileprof.analysis.waves.launch_waves`; ``pairs`` as `gains.pair_gains` (one row per dependent pair of launches);
    ``groups`` as `gains.fold` (repeated layers folded, the best direct pair first); ``conservative``: one row per
    operator and kernel whose accesses are a superset: op, kernel, launches, tiles, notes.
    """

    source: Source
    device: str
    sms: int
    replayed: bool
    program: Program
    bounds: Bounds
    dependencies_known: bool
    unknown_lags: float
    layers: list[Layer]
    step_graphs: StepGraphs | None
    launch_waves: pd.DataFrame
    pairs: pd.DataFrame
    groups: pd.DataFrame
    conservative: pd.DataFrame

    @property
    def first_look(self) -> int | None:
        """Row of ``groups`` to look at first: of the direct pairs whose accesses are known and that renaming would not
        separate the one whose overlap saves most beyond the launch gap; else any direct pair; None where nothing can be
        gained.
        """
        groups = self.groups
        worth = groups["direct"].to_numpy(bool) & (groups["gain_ns"].to_numpy(np.float64) > 0)
        sure = direct_and_known(groups)
        rows = np.flatnonzero(sure if sure.any() else worth)
        return int(rows[0]) if len(rows) else None

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values, as in the module's docstring."""
        source = self.source
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "trace": {
                "path": source.path,
                "recorder": source.recorder,
                "command": list(source.command),
                "complete": source.complete,
                "granule": source.granule,
            },
            "device": {"name": self.device, "sms": self.sms, "replayed": self.replayed},
            "program": {name: getattr(self.program, name) for name in Program.__slots__},
            "bounds": self.bounds.to_json(),
            "dependencies_known": self.dependencies_known,
            "unknown_lags": self.unknown_lags,
            "layers": [_layer_json(layer) for layer in self.layers],
            "step_graphs": self.step_graphs.to_json() if self.step_graphs else None,
            "pairs": [_pair_json(row, self.program.recorded_ns) for row in self.groups.to_dict("records")],
            "conservative": self.conservative.to_dict("records"),
            "notes": list(source.notes),
            "assumptions": dict(ASSUMPTIONS),
            "first_look": self.first_look,
        }


def build_report(graph: TileGraph, machine: Machine | None = None) -> Report:
    """Return the report of a trace's tile graph on its own device, or on another machine (durations of tiles stay as
    recorded).
    """
    trace = graph.recording
    bounder = Bounder(graph, machine)
    waves = launch_waves(trace.launches, bounder.slots, bounder.durations)
    program = _program(trace, bounder, waves)
    gains = pair_gains(bounder)
    recorded = not program.tiles or program.bytes_read + program.bytes_written > 0
    bounds = bounder.of(program.recorded_ns)
    return Report(
        source=_source(trace),
        device=bounder.machine.device.name,
        sms=bounder.machine.sms,
        replayed=bounder.replayed,
        program=program,
        bounds=bounds if recorded else replace(bounds, listed_ns=None, listed_reuse_ns=None),
        dependencies_known=recorded,
        unknown_lags=_unknown_lags(graph),
        layers=repeated_layers(bounder) if recorded else [],
        step_graphs=step_graphs(graph) if recorded else None,
        launch_waves=waves,
        pairs=gains,
        groups=fold(gains, trace.launches),
        conservative=_conservative(trace.launches),
    )


def recorded_ns(launches: pd.DataFrame) -> float:
    """Return the time from the first launch's begin to the last one's end; the sum of durations where no launch has a
    begin.
    """
    begin, took = launches["begin_ns"].to_numpy(np.float64), launches["duration_ns"].to_numpy(np.float64)
    if not len(launches):
        return 0.0
    return float((begin + took).max() - begin.min()) if begin.any() else float(took.sum())


def quiet_ns(launches: pd.DataFrame) -> float:
    """Return how much of the recorded time no kernel ran, between the first launch's begin and the last one's end; 0
    without begins.
    """
    begin, took = launches["begin_ns"].to_numpy(np.float64), launches["duration_ns"].to_numpy(np.float64)
    if not begin.any():
        return 0.0
    order = np.argsort(begin, kind="stable")
    lo, hi = union(begin[order], (begin + took)[order])
    return float((lo[1:] - hi[:-1]).sum())


def _source(trace: Recording) -> Source:
    manifest = trace.manifest
    return Source(
        path=str(trace.path),
        recorder=str(manifest.get("recorder", "unknown")),
        command=tuple(map(str, manifest.get("command", ()))),
        complete=trace.complete,
        reason=str(manifest.get("reason") or ""),
        granule=int(manifest.get("granule", 1)),
        notes=tuple(map(str, manifest.get("notes", ()))),
    )


def _program(trace: Recording, bounder: Bounder, waves: pd.DataFrame) -> Program:
    launches = trace.launches
    alone = waves["alone_ns"].to_numpy(np.float64)
    weight = alone if alone.sum() > 0 else np.ones(len(alone))
    footprint_bytes = trace.tiles.groupby("footprint")[["bytes_read", "bytes_written"]].sum()
    launch_bytes = footprint_bytes.reindex(launches["footprint"], fill_value=0).sum()
    sources = pd.Series(bounder.durations.source, dtype=object)
    total = recorded_ns(launches)
    gap_ns = quiet_ns(launches)
    total += float(bounder.launch_ns[(sources == ROOFLINE).to_numpy(bool)].sum())
    if bounder.replayed:
        total = float(alone.sum()) + gap_ns
    return Program(
        launches=len(launches),
        tiles=int(launches["tiles"].sum()),
        recorded_ns=total,
        timing=_counts(launches["timing"].astype(str)),
        shape_sources=_counts(launches["shape_source"].astype(str)),
        time_sources=_counts(launches["time_source"].astype(str)),
        tile_times=_counts(sources),
        launch_ns=float(bounder.launch_ns.sum()),
        alone_ns=float(alone.sum()),
        gap_ns=gap_ns,
        waves=int(waves["waves"].sum()),
        last_wave=float(np.average(waves["last_wave"], weights=weight)) if len(waves) else 1.0,
        idle=float(np.average(waves["idle"], weights=weight)) if len(waves) else 0.0,
        bytes_read=int(launch_bytes["bytes_read"]),
        bytes_written=int(launch_bytes["bytes_written"]),
        flops=int(launches["flops"].sum()),
    )


def _unknown_lags(graph: TileGraph) -> float:
    links = graph.links
    edges, blocks = links["edges"].to_numpy(np.float64), links["block"].to_numpy(np.int64)
    unknown = np.array([float(np.isnan(b.last + b.first).mean()) if len(b.parent) else 0.0 for b in graph.blocks])
    return float((unknown[blocks] * edges).sum() / edges.sum()) if edges.sum() > 0 else 0.0


def _layer_json(layer: Layer) -> dict[str, Any]:
    place = {"name": layer.name, "times": layer.times, "first": layer.first, "last": layer.last}
    return {**place, "bounds": layer.bounds.to_json()}


def _counts(words: pd.Series[str]) -> dict[str, int]:
    return {str(word): int(count) for word, count in words.value_counts().items() if word}


def _conservative(launches: pd.DataFrame) -> pd.DataFrame:
    guessed = launches[(launches["coverage"] == "conservative").to_numpy()]
    rows = [
        {
            "op": str(op),
            "kernel": str(kernel),
            "launches": len(g),
            "tiles": int(g["tiles"].sum()),
            "notes": sorted({str(n) for n in g["note"] if n}),
        }
        for (op, kernel), g in guessed.groupby(["op", "kernel"], observed=True)
    ]
    frame = pd.DataFrame(rows, columns=["op", "kernel", "launches", "tiles", "notes"])
    return frame.sort_values("launches", ascending=False, kind="stable", ignore_index=True)


def _pair_json(row: dict[Any, Any], program_ns: float) -> dict[str, Any]:
    sides = {
        side: {name: str(row[f"{side}_{name}"]) for name in ("kernel", "op", "module")}
        for side in ("producer", "consumer")
    }
    return {
        "producers": [int(i) for i in row["producers"]],
        "consumers": [int(i) for i in row["consumers"]],
        **{name: int(row[name]) for name in ("times", "edges", "bytes", "apart", "stream_waves")},
        "described_edges": described_edges(row),
        **sides,
        **{name: str(row[name]) for name in ("pattern", "map", "binding", "coverage")},
        **{name: bool(row[name]) for name in ("direct", "last_producer", "reuse_only")},
        **{
            name: float(row[name])
            for name in ("early", "lead_ns", "overlapped_waves", "recorded_ns", "bound_ns", "gain_ns", "overlap_ns")
        },
        "list_schedule_ns": None if math.isnan(row["listed_ns"]) else float(row["listed_ns"]),
        "program_share": float(row["gain_ns"]) / program_ns if program_ns > 0 else None,
    }
