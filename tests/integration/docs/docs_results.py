"""Tables in Markdown pages that come from committed results files; `docs_figures` has the figures in sentences, and
`docs_numbers` the notation in which a page names the source of a number itself.

    python -m tests.integration.docs.docs_results              checks all pages
    python -m tests.integration.docs.docs_results --write      writes tables and figures again
    python -m tests.integration.docs.docs_results --list       lists measured numbers without a source

A table stands between ``<!-- NAME -->`` and ``<!-- end of NAME -->``. What ``docs_examples.py`` executes, and tables
between such marks that a script of ``tests/benchmarks`` writes or a test of their subject computes again, are not
listed.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from unittest import mock

from tests.gpu.measuring.chains import chain_summary as summary
from tests.gpu.measuring.models import measure_models, measure_starts
from tests.integration.docs import acs_results, bloom_results
from tests.integration.docs.docs_numbers import BENCHMARKS, ROOT, results

PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))


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
    """Return the table of the models of ``models.json``."""
    with mock.patch.object(sys, "path", [str(ROOT / "tests/gpu/measuring/models"), *sys.path]):
        return measure_models.table(results("models"))


def starts() -> list[str]:
    """Return the table of seconds until the first result."""
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
} | {
    "acs_models inception_v3 --graph --keep": "torchvision's Inception v3, 96 pixels, `--graph --keep`",
    "acs_models googlenet --graph --keep": "torchvision's GoogLeNet, 64 pixels, `--graph --keep`",
    "acs_models hetero --graph --keep": "torch_geometric's HeteroConv, six kinds of edges, `--graph --keep`",
    "acs_models clip --graph --keep": "CLIP of transformers, small, `--graph --keep`",
}


def acs_gains() -> dict[str, tuple[float, float]]:
    """Return microseconds of a step in stream order and over streams, for programs that ACS makes faster."""
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
    """Return the table of programs that ACS makes faster."""
    rows = [[name, f"{one:,.0f}", f"{two:,.0f}", f"{one / two:.2f}x"] for name, (one, two) in acs_gains().items()]
    return markdown(["program", "stream order", "over streams", "gain"], rows, left=1)


def acs_simulated() -> list[str]:
    """Return the table of captured programs whose step under ACS was simulated."""
    return markdown(acs_results.SIMULATED_HEAD, acs_results.simulated_rows(results("acs_simulated")), left=1)


def acs_eager() -> list[str]:
    """Return the table of programs that issue their launches themselves, under ACS."""
    return markdown(acs_results.EAGER_HEAD, acs_results.eager_rows(results("acs_eager")), left=1)


def acs_fastest() -> list[str]:
    """Return the table of the fastest steps of these programs, measured and predicted."""
    return markdown(acs_results.FASTEST_HEAD, acs_results.fastest_rows(results("acs_eager")), left=1)


def acs_runs() -> list[str]:
    """Return the table of programs that ran with delays and were checked."""
    return markdown(acs_results.RUNS_HEAD, acs_results.runs_rows(results("acs_runs")), left=1)


def acs_bounds() -> list[str]:
    """Return the table of what bounds the steps of programs in eager mode."""
    return markdown(acs_results.BOUNDS_HEAD, acs_results.bounds_rows(results("acs_bounds")), left=1)


def acs_ways() -> list[str]:
    """Return the table of programs that ran with delays as graphs and by workers."""
    return markdown(acs_results.WAYS_HEAD, acs_results.ways_rows(results("acs_runs")), left=2)


def bloom() -> list[str]:
    """Return the table of the program that finds its dependencies by filters."""
    return markdown(bloom_results.RANGES_HEAD, bloom_results.ranges_rows(results("bloom")))


DELAYED = {
    "synchronised": "Triton's kernels",
    "persistent": "the persistent kernel",
    "attention": "attention between products",
    "bloom": "blocks that declare ranges",
    "spawn": "launches from kernels",
}


def delayed() -> list[str]:
    """Return the table of runs with random delays by scheduler, with the number that differ from stream order."""
    totals: dict[tuple[str, str, str], list[int]] = {}
    for part in results("delayed")["runs"]:
        for row in part["rows"]:
            total = totals.setdefault((part["device"].split()[1], row["kind"], row["scheduler"]), [0, 0, 0])
            for at, number in enumerate((1, row["runs"], row["wrong"])):
                total[at] += number
    for case, row in results("attention")["right"].items():
        total = totals.setdefault(("H200", "attention", case.rsplit(", ", 1)[1]), [0, 0, 0])
        for at, number in enumerate((1, row["runs"], row["wrong"])):
            total[at] += number
    rows = [
        [DELAYED[kind], f"`{scheduler}`", device, cases, f"{runs:,}", wrong]
        for (device, kind, scheduler), (cases, runs, wrong) in totals.items()
        if (kind, scheduler) not in {("bloom", "stream"), ("spawn", "flat")}
    ]
    rows.sort(key=lambda row: (row[2], list(DELAYED.values()).index(row[0]), row[1]))
    return markdown(["cases", "scheduler or rule", "device", "number", "runs", "that differ"], rows)


def filters() -> list[str]:
    """Return the table of answers of the filters in instrumented kernels."""
    return markdown(bloom_results.KERNELS_HEAD, bloom_results.kernels_rows(results("filters")))


def filters_of_recordings() -> list[str]:
    """Return the table of answers of filters with the bits of recorded accesses."""
    return markdown(bloom_results.RECORDINGS_HEAD, bloom_results.recordings_rows(results("inserted", BENCHMARKS)))


def graph_of_filters() -> list[str]:
    """Return the table of graphs that follow from filters alone, beside the exact ones."""
    return markdown(bloom_results.GRAPH_HEAD, bloom_results.graph_rows(results("inserted", BENCHMARKS)))


def filters_by_patches() -> list[str]:
    """Return the table of answers of filters that patches filled in unmodified kernels."""
    head = ["program", *bloom_results.RECORDINGS_HEAD[1:]]
    return markdown(head, bloom_results.patched_rows(results("inserted")))


def cost_of_patches() -> list[str]:
    """Return the table of GPU times of programs whose patches fill filters."""
    return markdown(bloom_results.COST_HEAD, bloom_results.cost_rows(results("inserted")))


def steps_that_repeat() -> list[str]:
    """Return the table of steps from which the graphs of loops repeat."""
    return markdown(bloom_results.STEPS_HEAD, bloom_results.steps_rows(results("steps", BENCHMARKS)))


DEALT = ("persistent", "persistent-dynamic", "ccks", "ccks-ready")


SMS = 132
"""Of the H200: a cluster of one block on each."""


def dealers_table() -> list[str]:
    """Return the table of times of chains under schedulers that assign tiles at run time."""
    us = results("dealers")["us"]
    rows = [[name, *(f"{row[way]:.1f}" for way in ("persistent-stages", *DEALT))] for name, row in us.items()]
    return markdown(["chain", "stages one by one", *(f"`{way}`" for way in DEALT)], rows)


RULES = ("flat", "always", "threshold", "spawn", "warp")


def graphs_of_files() -> dict[tuple[str, str], list[Any]]:
    """Return the rows of programs that launch from kernels on graphs of files, by graph and program."""
    processes: dict[tuple[str, str], list[Any]] = {}
    for key, rows in results("spawn_graphs").items():
        if key.startswith("graph "):
            for row in rows[1:]:
                assert row["right"]
                graph, program = key.split(", ")[0].removeprefix("graph "), row["name"].removesuffix("-file")
                processes.setdefault((graph, program), []).append(row)
    return processes


def median_us(rows: Sequence[Any]) -> dict[str, float]:
    """Return the medians by rule over all repeats of all processes, and the best threshold's time."""
    us = {rule: statistics.median([us for row in rows for us in row["all"][f"{rule}_us"]]) for rule in RULES}
    return us | {"best": min(row["best_us"] for row in rows)}


def spawn_on_graphs() -> list[str]:
    """Return the times of programs that launch from kernels on graphs of files, medians over processes."""
    table = []
    for (graph, program), rows in graphs_of_files().items():
        us = median_us(rows)
        launched = [
            f"{statistics.median_high([n for row in rows for n in row['all'][f'{rule}_launched']]):,}"
            for rule in ("always", "spawn", "warp")
        ]
        best = min(rows, key=lambda row: row["best_us"])
        cells = [f"{us[rule]:,.0f}" for rule in RULES]
        cells.insert(3, f"{us['best']:,.0f} ({best['best_threshold']})")
        table.append([f"{program}, {graph}", *cells, " / ".join(launched)])
    head = ["program, graph", "flat", "always", "threshold 32", "best threshold", "SPAWN", "by warps"]
    return markdown([*head, "launched: always / SPAWN / warps"], table)


MANY = ("persistent-stages", "persistent", "persistent-dynamic", "ccks, depth 1", "ccks", "ccks, depth 3", "ccks-ready")


def by_tile_time() -> list[str]:
    """Return the times of chains of many tiles under schedulers that hand tiles out, by how long a tile takes."""
    rows = []
    for name, us in results("dealers")["many"].items():
        tiles = int(name.split()[0].replace(",", ""))
        rows.append([name, f"{us['persistent-stages'] * SMS / tiles:.1f}", *(f"{us[way]:.0f}" for way in MANY)])
    head = ["stages one by one", *(f"`{way}`" for way in MANY[1:])]
    return markdown(["chain", "us per tile", *head], rows)


def attention_table() -> list[str]:
    """Return the times of attention between its products under schedulers that hand tiles out."""
    us = results("attention")["us"]
    columns = {"PyTorch": "PyTorch in a graph", "graph": "`graph`", "cusync": "`cusync`"}
    columns |= {"persistent-stages": "stages one by one"} | {way: f"`{way}`" for way in DEALT}
    rows = [[name, *(f"{row[way]:.1f}" for way in columns)] for name, row in us.items()]
    return markdown(["chain", *columns.values()], rows)


def attention_alone() -> list[str]:
    """Return the times of attention as a stage of its own."""
    document = results("attention")
    rows = []
    for name, stages in document["stages"].items():
        torch, own = document["us"][name]["PyTorch, attention"], stages["attention"]
        rows.append([name, f"{torch:.1f}", f"{own:.1f}", f"{own / torch:.2f}"])
    return markdown(["attention alone", "PyTorch", "the persistent kernel", "ratio"], rows)


WAYS = {
    "host": "page-locked memory of the CPU, which blocks poll",
    "relay": "the same, polled by one block, which stores what is new into the GPU's memory",
    "copy": "the GPU's memory: one copy by a copy engine per batch (`cudaMemcpyAsync`, a stream of high priority)",
    "write": "the GPU's memory: one `cuStreamWriteValue64` per word",
    "batch": "the GPU's memory: one `cuStreamBatchMemOp` per batch",
}


def link_ways() -> list[str]:
    """Return the table of round trips over the link, by where answers go."""
    ways = {(row["way"], row["blocks"]): row for row in results("link_ways")["ways"]}
    rows = []
    for way, text in WAYS.items():
        trips = [f"{ways[way, blocks]['median_ns'] / 1e3:.1f}" for blocks in (1, 8, 32, 128)]
        rows.append([text, *trips, f"{ways[way, 128]['million_answers_per_s']:.1f}"])
    return markdown(["answers go to", "1 block", "8", "32", "128", "million answers per second, 128 blocks"], rows)


def deadlines() -> list[str]:
    """Return the table of when two programs that share the GPU end, by order."""
    orders = {
        "critical": "critical path",
        "deadline, depth 1": "1 tile",
        "deadline": "2 tiles",
        "deadline, depth 5": "5",
    }
    orders |= {"deadline, overwrite": "2, overwritten", "deadline, overwrite, depth 5": "5, overwritten"}
    rows = []
    for row in results("dealers")["deadlines"]:
        cells = [" / ".join(f"{us:.0f}" for us in (*row[order]["ends_us"], row[order]["whole_us"])) for order in orders]
        rows.append([row["program"], *cells])
    return markdown(["large program", *orders.values()], rows)


def experts() -> list[str]:
    """Return the table of times of layers of experts, by schedule."""
    ways = {"PyTorch, grouped products": "PyTorch"}
    ways |= {way: f"`{way}`" for way in ("graph", "persistent-stages", *DEALT)}
    rows = []
    for name, row in results("experts")["us"].items():
        counts = [str(count) for count in row["rows of experts"]]
        shown = [*counts[:4], "\N{HORIZONTAL ELLIPSIS}", *counts[-2:]] if len(counts) > 8 else counts
        times = (f"{row[way]:.0f}" if way in row else "" for way in ways)
        rows.append([name, ", ".join(shown), f"{row['tiles']} of {row['of at most']}", *times])
    return markdown(["layer", "rows of each expert", "tiles", *ways.values()], rows)


def exported_headers() -> list[str]:
    """Return the table of chains of plain CUDA C++ kernels with exported headers."""
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
    """Return the table of rounds with wrong results, by delay of a tile."""
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
    """Return the table of mutants of sound policies and the verifier's verdicts."""
    counts = results("mutants", BENCHMARKS)
    rows = [[text, *(f"{counts[key][c]:,}" for c in COUNTS), counts[key]["date"]] for key, text in MUTANTS.items()]
    rows.append(["all", *(f"{sum_of_mutants(c):,}" for c in COUNTS), ""])
    return markdown(["mutants of", *COUNTS.values(), "measured"], rows)


def sum_of_mutants(kind: str) -> int:
    """Return the number of mutants of a kind."""
    return sum(row[kind] for row in results("mutants", BENCHMARKS).values())


def held_out_recordings() -> list[str]:
    """Return the table of predictions from recordings of held-out programs."""
    rows = []
    for name, row in results("recorded")["held_out"].items():
        predicted, measured = ((row[f"{of}stream_us"], row[f"{of}policy_us"]) for of in ("predicted_", ""))
        pairs = [f"{one:.1f} to {two:.1f}" for one, two in (predicted, measured)]
        rows.append([name.replace("_", " "), *pairs, *(f"{1 - two / one:.1%}" for one, two in (predicted, measured))])
    return markdown(["held out", "predicted, us", "measured, us", "gain predicted", "measured"], rows)


def rules_of_sources() -> list[str]:
    """Return the table of rules of the simulated schedulers' sources, and the effect of each on simulated times."""
    head = ["scheduler", "rule", "source", "here", "source's rule changes the time by"]
    rows = []
    for row in results("worth", BENCHMARKS):
        changes = ", ".join("0" if change == 0 else f"{change:+.1f}" for change in row["worth"])
        rows.append([f"`{row['scheduler']}`", row["rule"], row["source"], row["here"], f"{changes}%"])
    return markdown(head, rows)


def five_programs() -> list[str]:
    """Return the table of programs from a recording to a policy that runs."""
    head = ["program", "stages of the policy", "PyTorch in a graph", "stream order, tileprof's kernels", "policy"]
    rows = []
    for row in results("five_programs")["rows"]:
        times = (f"{row[key]:.1f}" for key in ("pytorch", "stream", "policy"))
        gains = (f"{row[key]:.1%}" for key in ("over_stream", "over_pytorch"))
        rows.append([row["program"], row["stages"], *times, *gains])
    return markdown([*head, "over stream order", "over PyTorch"], rows)


ACCESSES = {
    "gpt2_medium": "GPT-2 medium",
    "lstm": "LSTM",
    "gemm_bf16": "bf16 product of 4096",
    "convolutions": "four convolutions",
    "gemm_fp32": "fp32 product",
}


def accesses_pass() -> list[str]:
    """Return the table of GPU times of the CUDA recorder's accesses pass."""
    rows = []
    for name, text in ACCESSES.items():
        modes = results("overhead")["gpu_time"][name]
        plain = modes["plain"]["ms"]
        others = (modes[mode]["ms"] for mode in ("accesses", "patched", "floor"))
        rows.append([text, f"{plain:.2f} ms", *(f"{ms:.2f} ms ({ms / plain:.1f}x)" for ms in others)])
    return markdown(["program", "plain", "accesses pass", "all patched", "empty callbacks"], rows)


def passes() -> list[str]:
    """Return the table of GPU times of the CUDA recorder's passes."""
    modes = {"plain": "GPU time plain", "floor": "callbacks that do nothing", "blocks": "`blocks` pass"}
    modes |= {"accesses": "`accesses` pass", "memcheck": "memcheck"}
    times = results("cuda")["gpu_time"]
    programs = ("gpt2_medium", "lstm", "convolutions", "gemm_fp32", "gemm_bf16")
    rows = []
    for name in programs:
        title = {"gpt2_medium": "GPT-2 medium, bf16"}.get(name, ACCESSES[name])
        rows.append([title, *(f"{times[name][mode]['ms']:.2f} ms" for mode in modes)])
    return markdown(["program", *modes.values()], rows)


WRITTEN = {
    "convnext": "ConvNeXt-T of timm",
    "resnet50_step": "a training step of ResNet-50, bf16, channels last",
    "qwen3_moe": "two layers of Qwen3-MoE",
    "unet": "a U-Net, fp16, NCHW",
}


def bytes_written() -> list[str]:
    """Return the table of how the CUDA recorder knows the bytes that programs write."""
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
        "delayed ways": acs_ways,
        "bounds": acs_bounds,
    },
    "bloom": {
        "found by filters": bloom,
        "filters in kernels": filters,
        "filters by patches": filters_by_patches,
        "graph of filters": graph_of_filters,
        "cost of patches": cost_of_patches,
        "filters of recordings": filters_of_recordings,
        "steps that repeat": steps_that_repeat,
    },
    "ccks": {
        "dealt": dealers_table,
        "by tile time": by_tile_time,
        "attention": attention_table,
        "attention alone": attention_alone,
        "ways over the link": link_ways,
        "deadlines": deadlines,
        "experts": experts,
    },
    "spawn": {"graphs of files": spawn_on_graphs},
    "exported-headers": {"kernels with exported headers": exported_headers},
    "cuda-recorder": {"bytes written": bytes_written, "accesses pass": accesses_pass},
    "chain-times": {"chains": chains, "two streams by chain": streams_by_chain},
    "measured": {"two streams": streams_by_kind, "delayed": delayed},
    "record": {"passes": passes},
    "run": {"five programs": five_programs},
    "simulator-accuracy": {"held-out recordings": held_out_recordings, "rules of sources": rules_of_sources},
    "verify": {"halo": halo, "mutants": mutants},
    "whole-models": {"whole models": whole_models, "starts": starts},
}


def marks(name: str) -> tuple[str, str]:
    """Return the lines before and after a table."""
    return f"<!-- {name} -->", f"<!-- end of {name} -->"


def with_tables(text: str, tables: Mapping[str, Callable[[], list[str]]]) -> str:
    """Return a page with its tables renewed."""
    for name, rewrites in tables.items():
        begin, end = marks(name)
        head, rest = text.split(begin + "\n")
        text = f"{head}{begin}\n" + "\n".join(rewrites()) + f"\n{end}" + rest.split(end, maxsplit=1)[1]
    return text


def main() -> int:
    """Check, write or list; see `docs_figures.run`."""
    from tests.integration.docs import docs_figures

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write tables and figures anew")
    parser.add_argument("--list", action="store_true", help="list measured numbers without a source")
    options = parser.parse_args()
    return docs_figures.run(write=options.write, other=options.list)


if __name__ == "__main__":
    sys.exit(main())
