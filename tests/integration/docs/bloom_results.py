"""Tables of docs/bloom.md: filters over declared ranges and in kernels, and loops whose steps repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Rows = list[list[object]]

RANGES_HEAD = (
    *("bits per filter", "program", "inserted", "looked up", "answered yes", "kernel after kernel"),
    *("exact graph", "filters"),
)


def ranges_rows(document: Row) -> Rows:
    """Return the runs of the program that finds its dependencies by filters (``bloom.json``)."""
    rows: Rows = []
    for row in document["rows"]:
        runs = {run["mode"]: run for run in row["runs"]}
        filters = runs["filters"]
        costs = [f"{row['insert_ns']} ns", f"{row['look_up_ns']:,} ns"]
        answers = f"{filters['found']:,} of {filters['asked']:,}"
        times = [f"{runs[mode]['us']:,.0f}" for mode in ("kernels", "exact", "filters")]
        rows.append([f"{row['bits']:,}", row["seed"], *costs, answers, *times])
    return rows


KERNELS_HEAD = (
    *("program", "bits, granule", "pairs asked", "dependent", "answered yes", "false", "of one granule"),
    "missed",
)
SIZES = (2048, 512), (8192, 512), (8192, 128), (32768, 128)


def kernels_rows(document: Sequence[Row]) -> Rows:
    """Return the answers of the filters in instrumented kernels (``filters.json``)."""
    counts = ("pairs", "dependent", "answered", "false", "granular", "missed")
    return [
        [row["program"], f"{row['bits']:,}, {row['granule']}", *(f"{row[key]:,}" for key in counts)]
        for row in document
        if (row["bits"], row["granule"]) in SIZES
    ]


RECORDINGS_HEAD = (
    *("recording", "bits, granule", "launches, blocks", "filters of all bits", "pairs asked", "dependent"),
    *("answered yes", "false", "with ranges of arguments", "missed"),
)


def recordings_rows(document: Sequence[Row]) -> Rows:
    """Return the answers of filters with the bits of recorded accesses (``inserted.json``)."""
    return [[f"`{row['recording']}`", f"{row['bits']:,}, {row['granule']}", *_answers(row)] for row in document]


GRAPH_HEAD = (
    *("recording", "bits, granule", "pairs by accesses", "by filters", "false", "missed"),
    *("stream order", "exact graph", "filters"),
)


def graph_rows(document: Sequence[Row]) -> Rows:
    """Return the graphs that follow from filters alone (``inserted.json``)."""
    rows: Rows = []
    for row in document:
        graph, us = row["graph"], row["graph"]["us"]
        counts = [f"{graph[key]:,}" for key in ("exact", "by_filters", "false", "lacking")]
        times = [f"{us[key]:,.1f} us" for key in ("stream", "exact", "filters")]
        rows.append([f"`{row['recording']}`", f"{row['bits']:,}, {row['granule']}", *counts, *times])
    return rows


def _answers(row: Row) -> list[object]:
    counts = ("pairs", "dependent", "answered", "false", "declared", "missed")
    sizes = f"{row['launches']:,}, {row['blocks']:,}", f"{row['full'] / row['filters']:.0%}"
    return [*sizes, *(f"{row[key]:,}" for key in counts)]


PROGRAMS = {
    "recurrent": "recurrent network, own kernels",
    "chain": "chain of products, own kernels",
    "lstm": "LSTM, two layers, six steps",
    "resnet_block": "block of ResNet, fp32",
    "products_fp32": "two products of 512, fp32",
    "products_bf16": "two products of 1,024, bf16",
    "gpt2_block_fp32": "layer of GPT-2, fp32",
    "gpt2_block_bf16": "layer of GPT-2, bf16",
}


def patched_rows(document: Row) -> Rows:
    """Return the answers of filters that patches filled (``inserted.json`` of the GPU)."""
    rows: Rows = []
    for row in document["rows"]:
        bits, _, granule = map(int, row["size"].split(","))
        rows.append([PROGRAMS[row["program"]], f"{bits:,}, {granule}", *_answers(row)])
    return rows


COST_HEAD = ("program", "plain", "empty callbacks", "accesses", "accesses and filters", "filters alone")
COSTS = {
    "gpt2_medium": "GPT-2 medium, plain bound by the host",
    "lstm": "LSTM",
    "gemm_bf16": "bf16 product of 4,096",
    "convolutions": "four convolutions",
    "gemm_fp32": "fp32 product of 1,024",
}


def cost_rows(document: Row) -> Rows:
    """Return GPU times of programs whose patches fill filters (``inserted.json`` of the GPU)."""
    rows: Rows = []
    for program, text in COSTS.items():
        ms = document["times"]["gpu_ms"][program]
        times = [ms[mode] for mode in ("plain", "floor", "accesses", "accesses and filters", "filters")]
        rows.append([text, f"{times[0]:.2f} ms", *(f"{one:.1f} ms ({one / times[0]:.1f}x)" for one in times[1:])])
    return rows


STEPS_HEAD = (
    *("program", "steps", "same from step", "data same from step", "reused", "`dataflow`"),
    "`dataflow:first=1`",
)


def steps_rows(document: Sequence[Row]) -> Rows:
    """Return from which step the graphs of loops repeat (``steps.json``)."""
    rows: Rows = []
    for row in document:
        known_us, first = row["us"].values()
        times = [f"{known_us:,.0f} us", f"{first:,.0f} us ({first / known_us - 1:+.1%})"]
        report = row["step_graphs"]
        if report is None:
            rows.append([row["program"], "no loop was found", "", "", "", *times])
            continue
        since = ["never" if report[key] is None else report[key] + 1 for key in ("settled", "settled_renamed")]
        times[1] += f", {report['first_kinds']} kinds"
        steps = f"{report['steps']} of {report['launches']} launches"
        rows.append([row["program"], steps, *since, f"{report['reused_share']:.0%}", *times])
    return rows
