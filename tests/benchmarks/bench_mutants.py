"""Mutants of synthesised policies that the verifier must object to: over random graphs, and over recorded programs.

python tests/benchmarks/bench_mutants.py [MUTANTS OF RANDOM GRAPHS, default 22000] [MUTANTS OF RESIDENCY, default 10000]
"""

import random
import sys
import tempfile
from pathlib import Path

from measuring import ROOT, header, tileprof

from tileprof.analysis import build_graph
from tileprof.analysis.blocks import merge_blocks
from tileprof.analysis.relations import graph_of_relations, relation
from tileprof.policy.format import PolicyError
from tileprof.policy.format.tile_numbers import grid_of, tile_numbers
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.verification.overtaken import overtaken_launches
from tileprof.trace import load

sys.path[:0] = [str(ROOT), str(ROOT / "tests/unit/policy")]

from mutants import Tally, exact_policy, mutants  # noqa: E402 (the tests' folder is on the path from here on)
from test_mutants import EACH, random_graph, residency_tally  # noqa: E402 (likewise)

PROGRAMS = ("gpt2", "bert", "resnet38", "vgg19")
MOST_TILES = 200
"""Of a stage: the oracle holds back one tile after the other and runs everything."""

PAIRS, OF_A_PAIR = 40, 27


def of_random_graphs(count):
    dice, tally = random.Random(1), Tally()
    while tally.made < count:
        graph = random_graph(dice)
        launches = range(len(graph.launches))
        policy = synthesise(graph, launches)
        if dice.random() < 0.5:
            policy = exact_policy(graph, policy.stages, launches, renamed=True)
        for kind, changed in mutants(policy, dice, EACH):
            tally.add(kind, changed, graph)
    return tally


def of_program(name, folder):
    path = Path(folder) / f"{name}.tileprof"
    tileprof("record", "-o", path, "--", sys.executable, "-m", f"tileprof.examples.{name}")
    graph = build_graph(load(path))
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
            for kind, changed in mutants(each, dice, OF_A_PAIR):
                tally.add(kind, changed, part)
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


def main():
    header("Mutants of synthesised policies: does the verifier object?")
    tally = of_random_graphs(int(sys.argv[1]) if len(sys.argv) > 1 else 22_000)
    print(f"random graphs: {tally}", flush=True)
    slipped = len(tally.slipped)
    tally = residency_tally(random.Random(3), int(sys.argv[2]) if len(sys.argv) > 2 else 10_000)
    print(f"residency: {tally}", flush=True)
    slipped += len(tally.slipped)
    with tempfile.TemporaryDirectory() as folder:
        for name in PROGRAMS:
            tally = of_program(name, folder)
            slipped += len(tally.slipped)
            print(f"{name}: {tally}", flush=True)
    sys.exit(1 if slipped else 0)


if __name__ == "__main__":
    main()
