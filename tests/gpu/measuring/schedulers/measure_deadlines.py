"""Two programs in one persistent kernel on a GPU, one of them urgent: when it ends by each order of the co-pilot.

python tests/gpu/measuring/schedulers/measure_deadlines.py OUT.json [--compile] [--right 1000] [--held-out]

``--compile``: only build, without a GPU; ``--right``: as many replays of each pair with random delays of up to 20 us,
with commands that are overwritten. ``--held-out``: the pairs of `HELD_OUT` alone; no time is printed.

A large chain of products and a small urgent one are one plan (`Chain.beside`). *ends* is the co-pilot's own time from a
run's first completion to the last of each program, mean over replays; *whole* is the time of a replay. Both are medians
of `ROUNDS` in which pairs and orders take turns; ``rounds`` has each. *stage_us* is each stage's time alone. Results
are compared with stream order bit by bit.
"""

import argparse
import json
import math
import os
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from measure_dealers import DELAY_NS, SMS, TIMEOUT_NS, stacked, wrong

from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.copilot.copilot_build import compiled as compiled_pilot
from tileprof.runtime.measuring import timing
from tileprof.runtime.measuring.cases import gelu_mlp
from tileprof.runtime.persistent.cost import clusters_on
from tileprof.runtime.persistent.dealing import Dealer
from tileprof.runtime.persistent.persistent_build import compiled
from tileprof.runtime.persistent.source import Options
from tileprof.runtime.persistent.task_lists import plan_of, plans_by_stage
from tileprof.runtime.persistent.tile_choice import tiled
from tileprof.runtime.policy_on_gpu import GpuPipeline

REPLAYS, ROUNDS, LAUNCHES = 200, 3, 8
URGENT = gelu_mlp(64, (64, 64), (64, 64), 768, 3072)
TWO = stacked(64, 768, 3072, 2)
PAIRS = {
    "GPT-3 MLP TP8, 512 tokens": gelu_mlp(512, (128, 128), (128, 128)).beside(URGENT),
    "GPT-2 MLP, 2,048 tokens": gelu_mlp(2048, (128, 128), (128, 128), 768, 3072).beside(URGENT),
    "GPT-2 MLP, 16,384 tokens": gelu_mlp(16384, (128, 128), (128, 128), 768, 3072).beside(TWO),
    "GPT-3 MLP TP8, 4,096 tokens": gelu_mlp(4096, (128, 128), (128, 128)).beside(TWO),
    "MLP of 1,024 and 4,096, 8,192 tokens": gelu_mlp(8192, (128, 128), (128, 128), 1024, 4096).beside(URGENT),
    "MLP of 2,048 and 8,192, 2,048 tokens": gelu_mlp(2048, (128, 128), (128, 128), 2048, 8192).beside(TWO),
}
WIDTHS = (768, 3072), (1024, 4096), (1536, 6144), (2048, 8192), (12288, 6144)
TOKENS = 512, 1024, 2048, 4096, 8192
SMALL = {1: URGENT, 2: TWO, 3: stacked(64, 768, 3072, 3)}
"""By their number of MLPs."""
SEED = 20261128


def drawn(count, seed):
    """Pairs of a large MLP and small ones that are not in `PAIRS`, drawn."""
    draw, measured_pairs = random.Random(seed), [pair.operators for pair in PAIRS.values()]
    pairs = {}
    while len(pairs) < count:
        (width, inner), tokens, small = draw.choice(WIDTHS), draw.choice(TOKENS), draw.choice([*SMALL])
        pair = gelu_mlp(tokens, (128, 128), (128, 128), width, inner).beside(SMALL[small])
        if pair.operators not in measured_pairs:
            pairs[f"MLP of {width:,} and {inner:,}, {tokens:,} tokens, beside {small}"] = pair
    return pairs


HELD_OUT = drawn(3, SEED)
"""Fixed on 2026-11-28 before any of their times was measured. What is measured of them goes to a file of its own, and
is not printed; `bench_twins.py --held-out` alone reads it, once the simulator is final.
"""
DEADLINE = Choices(order="deadline", deadlines_us=(math.inf, 40.0), speculate=False)
ORDERS = {
    "critical": Choices(speculate=False),
    "deadline": DEADLINE,
    **{f"deadline, depth {depth}": replace(DEADLINE, depth=depth) for depth in (1, 5)},
    "deadline, overwrite": replace(DEADLINE, overwrite=True),
    "deadline, overwrite, depth 5": replace(DEADLINE, depth=5, overwrite=True),
    "deadline, ahead": replace(DEADLINE, speculate=True),
    "deadline, ahead, overwrite": replace(DEADLINE, speculate=True, overwrite=True),
}


def cases(pairs):
    return {name: tiled(pair, clusters_on(SMS))[0] for name, pair in pairs.items()}


def compile_all(chains, right):
    """Compile every kernel and co-pilot of a run, several at a time."""
    works = []
    for chain in chains.values():
        policy = chain.policy()
        whole = plan_of(policy, chain, clusters=clusters_on(SMS), cuts=False)
        cut = plan_of(policy, chain, clusters=clusters_on(SMS))
        stages = plans_by_stage(cut, clusters_on(SMS)(cut.split))
        works += [partial(compiled, part, Options(programmatic=False)) for part in stages]
        works += [partial(compiled, whole, Options(dealer=Dealer.PILOT, claims=claims)) for claims in (False, True)]
        works += [partial(compiled_pilot, whole, choices) for choices in ORDERS.values()]
        if right:
            delayed = Options(dealer=Dealer.PILOT, claims=True, delay_ns=DELAY_NS, timeout_ns=TIMEOUT_NS)
            works.append(partial(compiled, whole, delayed))
    with ThreadPoolExecutor(max(2, min(16, os.cpu_count() or 2))) as pool:
        for work in [pool.submit(work) for work in works]:
            work.result()


def replayed(pipeline, arguments):
    """Return the median time of a replay, and, if a co-pilot assigns tiles, when each program ended."""
    graph = timing.captured(partial(pipeline, **arguments))
    (us,) = timing.time_in_turn([graph])
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    pipeline.check()
    return statistics.median(us)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--right", type=int, default=0)
    parser.add_argument("--held-out", action="store_true")
    values = parser.parse_args()
    start_s = time.time()
    chains = cases(HELD_OUT if values.held_out else PAIRS)
    compile_all(chains, values.right)
    if values.compile:
        return
    print(f"compiled in {time.time() - start_s:.0f} s", flush=True)
    rows = {name: {"program": name, "device": torch.cuda.get_device_name()} for name in chains}
    for number in range(ROUNDS):
        for name, chain in chains.items():
            measure(chain, rows[name], values.right if number == 0 else 0, quiet=values.held_out)
            values.output.write_text(json.dumps([row for row in rows.values() if len(row) > 2], indent=1))


def measure(chain, row, right, quiet):
    """Add a round to a pair's row; ``quiet``: without printing its times."""
    policy = chain.policy()
    stages = GpuPipeline(policy, schedule="persistent-stages", unchecked=True)
    inputs = stages.example()
    expected = [t.clone() for t in torch.utils._pytree.tree_leaves(stages(**inputs))]
    for order in ("deadline, overwrite", "deadline, ahead, overwrite") if right else ():
        row[f"{order}, delayed"] = wrong(chain, "ccks", right, ORDERS[order])
        print(row["program"], order, row[f"{order}, delayed"], flush=True)
    alone_us = [
        statistics.median(timing.time_graph(partial(launched, stages, stage, inputs))) / LAUNCHES
        for stage in range(len(chain.operators))
    ]
    add(row, "stages one by one", {"whole_us": replayed(stages, inputs), "stage_us": alone_us})
    for order, choices in ORDERS.items():
        pipeline = GpuPipeline(policy, schedule="ccks-ready", choices=choices, unchecked=True)
        actual = torch.utils._pytree.tree_leaves(pipeline(**inputs))
        same = all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))
        whole_us = replayed(pipeline, inputs)
        ends_us, counts = pipeline._counts[-1].ended_us(), asdict(pipeline._counts[-1].counts())
        add(row, order, {"whole_us": whole_us, "ends_us": ends_us})
        row[order] |= {"right": same and row[order].get("right", True), "counts": counts}
        times = (whole_us, *ends_us, counts["overwritten"] / counts["runs"], counts["too_late"] / counts["runs"])
        shown = () if quiet else (round(number, 1) for number in times)
        print(row["program"], order, "right" if same else "WRONG", *shown, flush=True)


def launched(stages, number, inputs):
    for _ in range(LAUNCHES):
        stages.launch_stage(number, inputs)


def add(row, key, times):
    """Add a round's times to a row, whose times are the medians of all rounds."""
    rounds = [*row.get(key, {}).get("rounds", []), times]
    row.setdefault(key, {})["rounds"] = rounds
    for name in times:
        some = [each[name] for each in rounds]
        row[key][name] = (
            [*map(statistics.median, zip(*some, strict=True))] if isinstance(some[0], list) else statistics.median(some)
        )


if __name__ == "__main__":
    main()
