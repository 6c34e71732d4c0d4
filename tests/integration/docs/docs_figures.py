"""Figures in sentences of Markdown pages, compared with results files; `docs_numbers` reads those that a page names."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.gpu.measuring.chains import chain_summary as summary
from tests.integration.docs import acs_results
from tests.integration.docs.docs_numbers import BENCHMARKS, ROOT, Figure, results, sections, unexplained
from tests.integration.docs.docs_results import (
    DEALT,
    PAGES,
    STREAMS,
    TABLES,
    acs_gains,
    graphs_of_files,
    mean,
    median_us,
    streams,
    sum_of_mutants,
    with_tables,
)

WORDS = dict(enumerate(("six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"), 6))


def figures() -> list[Figure]:
    """Return the figures of all pages with the values that results files give them."""
    return [
        *_of_mutants(),
        *_of_chains(),
        *_of_models(),
        *_of_programs(),
        *_of_acs(),
        *_of_dealing(),
        *_of_attention(),
        *_of_five_programs(),
        *_of_cusync(),
        *_of_llama(),
        *_of_graphs(),
    ]


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
    """Return stream order over synchronised for chains of the persistent kernel whose names contain one of the
    words.
    """
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
    least, most = (f"{100 * (ends(pairs) - 1):.0f}" for ends in (min, max))
    whole_pairs = counts[0], few[0], least.removeprefix("-"), most, f"{mean(over_pytorch()):.1f}"
    sentence = r"(\d+) sizes, H200 \| (\d+)% faster than stream order \(mean; (\d+) to (\d+)%\), ([\d.]+)x as fast"
    yield Figure(sentence, whole_pairs)
    sentence = r"(\d+) sizes \| (\d+)% faster than stream order \(([-\d.]+) to ([+\d.]+)%\)"
    yield Figure(sentence, (counts[1], few[1], *ends))
    whole = f"{mean(pairs):.3f}", counts[0], f"{mean(resnet):.2f}", f"{mean(vgg):.2f}"
    yield Figure(r"([\d.]+)x(?: in the mean)? \((\d+) sizes; ResNet-38 ([\d.]+)x, VGG-19 ([\d.]+)x\)", whole)
    yield Figure(r"MLPs ([\d.]+)x \((\d+) sizes\)", (f"{mean(products):.3f}", counts[1]))
    yield Figure(r"Convolution pairs gain (\d+)%", few[:1])
    predicted = [row for row in results("runtime")["rows"] if row["row"] == "persistent" and "predicted_gain" in row]
    near = sum(abs(row["predicted_gain"] - row["gain"]) <= 0.05 for row in predicted)
    yield from _of_waits()
    yield Figure(r"(\d+) of the (\d+) (?:gains|rows of)", (str(near), str(len(predicted))))


def ratios_of_chains(word: str, one: str, other: str) -> dict[str, float]:
    """Return the times of one row over another, for chains of the persistent kernel whose names contain a word."""
    chains = summary.by_chain(results("runtime")["rows"])
    return {
        name: rows[one]["us"] / rows[other]["us"]
        for name, rows in chains.items()
        if "persistent" in rows and word in name
    }


def _of_waits() -> Iterator[Figure]:
    stages, kernel = "persistent-stages", "persistent"
    steps = ((stages, "persistent-pdl"), ("persistent-pdl", kernel), (stages, "persistent-unsynchronised"))
    pairs, products = (
        [mean(ratios_of_chains(word, *step).values()) for step in steps] for word in ("convolutions", "MLP")
    )
    sentence = r"gains (\d+)%, and waits of tiles in one launch add (\d+)%. Without any waits the gain would be (\d+)%"
    yield Figure(sentence, tuple(f"{100 * (ratio - 1):.0f}" for ratio in pairs))
    own = [ratios_of_chains(word, stages, kernel).values() for word in ("convolutions", "MLP")]
    yield Figure(r"Products gain (\d+)%, which", (f"{100 * (mean(own[1]) - 1):.0f}",))
    yield Figure(r"PDL alone gains (\d+)%", (f"{100 * (products[0] - 1):.0f}",))
    yield Figure(r"best ([\d.]+)x, least ([\d.]+)x", (f"{max(own[0]):.2f}", f"{min(own[0]):.3f}"))
    least = f"{min(own[1]):.3f}", f"{products[2]:.3f}"
    yield Figure(r"sizes\), least ([\d.]+)x. Without any wait it would be ([\d.]+)x", least)
    yield Figure(r"no waits at all would make ([\d.]+)x", least[1:])
    beside = {
        name: (int(re.findall(r"(\d+) tokens?", name)[0]), ratio)
        for name, ratio in ratios_of_chains("MLP", "PyTorch in a graph", kernel).items()
    }
    few = [ratio for tokens, ratio in beside.values() if tokens <= 128]
    yield Figure(r"up to 128 tokens are ([\d.]+)x to ([\d.]+)x as fast", ends(few))
    many = [ratio for tokens, ratio in beside.values() if tokens >= 256]
    cells = f"{sum(ratio >= 1 for ratio in many)}", f"{len(many)}", f"{mean(many):.2f}", f"{min(many):.2f}"
    sentence = r"2048 tokens (\d+) of (\d+), ([\d.]+)x in the mean, GPT-3 at 256 tokens ([\d.]+)x"
    yield Figure(sentence, cells)


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
    """Return the share of pairs of launches in either graph that both graphs have with the same pattern."""
    return sum(row["same_pattern"] for row in rows) / sum(sum(row["pairs"]) - row["both"] for row in rows)


def _of_programs() -> Iterator[Figure]:
    words = dict(enumerate(("six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"), 6))
    users, held_out = (results(name, BENCHMARKS) for name in ("clients", "held_out_seventh"))
    middle = median(row["share"] for row in held_out)
    cells = (f"{share_of_pairs(users):.0%}", words.get(len(users), str(len(users))), f"{share_of_pairs(held_out):.0%}")
    sentence = (
        r"the same in (\d+%) over (\w+) programs of users, in (\d+%) over (\w+) that no rule was made for "
        r"\(median (\d+%)\)"
    )
    yield Figure(sentence, (*cells, words.get(len(held_out), str(len(held_out))), f"{middle:.0%}"))


def _of_acs() -> Iterator[Figure]:
    ratios = {name: one / two for name, (one, two) in acs_gains().items()}
    captured = [ratio for name, ratio in ratios.items() if "islands" not in name]
    yield Figure(r"13 captured programs: ([\d.]+)x as fast", (f"{mean(captured):.1f}",))
    six = captured[:6]
    cells = f"{mean(six):.2f}", WORDS[len(captured)], f"{mean(captured):.2f}"
    yield Figure(r"first six captured programs gain ([\d.]+)x and all (\w+) ([\d.]+)x", cells)
    cells = f"{mean(captured):.2f}", f"{max(captured):.2f}"
    yield Figure(r"([\d.]+)x in the geometric mean of thirteen here, ([\d.]+)x at best", cells)
    errors = [abs(row["acs"] / row["acs_us"] - 1) for row in results("acs_simulated")["rows"]]
    yield Figure(
        r"(\d+) of (\d+) programs are within 10%, the other", (f"{sum(e <= 0.1 for e in errors)}", f"{len(errors)}")
    )
    yield from _of_eager()
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
    chains = results("dealers")["us"]
    us = [row for name, row in chains.items() if not name.startswith("ResNet-18")]
    for sentence, way, other in (
        (r"`ccks` takes ([\d.]+) to ([\d.]+) times as long as `persistent-dynamic`", "ccks", "persistent-dynamic"),
        (r"`ccks` takes ([\d.]+) to ([\d.]+) times as long as static lists", "ccks", "persistent"),
    ):
        yield Figure(sentence, ends(row[way] / row[other] for row in us))
    yield from _of_resnet18(chains)
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


def _of_resnet18(chains: Mapping[str, Mapping[str, float]]) -> Iterator[Figure]:
    one, eight = (
        [row for name, row in chains.items() if name.startswith("ResNet-18") and name.endswith(images)]
        for images in ("1 image", "8 images")
    )
    for sentence, rows, way, other in (
        (r"static lists take ([\d.]+) to ([\d.]+) of", one + eight, "persistent", "persistent-stages"),
        (r"the queue ([\d.]+) to ([\d.]+) times as long as lists", one + eight, "persistent-dynamic", "persistent"),
        (r"`ccks` takes as long as the queue with one image \(([\d.]+) to ([\d.]+)", one, "ccks", "persistent-dynamic"),
        (r"and ([\d.]+) to ([\d.]+) times with eight", eight, "ccks", "persistent-dynamic"),
    ):
        yield Figure(sentence, ends(row[way] / row[other] for row in rows))


def _of_attention() -> Iterator[Figure]:
    """Yield the figures of attention between its products under schedulers that hand tiles out."""
    us, stages = results("attention")["us"], results("attention")["stages"]
    pairs = (
        (r"`persistent-dynamic` takes ([\d.]+) to ([\d.]+) times as long as they", "persistent-dynamic", "persistent"),
        (r"as they do and `ccks` ([\d.]+) to ([\d.]+) times", "ccks", "persistent"),
        (r"kernels, `persistent` takes ([\d.]+) to ([\d.]+) times as long", "persistent", "PyTorch"),
        (r"times as long, and `ccks` ([\d.]+) to ([\d.]+) times", "ccks", "PyTorch"),
    )
    for sentence, way, other in pairs:
        yield Figure(sentence, ends(row[way] / row[other] for row in us.values()))
    *shorter, longest = (stages[name]["attention"] / row["PyTorch, attention"] for name, row in us.items())
    sentence = r"Alone, attention takes ([\d.]+) to ([\d.]+) times as long as PyTorch's kernels, and ([\d.]+) times in"
    yield Figure(sentence, (*ends(shorter), f"{longest:.2f}"))


def _of_five_programs() -> Iterator[Figure]:
    gains = []
    for key in ("over_stream", "over_pytorch"):
        percents = sorted(-100 * row[key] for row in results("five_programs")["rows"])
        gains += [f"{percents[0]:.0f}", f"{percents[-1]:.0f}"]
    sentence = r"(\d+) to (\d+)% faster than stream order, (\d+) to (\d+)% faster than PyTorch in a CUDA graph"
    yield Figure(sentence, tuple(gains))


def _of_cusync() -> Iterator[Figure]:
    rows = streams()
    cells = []
    for way in STREAMS[1:]:
        for word in ("MLP", "convolutions", "attention"):
            gains = [us["graph"] / us[way] for chain, us in rows.items() if word in chain]
            cells.append(f"{mean(gains):.3f}")
    sentence = r"MLPs ([\d.]+)x, pairs of convolutions ([\d.]+)x, attention blocks ([\d.]+)x with programmatic launch; "
    yield Figure(sentence + r"([\d.]+)x, ([\d.]+)x and ([\d.]+)x with two streams", tuple(cells))
    gains = []
    for row in results("exported_headers")["rows"].values():
        (_, stream), *others = row["schedules"].items()
        gains += [1 - each["us"] / stream["us"] for name, each in others if "wrong" not in name]
    sentence = r"from ([-+\d]+)% to ([-+\d]+)% for (\w+) chains"
    words = WORDS[len(results("exported_headers")["rows"])]
    yield Figure(sentence, (f"{100 * min(gains):+.0f}", f"{100 * max(gains):+.0f}", words))


def _of_llama() -> Iterator[Figure]:
    row = results("llama70b", BENCHMARKS)
    launches, tiles, edges = f"{row['launches']:,}", f"{row['million_tiles']}", f"{row['billion_edges']}"
    report = f"{row['report_s']}", f"{row['report_gb']}"
    yield Figure(r"CPU cores: ([\d,]+) launches, (\d+) million tiles", (launches, f"{row['million_tiles']:.0f}"))
    yield Figure(r"recorded in (\d+) s, analysed in (\d+) s", (f"{row['record_s']:.0f}", f"{row['report_s']:.0f}"))
    sentence = r"([\d,]+) launches, ([\d.]+) million tiles, ([\d.]+) billion tile edges \(`bench_llama70b"
    yield Figure(sentence, (launches, tiles, edges))
    sentence = r"recorded in ([\d.]+) s with ([\d.]+) GB; analysed and reported in ([\d.]+) s with ([\d.]+) GB; trace"
    yield Figure(
        sentence + r" ([\d.]+) MB", (f"{row['record_s']}", f"{row['record_gb']}", *report, f"{row['trace_mb']}")
    )
    yield Figure(r"has ([\d.]+) million tiles with ([\d.]+) billion tile edges", (tiles, edges))
    sentence = r"80 layers and ([\d.]+) million tiles at 2048 tokens; its trace is ([\d.]+) MB"
    yield Figure(sentence, (tiles, f"{row['trace_mb']}"))
    yield Figure(
        r"The ([\d.]+) billion tile edges of LLaMA-2-70B take ([\d.]+) GB and ([\d.]+) s", (edges, *report[::-1])
    )
    sentence = r"\(([\d.]+) million tiles, ([\d.]+) billion tile edges\): ([\d.]+) s and ([\d.]+) GB"
    yield Figure(sentence, (tiles, edges, *report))


def _of_graphs() -> Iterator[Figure]:
    us = [median_us(rows) for rows in graphs_of_files().values()]
    cells = (f"{mean(row['flat'] / row[rule] for row in us):.1f}" for rule in ("spawn", "warp", "best"))
    sentence = (
        r"SPAWN is ([\d.]+)x and \*by warps\* ([\d.]+)x as fast as flat, and the best threshold, which has to be "
    )
    yield Figure(sentence + r"searched for each of them, ([\d.]+)x", tuple(cells))


def ends(ratios: Iterable[float]) -> tuple[str, str]:
    """Return the smallest and the largest, with two decimals."""
    values = sorted(ratios)
    return f"{values[0]:.2f}", f"{values[-1]:.2f}"


def disagreements(texts: Mapping[str, str]) -> list[str]:
    """Return where a page gives another value than the results file, and figures that no page gives."""
    wrong: list[str] = []
    for figure in figures():
        occurrences = [(name, match) for name, text in texts.items() for match in figure.matches(text)]
        wrong += _differences(figure, occurrences)
        if not occurrences:
            wrong.append(f"no page has {figure.sentence!r}, which is {figure.values}")
    for name, text in texts.items():
        for section in sections(text):
            for figure in section.figures:
                occurrences = [(name, match) for match in figure.matches(text, section.begin, section.end)]
                wrong += _differences(figure, occurrences)
                if not occurrences:
                    wrong.append(f"{name}: the section of its comment has no {figure.sentence!r}, {figure.values}")
    return wrong


def _differences(figure: Figure, occurrences: Iterable[tuple[str, re.Match[str]]]) -> list[str]:
    return [
        f"{name}: {' '.join(match.group().split())!r} should have {figure.values}"
        for name, match in occurrences
        if match.groups() != figure.values
    ]


def with_figures(text: str) -> str:
    """Return a page with its figures renewed."""
    for figure in figures():
        text = _renewed(text, figure, figure.matches(text))
    for section in reversed(list(sections(text))):
        part = text[section.begin : section.end]
        for figure in section.figures:
            part = _renewed(part, figure, figure.matches(part))
        text = text[: section.begin] + part + text[section.end :]
    return text


def _renewed(text: str, figure: Figure, occurrences: Sequence[re.Match[str]]) -> str:
    for match in reversed(occurrences):
        for group in range(len(figure.values), 0, -1):
            text = text[: match.start(group)] + figure.values[group - 1] + text[match.end(group) :]
    return text


def run(*, write: bool, other: bool) -> int:
    """Check all pages, or renew their tables and figures, or list the other numbers. Return the exit code."""
    texts = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
    if other:
        for name, text in texts.items():
            for line, number in unexplained(text, figures()):
                sys.stdout.write(f"{name}:{line}: {number}\n")
        return 0
    rewrites = {name: with_figures(with_tables(text, TABLES.get(Path(name).stem, {}))) for name, text in texts.items()}
    wrong = disagreements(texts) + [
        f"{name}: a table is not up to date" for name in texts if texts[name] != rewrites[name]
    ]
    if write:
        for name in texts:
            (ROOT / name).write_text(rewrites[name], encoding="utf-8")
        wrong = disagreements(rewrites)
    sys.stdout.write("".join(f"{line}\n" for line in wrong))
    return int(bool(wrong))
