"""Mutants of policies that the verifier must object to: over random graphs, of what residency relies on, and over
recorded programs.

    python tests/benchmarks/policies/bench_mutants.py KIND FIRST SLICES [FILE]

KIND is ``random``, ``residency`` or ``programs``. A slice is `MUTANTS` mutants drawn from a seed, its number; its
counts are appended to FILE as one line of JSON as soon as it has ended, so that a run continues where another was
stopped. Slices that FILE has are not run again. Without KIND: `RESULTS` is written again from FILE, which
``docs/verify.md`` is held to by a test.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from tileprof.analysis import build_graph
from tileprof.analysis.dependencies.blocks import merge_blocks
from tileprof.analysis.dependencies.relations import graph_of_relations, relation
from tileprof.policy.format import PolicyError
from tileprof.policy.format.tile_numbers import grid_of, tile_numbers
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.verification.overtaken import overtaken_launches
from tileprof.trace import load

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, tileprof

sys.path.insert(0, str(ROOT))

from tests.support.policies.mutants import Tally, exact_policy, mutants
from tests.support.policies.random_graphs import random_graph, residency_tally

RESULTS = ROOT / "tests/benchmarks/results" / "mutants.json"
FILE = Path("mutants.jsonl")

MUTANTS = 1000
"""In a slice."""
OF_A_POLICY = 90
SYNTHESISED = 0.03
"""Share of residency's policies that are not exact ones; making them takes most of the time of the tests, which have
more.
"""

PROGRAMS = ("gpt2", "bert", "resnet38", "vgg19", "moe", "lstm", "inception")
MOST_TILES = 200
"""Tiles of a stage: the oracle holds back one tile after the other and runs everything."""
PAIRS, OF_A_PAIR = 40, 27


def of_random_graphs(seed):
    dice, tally = random.Random(f"random {seed}"), Tally()
    while tally.total < MUTANTS:
        graph = random_graph(dice)
        launches = range(len(graph.launches))
        policy = synthesise(graph, launches)
        if dice.random() < 0.5:
            policy = exact_policy(graph, policy.stages, launches, renamed=True)
        for kind, mutant in mutants(policy, dice, OF_A_POLICY):
            tally.add(kind, mutant, graph)
    return tally


def of_residency(seed):
    return residency_tally(random.Random(f"residency {seed}"), MUTANTS, SYNTHESISED)


def of_program(seed):
    """Mutants of pairs of launches of a recorded program; the seed is its place in `PROGRAMS`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.tileprof"
        tileprof("record", "-o", path, "--", sys.executable, "-m", f"tileprof.examples.{PROGRAMS[seed]}")
        return of_pairs(build_graph(load(path)))


def of_pairs(graph):
    dice, tally = random.Random(2), Tally()
    pairs = graph.pairs[~graph.pairs["reuse_only"]]
    tiles = graph.launches["tiles"].to_numpy()
    small = [
        (int(p), int(c))
        for p, c in zip(pairs["producer"], pairs["consumer"], strict=True)
        if max(tiles[p], tiles[c]) <= MOST_TILES
    ]
    for pair in dice.sample(small, min(PAIRS, len(small))):
        try:
            for launch in pair:
                tile_numbers(graph, launch)
        except PolicyError:
            continue
        if overtaken_launches(graph, pair):
            continue
        part = part_of(graph, pair)
        policy = synthesise(graph, pair)
        for each in (policy, exact_policy(graph, policy.stages, pair, renamed=True)):
            for kind, mutant in mutants(each, dice, OF_A_PAIR):
                tally.add(kind, mutant, part)
    return tally


def part_of(graph, pair):
    """The graph of two launches alone, tiles in the order of their numbers."""
    producer, consumer = pair
    links = graph.links[
        (graph.links["producer"] == producer) & (graph.links["consumer"] == consumer) & ~graph.links["reuse"]
    ]
    parent, child, _ = merge_blocks([graph.blocks[b] for b in links["block"]]).edges()
    numbers = [tile_numbers(graph, launch) for launch in pair]
    block = relation(numbers[0][parent], numbers[1][child], len(numbers[1]))
    return graph_of_relations([grid_of(graph, launch) for launch in pair], {(0, 1): block})


SLICES = {"random": of_random_graphs, "residency": of_residency, "programs": of_program}


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def measure(kind, first, slices, file):
    present = {line["seed"] for line in lines_of(file) if line["kind"] == kind}
    for seed in range(first, first + slices):
        if seed in present:
            continue
        counts = vars(SLICES[kind](seed))
        counts["made"], counts["caught"] = counts.pop("total"), counts.pop("catches")
        escapes = [(name, str(policy)) for name, policy in counts.pop("escapes")]
        line = {"kind": kind, "seed": seed, "date": f"{datetime.now(UTC):%Y-%m-%d}", "slipped": escapes, **counts}
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")
        if escapes:
            sys.exit(f"{kind} {seed}: harmful and not refused: {escapes[0]}")


def sum_of_lines(lines):
    """Counts of all slices, by kind of graph."""
    matches = {}
    for kind in SLICES:
        total = Counter()
        rows = [line for line in lines if line["kind"] == kind]
        for line in rows:
            total["made"] += line["made"]
            total["harmful"] += line["caught"] + len(line["slipped"])
            total["accepted although harmful"] += len(line["slipped"])
            total["refused although harmless"] += line["cautious"]
            total["harmless"] += line["harmless"] + line["cautious"]
            total["refused by rule"] += line["by_rule"]
        if rows:
            matches[kind] = {"date": max(line["date"] for line in rows), **total}
    return matches


NAMES = {
    "random": "policies over random graphs",
    "residency": "what residency relies on",
    "programs": "policies of GPT-2, BERT, ResNet-38, VGG-19, a mixture of experts, an LSTM and Inception",
}
COLUMNS = (
    "made", "harmful", "accepted although harmful", "harmless", "refused although harmless", "refused by rule",
)  # fmt: skip


def table(results):
    """The counts as Markdown; `python -m tests.integration.docs.docs_results --write` writes them into the pages."""
    rows = [["mutants of", *COLUMNS, "until"], ["---"] * (len(COLUMNS) + 2)]
    rows += [[NAMES[k], *(f"{v.get(c, 0):,}" for c in COLUMNS), v["date"]] for k, v in results.items()]
    rows.append(["all", *(f"{sum(v.get(c, 0) for v in results.values()):,}" for c in COLUMNS), ""])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main():
    if len(sys.argv) <= 2:
        lines = lines_of(Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(sum_of_lines(lines), indent=1) + "\n")
        print(table(sum_of_lines(lines)))
    else:
        kind, first, slices, *file = sys.argv[1:]
        measure(kind, int(first), int(slices), Path(file[0]) if file else FILE)


if __name__ == "__main__":
    main()
