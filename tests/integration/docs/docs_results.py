"""Numbers in Markdown pages that come from committed results files: tables made anew, figures in sentences compared.

    python -m tests.integration.docs.docs_results              checks all pages
    python -m tests.integration.docs.docs_results --write      writes tables and figures anew
    python -m tests.integration.docs.docs_results --list       lists the other numbers; ! where no source is near

A table stands between ``<!-- NAME -->`` and ``<!-- end of NAME -->``. What ``docs_examples.py`` executes, and tables
that a script of ``tests/benchmarks`` writes between such marks, are not listed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests.gpu.measuring import measure_models, measure_starts
from tests.integration.docs import acs_results, bloom_results
from tileprof.runtime.measuring import summary

ROOT = Path(__file__).parents[3]
GPU, BENCHMARKS = ROOT / "tests/gpu/results", ROOT / "tests/benchmarks/results"
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))


def results(name: str, folder: Path = GPU) -> Any:
    """Return the content of a results file."""
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 0) -> list[str]:
    """Return a table; with ``left``, columns from that one on are aligned to the right."""
    marks = ["---" if not left or column < left else "---:" for column in range(len(head))]
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (head, *rows)]
    return [lines[0], "|" + "|".join(marks) + "|", *lines[1:]]


def mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean."""
    return statistics.geometric_mean(list(ratios))


# ---- tables


def chains() -> list[str]:
    """Return all chains of ``runtime.json``, with a heading for each kind."""
    return summary.markdown(results("runtime")).rstrip("\n").split("\n")


STREAMS = ("graph", "cusync", "cusync-streams")


def streams() -> dict[str, dict[str, float]]:
    """Return the times of ``streams.json`` by chain and schedule."""
    rows: dict[str, dict[str, float]] = {}
    for row in results("streams")["rows"]:
        rows.setdefault(row["chain"], {})[row["row"]] = row["us"]
    return rows


KINDS = {"MLPs": "MLP", "convolution pairs": "convolutions", "copy pairs": "copy pair", "attention blocks": "attention"}


def streams_by_kind() -> list[str]:
    """Return geometric means of gains over stream order."""
    rows = []
    for kind, word in KINDS.items():
        some = [us for chain, us in streams().items() if word in chain]
        cells = []
        for way in STREAMS[1:]:
            gains = [us["graph"] / us[way] for us in some]
            cells.append(
                f"{mean(gains):.3f}x{' stream order' * (not rows and not cells)} ({min(gains):.3f} to {max(gains):.3f})"
            )
        rows.append([f"{len(some)} {kind}", *cells])
    return markdown(["chains", "one stream, programmatic launch", "two streams, wait kernel"], rows)


def streams_by_chain() -> list[str]:
    """Return every chain of ``streams.json``, in the order of kinds."""
    names = sorted(streams(), key=_order_of_streams)
    rows = []
    for name in names:
        us = streams()[name]
        gains = [f"{us[way]:.1f} ({1 - us[way] / us['graph']:+.1%})" for way in STREAMS[1:]]
        rows.append([name, f"{us['graph']:.1f}", *gains])
    head = ["one stream, programmatic launch (`cusync`)", "two streams, wait kernel (`cusync-streams`)"]
    return markdown(["chain", "stream order", *head], rows)


def _order_of_streams(chain: str) -> tuple[Any, ...]:
    kinds = ("copy", "GPT-3 MLP", "LLaMA-65B MLP", "LLaMA-7B MLP", "convolutions", "GPT-3 att", "LLaMA-65B att")
    numbers = [int(n) for n in re.findall(r"(?<![\w-])\d+", chain)]
    if "convolutions" in chain:
        numbers = [numbers[-1], chain.startswith("VGG"), -numbers[-4], numbers[-2]]
    elif chain.startswith("copy"):
        numbers = [numbers[1], numbers[0]]
    return next(n for n, kind in enumerate(kinds) if kind in chain), numbers


def whole_models() -> list[str]:
    """Return the models of ``models.json``."""
    with mock.patch.object(sys, "path", [str(ROOT / "tests/gpu/measuring"), *sys.path]):
        return measure_models.table(results("models"))


def starts() -> list[str]:
    """Return seconds until the first result."""
    return measure_starts.table(results("starts"))


ACS_CAPTURED = {
    name: f"`{name}`"
    for name in (
        "inception --kind nasnet --graph --keep",
        "tree_lstm --graph --keep",
        "inception --graph --keep",
        "tree_lstm --graph",
        "inception --graph",
        "inception --kind nasnet --graph",
        "tree_lstm --leaves 16 --graph --keep",
        "inception --size 28 --graph --keep",
    )
} | {"acs_models inception_v3 --graph --keep": "torchvision's Inception v3, 96 pixels, `--graph --keep`"}


def acs_gains() -> dict[str, tuple[float, float]]:
    """Return microseconds of a step in stream order and over streams, of programs that ACS makes faster."""
    document = results("acs")
    us = {row["mode"]: row["us"] for row in document["alone"] if row["program"] == "islands"}
    rows = {"`islands` (CUDA alone, 129 launches per step)": (us["plain"], us["streams"])}
    simulated = {row["program"]: row for row in results("acs_simulated")["rows"]}
    rows |= {title: (simulated[name]["plain_us"], simulated[name]["acs_us"]) for name, title in ACS_CAPTURED.items()}
    later = [
        [row["us"] for row in document["captured models of libraries, 2026-11-24"]["rows"]
         if (row["program"], row["mode"]) == ("acs_models nasnetalarge --graph --keep", mode)]
        for mode in ("plain", "streams")
    ]  # fmt: skip
    plain, streams = map(statistics.median, later)
    return rows | {"timm's NASNet-A large, small widths, `--graph --keep`": (plain, streams)}


def acs() -> list[str]:
    """Return programs that ACS makes faster."""
    rows = [[name, f"{one:,.0f}", f"{two:,.0f}", f"{one / two:.2f}x"] for name, (one, two) in acs_gains().items()]
    return markdown(["program", "stream order", "over streams", "gain"], rows, left=1)


def acs_simulated() -> list[str]:
    """Return captured programs whose step under ACS was simulated."""
    return markdown(acs_results.SIMULATED_HEAD, acs_results.simulated_rows(results("acs_simulated")), left=1)


def acs_eager() -> list[str]:
    """Return programs that issue their launches themselves, under ACS."""
    return markdown(acs_results.EAGER_HEAD, acs_results.eager_rows(results("acs_eager")), left=1)


def acs_fastest() -> list[str]:
    """Return the fastest steps of these programs, measured and foretold."""
    return markdown(acs_results.FASTEST_HEAD, acs_results.fastest_rows(results("acs_eager")), left=1)


def acs_runs() -> list[str]:
    """Return programs that ran with delays, and were checked."""
    return markdown(acs_results.RUNS_HEAD, acs_results.runs_rows(results("acs_runs")), left=1)


def bloom() -> list[str]:
    """Return the runs of the program that finds its dependencies by filters."""
    return markdown(bloom_results.RANGES_HEAD, bloom_results.ranges_rows(results("bloom")))


def filters() -> list[str]:
    """Return what the filters of instrumented kernels answered."""
    return markdown(bloom_results.KERNELS_HEAD, bloom_results.kernels_rows(results("filters")))


def filters_of_recordings() -> list[str]:
    """Return what filters with the bits of recorded accesses answer."""
    return markdown(bloom_results.RECORDINGS_HEAD, bloom_results.recordings_rows(results("inserted", BENCHMARKS)))


def filters_by_patches() -> list[str]:
    """Return what filters that patches filled in unmodified kernels answered."""
    head = ["program", *bloom_results.RECORDINGS_HEAD[1:]]
    return markdown(head, bloom_results.patched_rows(results("inserted")))


def steps_that_repeat() -> list[str]:
    """Return how soon the graphs of loops repeat."""
    return markdown(bloom_results.STEPS_HEAD, bloom_results.steps_rows(results("steps", BENCHMARKS)))


DEALT = ("persistent", "persistent-dynamic", "ccks", "ccks-ready")


def dealers_table() -> list[str]:
    """Return the times of chains under schedulers that hand tiles out."""
    us = results("dealers")["us"]
    rows = [[name, *(f"{row[way]:.1f}" for way in ("persistent-stages", *DEALT))] for name, row in us.items()]
    return markdown(["chain", "stages one by one", *(f"`{way}`" for way in DEALT)], rows)


WAYS = {
    "host": "page-locked memory of the CPU, which blocks poll",
    "relay": "the same, polled by one block, which stores what is new into the GPU's memory",
    "copy": "the GPU's memory: one copy by a copy engine per batch (`cudaMemcpyAsync`, a stream of high priority)",
    "write": "the GPU's memory: one `cuStreamWriteValue64` per word",
    "batch": "the GPU's memory: one `cuStreamBatchMemOp` per batch",
}


def link_ways() -> list[str]:
    """Return round trips over the link, by where answers go."""
    ways = {(row["way"], row["blocks"]): row for row in results("link_ways")["ways"]}
    rows = []
    for way, text in WAYS.items():
        trips = [f"{ways[way, blocks]['median_ns'] / 1e3:.1f}" for blocks in (1, 8, 32, 128)]
        rows.append([text, *trips, f"{ways[way, 128]['million_answers_per_s']:.1f}"])
    return markdown(["answers go to", "1 block", "8", "32", "128", "million answers per second, 128 blocks"], rows)


def deadlines() -> list[str]:
    """Return when two programs that share the GPU end, by order."""
    orders = {"stages": "order of stages", "critical": "critical path", "deadline": "deadline"}
    orders["deadline, depth 1"] = "deadline, one tile per cluster"
    rows = []
    for row in results("dealers")["deadlines"]:
        cells = [" / ".join(f"{us:.0f}" for us in (*row[order]["ends_us"], row[order]["whole_us"])) for order in orders]
        rows.append([row["program"], *cells])
    return markdown(["large program", *orders.values()], rows)


def exported_headers() -> list[str]:
    """Return chains of plain CUDA C++ kernels with exported headers."""
    rows: list[list[str]] = []
    head: list[str] = []
    for name, row in results("exported_headers")["rows"].items():
        (first, stream), *others = row["schedules"].items()
        head = ["chain", first, *(other for other, _ in others)]
        gains = [f"{each['us']:.1f} ({1 - each['us'] / stream['us']:+.1%})" for _, each in others]
        rows.append([name, f"{stream['us']:.1f}", *gains])
    return markdown(head, rows)


HALO = ("Conv2DTileSync", "RowSync", "with the halo")


def halo() -> list[str]:
    """Return rounds with wrong results, by how late a tile is."""
    wrong = {}
    for row in results("halo")["rows"]:
        if row["synchronised_by"] == "cuSync":
            wrong[row["policy"], row["late_us"]] = row["wrong_rounds"]
    times = dict.fromkeys(late for _, late in wrong)
    rows = [[f"{late:,.0f} us", *(wrong[policy, late] for policy in HALO)] for late in times]
    return markdown(["the tile is late by", *HALO[:2], "the exported policy, with the halo"], rows)


MUTANTS = {
    "random": "policies over random graphs",
    "residency": "what residency relies on",
    "programs": "policies of GPT-2, BERT, ResNet-38, VGG-19, a mixture of experts, an LSTM and Inception",
}
COUNTS = {
    "made": "made",
    "harmful": "harmful",
    "accepted although harmful": "harmful, accepted",
    "harmless": "harmless",
    "refused although harmless": "harmless, refused",
    "refused by rule": "harmless, refused by rule",
}


def mutants() -> list[str]:
    """Return mutants of sound policies and what the verifier said of them."""
    counts = results("mutants", BENCHMARKS)
    rows = [[text, *(f"{counts[key][c]:,}" for c in COUNTS), counts[key]["date"]] for key, text in MUTANTS.items()]
    rows.append(["all", *(f"{sum_of_mutants(c):,}" for c in COUNTS), ""])
    return markdown(["mutants of", *COUNTS.values(), "measured"], rows)


def sum_of_mutants(kind: str) -> int:
    """Return the number of mutants of a kind."""
    return sum(row[kind] for row in results("mutants", BENCHMARKS).values())


def held_out_recordings() -> list[str]:
    """Return predictions from recordings of programs that no rule was made for."""
    rows = []
    for name, row in results("recorded")["held_out"].items():
        predicted, measured = ((row[f"{of}stream_us"], row[f"{of}policy_us"]) for of in ("predicted_", ""))
        pairs = [f"{one:.1f} to {two:.1f}" for one, two in (predicted, measured)]
        rows.append([name.replace("_", " "), *pairs, *(f"{1 - two / one:.1%}" for one, two in (predicted, measured))])
    return markdown(["held out", "predicted, us", "measured, us", "gain predicted", "measured"], rows)


ACCESSES = {
    "gpt2_medium": "GPT-2 medium",
    "lstm": "LSTM",
    "gemm_bf16": "bf16 product of 4096",
    "convolutions": "four convolutions",
    "gemm_fp32": "fp32 product",
}


def accesses_pass() -> list[str]:
    """Return the GPU time of the CUDA recorder's pass of accesses."""
    rows = []
    for name, text in ACCESSES.items():
        modes = results("overhead")["gpu_time"][name]
        plain = modes["plain"]["ms"]
        others = (modes[mode]["ms"] for mode in ("accesses", "floor"))
        before = f"{modes['accesses_before']['ms']:.1f} ms"
        rows.append([text, f"{plain:.2f} ms", *(f"{ms:.1f} ms ({ms / plain:.1f}x)" for ms in others), before])
    return markdown(["program", "plain", "accesses pass", "empty callbacks", "before"], rows)


WRITTEN = {
    "convnext": "ConvNeXt-T of timm",
    "resnet50_step": "a training step of ResNet-50, bf16, channels last",
    "qwen3_moe": "two layers of Qwen3-MoE",
    "unet": "a U-Net, fp16, NCHW",
}


def bytes_written() -> list[str]:
    """Return how the CUDA recorder knows the bytes that programs write."""
    by_program = {row["program"]: row["bytes"] for row in results("coverage")["programs"]}
    rows = []
    for name, text in WRITTEN.items():
        counts, whole = by_program[name], sum(by_program[name].values())
        rows.append([text, *(f"{counts.get(kind, 0) / whole:.1%}" for kind in ("exact", "inferred", "conservative"))])
    return markdown(["program", "exact", "inferred", "conservative"], rows)


TABLES: dict[str, dict[str, Callable[[], list[str]]]] = {
    "acs": {
        "programs that gain": acs,
        "eager measured": acs_eager,
        "fastest steps": acs_fastest,
        "simulated": acs_simulated,
        "delayed runs": acs_runs,
    },
    "bloom": {
        "found by filters": bloom,
        "filters in kernels": filters,
        "filters by patches": filters_by_patches,
        "filters of recordings": filters_of_recordings,
        "steps that repeat": steps_that_repeat,
    },
    "ccks": {"dealt": dealers_table, "ways over the link": link_ways, "deadlines": deadlines},
    "exported-headers": {"kernels with exported headers": exported_headers},
    "cuda-recorder": {"bytes written": bytes_written, "accesses pass": accesses_pass},
    "chain-times": {"chains": chains, "two streams by chain": streams_by_chain},
    "measured": {"two streams": streams_by_kind},
    "simulator-accuracy": {"held-out recordings": held_out_recordings},
    "verify": {"halo": halo, "mutants": mutants},
    "whole-models": {"whole models": whole_models, "starts": starts},
}


def marks(name: str) -> tuple[str, str]:
    """Return what stands before and after a table."""
    return f"<!-- {name} -->", f"<!-- end of {name} -->"


def with_tables(text: str, tables: Mapping[str, Callable[[], list[str]]]) -> str:
    """Return a page with its tables made anew."""
    for name, rewrites in tables.items():
        begin, end = marks(name)
        head, rest = text.split(begin + "\n")
        text = f"{head}{begin}\n" + "\n".join(rewrites()) + f"\n{end}" + rest.split(end, maxsplit=1)[1]
    return text


# ---- figures in sentences


@dataclass(frozen=True)
class Figure:
    """A figure that sentences give: every match of ``sentence`` in any page has the ``values`` in its groups."""

    sentence: str
    values: tuple[str, ...]


def figures() -> list[Figure]:
    """Return the figures of all pages with the values that results files give them."""
    return [*_of_mutants(), *_of_chains(), *_of_models(), *_of_programs(), *_of_acs(), *_of_dealing()]


def _of_mutants() -> Iterator[Figure]:
    rewrites, harmful, harmless = (f"{sum_of_mutants(kind):,}" for kind in ("made", "harmful", "harmless"))
    yield Figure(r"([\d,]+) harmful(?:,| mutants| ones)", (harmful,))
    yield Figure(r"([\d,]+) harmless(?:,| mutants)", (harmless,))
    yield Figure(r"\[([\d,]+)\]\((?:docs/)?verify\.md#limits\)", (rewrites,))
    late = {
        (row["policy"], row["late_us"]): row for row in results("halo")["rows"] if row["synchronised_by"] == "cuSync"
    }
    row = late["Conv2DTileSync", 10.0]
    yield Figure(r"wrong in (\d+) of (\d+) runs", (str(row["wrong_rounds"]), str(row["rounds"])))


def gains(*words: str) -> list[float]:
    """Return stream order over synchronised for chains of the persistent kernel whose names have one of the words."""
    of = summary.by_chain(results("runtime")["rows"])
    some = [rows for name, rows in of.items() if "persistent" in rows and any(word in name for word in words)]
    return [rows["persistent-stages"]["us"] / rows["persistent"]["us"] for rows in some]


def over_pytorch() -> list[float]:
    """Return PyTorch in a graph over synchronised, for pairs of convolutions."""
    of = summary.by_chain(results("runtime")["rows"])
    some = [rows for name, rows in of.items() if "persistent" in rows and "convolutions" in name]
    return [rows["PyTorch in a graph"]["us"] / rows["persistent"]["us"] for rows in some]


def _of_chains() -> Iterator[Figure]:
    pairs, products = gains("convolutions"), gains("MLP")
    resnet, vgg = gains("ResNet-38"), gains("VGG-19")
    counts = str(len(pairs)), str(len(products))
    few = f"{100 * (mean(pairs) - 1):.0f}", f"{100 * (mean(products) - 1):.0f}"
    ends = [f"{100 * (gain - 1):{sign}}" for gain, sign in ((min(products), ".1f"), (max(products), "+.0f"))]
    whole_pairs = counts[0], few[0], f"{100 * (max(pairs) - 1):.0f}", f"{mean(over_pytorch()):.1f}"
    sentence = r"(\d+) sizes, H200 \| (\d+)% faster than stream order \(mean; 0 to (\d+)%\), ([\d.]+)x as fast"
    yield Figure(sentence, whole_pairs)
    sentence = r"(\d+) sizes \| (\d+)% faster than stream order \(([-\d.]+) to ([+\d.]+)%\)"
    yield Figure(sentence, (counts[1], few[1], *ends))
    whole = f"{mean(pairs):.3f}", counts[0], f"{mean(resnet):.2f}", f"{mean(vgg):.2f}"
    yield Figure(r"([\d.]+)x(?: in the mean)? \((\d+) sizes; ResNet-38 ([\d.]+)x, VGG-19 ([\d.]+)x\)", whole)
    yield Figure(r"MLPs ([\d.]+)x \((\d+) sizes\)", (f"{mean(products):.3f}", counts[1]))
    yield Figure(r"Convolution pairs gain (\d+)%", few[:1])
    predicted = [row for row in results("runtime")["rows"] if row["row"] == "persistent" and "predicted_gain" in row]
    near = sum(abs(row["predicted_gain"] - row["gain"]) <= 0.05 for row in predicted)
    yield Figure(r"(\d+) of the (\d+) (?:gains|rows of)", (str(near), str(len(predicted))))


def faster(model: str) -> float:
    """Return how many times as fast as Inductor's program a model of ``models.json`` is."""
    us = results("models")["rows"][model]["us"]
    return float(us["inductor"][0] / us["tileprof"][0])


def _of_models() -> Iterator[Figure]:
    rows = results("models")["rows"]
    yield Figure(r"BERT ([\d.]+)x as fast", (f"{faster('BERT base, 128 tokens'):.1f}",))
    yield Figure(r"a token of LLaMA-1B ([\d.]+)x", (f"{faster('LLaMA-1B, 1 token'):.1f}",))
    (shared,) = {f"{faster(name):.1f}" for name in ("ResNet-50", "GPT-2, 128 tokens")}
    yield Figure(r"ResNet-50 and GPT-2 ([\d.]+)x", (shared,))
    yield Figure(r"VGG-16 ([\d.]+)x", (f"{faster('VGG-16'):.1f}",))
    held_out = [faster(name) for name in list(rows)[-12:]]
    ends = f"{min(held_out):.2f}", f"{max(held_out):.1f}"
    yield Figure(r"12 held-out models ([\d.]+)x to ([\d.]+)x", ends)
    peaks = [row["peak_mb"]["tileprof"] / row["peak_mb"]["inductor"] - 1 for row in rows.values()]
    sentence = r"peaks of all (\d+) measured models are at most (\d+)% above"
    yield Figure(sentence, (str(len(rows)), f"{100 * max(peaks):.0f}"))


def share_of_pairs(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the share of pairs of launches in either graph that both have with the same pattern."""
    return sum(row["same_pattern"] for row in rows) / sum(sum(row["pairs"]) - row["both"] for row in rows)


def _of_programs() -> Iterator[Figure]:
    words = dict(enumerate(("six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"), 6))
    users, held_out = (results(name, BENCHMARKS) for name in ("clients", "held_out"))
    shares = [f"{share_of_pairs(rows):.0%}" for rows in (users, held_out)]
    counts = [words.get(len(rows), str(len(rows))) for rows in (users, held_out)]
    cells = (shares[0], counts[0], shares[1], counts[1])
    yield Figure(r"the same in (\d+%) over (\w+) programs of users, in (\d+%) over (\w+) that", cells)


def _of_acs() -> Iterator[Figure]:
    ratios = {name: one / two for name, (one, two) in acs_gains().items()}
    captured = [ratio for name, ratio in ratios.items() if "islands" not in name]
    yield Figure(r"\(captured programs ([\d.]+)x\)", (f"{mean(captured):.1f}",))
    six = captured[:6]
    cells = f"{mean(six):.2f}", f"{mean(captured):.2f}"
    yield Figure(r"first six captured programs gain ([\d.]+)x and all ten ([\d.]+)x", cells)
    errors = [abs(row["acs"] / row["acs_us"] - 1) for row in results("acs_simulated")["rows"]]
    yield Figure(
        r"(\d+) of (\d+) programs are within 10%, the other", (f"{sum(e <= 0.1 for e in errors)}", f"{len(errors)}")
    )
    yield from _of_eager()
    models = [
        row for row in results("acs")["models with delays of up to 20 us, 2026-11-24"] if "train" not in row["program"]
    ]
    spread, launches = (f"{sum(row[key] for row in models):,}" for key in ("spread", "launches"))
    yield Figure(r"([\d,]+) of ([\d,]+) launches (?:went to|ran on) other streams", (spread, launches))
    sums = (f"{sum(row[key] for row in results('acs_runs')['rows']):,}" for key in ("spread", "launches", "checked"))
    yield Figure(
        r"([\d,]+) of ([\d,]+) delayed launches ran on other streams; `--check` compared ([\d,]+)", tuple(sums)
    )


def _of_eager() -> Iterator[Figure]:
    document = results("acs_eager")
    four_pairs = {**document, "calls": [next(call for call in document["calls"] if call["date"] == "2026-11-24")]}
    alike = acs_results.LIKE_THE_PAPERS
    yield Figure(
        r"eight programs like the paper's(?: \([^)]*\))?\s+gain ([\d.]+)x",
        (f"{mean(acs_results.gains(document, 'thread', alike)):.2f}",),
    )
    best = [f"{mean(acs_results.gains(document, mode, ('islands',))):.2f}" for mode in ("thread", "graph", "workers")]
    yield Figure(
        r"`islands` gains ([\d.]+)x with `acs`, ([\d.]+)x with `acs-graph` and ([\d.]+)x with `--workers 8`",
        tuple(best),
    )
    errors = [p.fastest[2] / p.fastest[1] - 1 for p in acs_results.eager(document) if p.fastest]
    near = sum(abs(error) <= 0.1 for error in errors)
    yield Figure(r"eager mode (\d+) of (\d+) are within 10%", (f"{near}", f"{len(errors)}"))
    rests = [f"{mean(acs_results.gains(four_pairs, mode, alike)):.2f}" for mode in ("spread", "thread")]
    yield Figure(r"a thread that never rests gave ([\d.]+)x\s+instead of ([\d.]+)x", tuple(rests))


def _of_dealing() -> Iterator[Figure]:
    us = list(results("dealers")["us"].values())
    for sentence, way, other in (
        (r"`ccks` takes ([\d.]+) to ([\d.]+) times as long as `persistent-dynamic`", "ccks", "persistent-dynamic"),
        (r"`ccks` takes ([\d.]+) to ([\d.]+) times as long as static lists", "ccks", "persistent"),
    ):
        yield Figure(sentence, ends(row[way] / row[other] for row in us))
    layers = [row for row in results("experts")["us"].values() if "persistent-dynamic" in row]
    dynamic = [row for row in layers if min(row[way] for way in DEALT) == row["persistent-dynamic"]]
    for sentence, other in (
        (r"([\d.]+) to ([\d.]+) of the time of a graph of worst-case grids", "graph"),
        (r"([\d.]+) to ([\d.]+) of PyTorch's grouped products", "PyTorch, grouped products"),
    ):
        yield Figure(sentence, ends(row["persistent-dynamic"] / row[other] for row in layers))
    words = dict(enumerate(("five", "six", "seven", "eight"), 5))
    cells = words[len(dynamic)], words[len(layers)]
    yield Figure(r"queue on the GPU is the fastest in (\w+) of (\w+) layers", cells)


def ends(ratios: Iterable[float]) -> tuple[str, str]:
    """Return the least and the greatest, with two digits behind the point."""
    values = sorted(ratios)
    return f"{values[0]:.2f}", f"{values[-1]:.2f}"


def matches(figure: Figure, text: str) -> list[re.Match[str]]:
    """Return where a page gives the figure; spaces in its sentence stand for any space."""
    return list(re.finditer(figure.sentence.replace(" ", r"\s+"), text))


def disagreements(texts: Mapping[str, str]) -> list[str]:
    """Return where a page gives a figure other than its results file, and figures that no page gives."""
    wrong: list[str] = []
    for figure in figures():
        occurrences = [(name, match) for name, text in texts.items() for match in matches(figure, text)]
        wrong += [
            f"{name}: {' '.join(match.group().split())!r} should have {figure.values}"
            for name, match in occurrences
            if match.groups() != figure.values
        ]
        if not occurrences:
            wrong.append(f"no page has {figure.sentence!r}, which is {figure.values}")
    return wrong


def with_figures(text: str) -> str:
    """Return a page with its figures written anew."""
    for figure in figures():
        for match in reversed(matches(figure, text)):
            for group in range(len(figure.values), 0, -1):
                text = text[: match.start(group)] + figure.values[group - 1] + text[match.end(group) :]
    return text


# ---- the other numbers

_UNITS = r"us|ms|ns|s|min|x|%|[kMG]B|TFLOP/s|times|points"
_NUMBER = re.compile(
    rf"(?<![\w.#/-])[-+]?\d[\d,.]*(?: to \d[\d,.]*)?(?:\s?(?:{_UNITS})\b|%)|(?<![\w.#/-])\d{{1,3}}(?:,\d{{3}})+"
)
_SOURCE = re.compile(
    r"\w+\.(?:py|cu|cc|cpp|h|cuh|json|csv|npz|toml|md)\b|2026-\d\d-\d\d|"
    r"arXiv|`make bench`|\]\(#|(?i:table|paper)"
)
"""Scripts, results files, days of measurements, publications, and links to pages that name these."""


def other_numbers(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line, number and whether its section names a script, a results file or a day.

    Measured quantities in prose and in tables that nothing writes.
    """
    covered = [range(m.start(), m.end()) for m in re.finditer(r"<!-- (.+?) -->.*?<!-- end of \1 -->", text, re.DOTALL)]
    covered += [range(m.start(), m.end()) for m in re.finditer(r"^```.*?^```", text, re.DOTALL | re.MULTILINE)]
    covered += [range(m.start(), m.end()) for figure in figures() for m in matches(figure, text)]
    covered += [range(m.start(), m.end()) for m in re.finditer(r"`[^`\n]*`", text)]
    starts = [0, *(m.start() for m in re.finditer(r"^##? ", text, re.MULTILINE)), len(text)]
    for begin, end in itertools.pairwise(starts):
        sourced = _SOURCE.search(text, begin, end) is not None
        for match in _NUMBER.finditer(text, begin, end):
            if not any(match.start() in span for span in covered):
                yield text.count("\n", 0, match.start()) + 1, " ".join(match.group().split()), sourced


def main() -> int:
    """Check, write or list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write tables and figures anew")
    parser.add_argument("--list", action="store_true", help="list the other numbers; ! where no source is near")
    options = parser.parse_args()
    texts = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
    if options.list:
        for name, text in texts.items():
            for line, number, sourced in other_numbers(text):
                sys.stdout.write(f"{' ' if sourced else '!'} {name}:{line}: {number}\n")
        return 0
    rewrites = {name: with_figures(with_tables(text, TABLES.get(Path(name).stem, {}))) for name, text in texts.items()}
    wrong = disagreements(texts) + [
        f"{name}: a table is not up to date" for name in texts if texts[name] != rewrites[name]
    ]
    if options.write:
        for name in texts:
            (ROOT / name).write_text(rewrites[name], encoding="utf-8")
        wrong = disagreements(rewrites)
    sys.stdout.write("".join(f"{line}\n" for line in wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
