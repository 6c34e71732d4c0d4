"""Two programs in one persistent kernel on a GPU, one of them urgent: when it ends by each order of the co-pilot.

python tests/gpu/measuring/schedulers/measure_deadlines.py OUT.json [--compile] [--right 1000]

``--compile``: only build, without a GPU; ``--right``: as many replays of each pair with random delays of up to 20 us,
with commands that are overwritten.

A large chain of products and a small urgent one are one plan (`Chain.beside`). *ends* is the co-pilot's own time from a
run's first completion to the last of each program, mean over replays; *whole* is the time of a replay. Results are
compared with stream order bit by bit.
"""

import argparse
import json
import math
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from measure_dealers import DELAY_NS, SMS, TIMEOUT_NS, stacked, wrong

from tileprof.runtime.copilot.build import compiled as compiled_pilot
from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.measuring import timing
from tileprof.runtime.measuring.cases import gelu_mlp
from tileprof.runtime.persistent.build import compiled
from tileprof.runtime.persistent.cost import clusters_on
from tileprof.runtime.persistent.dealing import Dealer
from tileprof.runtime.persistent.lower import plan_of, plans_by_stage
from tileprof.runtime.persistent.source import Options
from tileprof.runtime.persistent.tile_choice import tiled
from tileprof.runtime.policy_on_gpu import GpuPipeline

REPLAYS = 200
URGENT = gelu_mlp(64, (64, 64), (64, 64), 768, 3072)
TWO = stacked(64, 768, 3072, 2)
PAIRS = {
    "GPT-3 MLP TP8, 512 tokens": gelu_mlp(512, (128, 128), (128, 128)).beside(URGENT),
    "GPT-2 MLP, 2,048 tokens": gelu_mlp(2048, (128, 128), (128, 128), 768, 3072).beside(URGENT),
    "GPT-2 MLP, 16,384 tokens": gelu_mlp(16384, (128, 128), (128, 128), 768, 3072).beside(TWO),
    "GPT-3 MLP TP8, 4,096 tokens": gelu_mlp(4096, (128, 128), (128, 128)).beside(TWO),
}
DEADLINE = Choices(order="deadline", deadlines_us=(math.inf, 40.0), speculate=False)
ORDERS = {
    "stages": Choices(order="stages", speculate=False),
    "critical": Choices(speculate=False),
    "deadline": DEADLINE,
    **{f"deadline, depth {depth}": replace(DEADLINE, depth=depth) for depth in (1, 3, 5)},
    "deadline, overwrite": replace(DEADLINE, overwrite=True),
    **{f"deadline, overwrite, depth {depth}": replace(DEADLINE, depth=depth, overwrite=True) for depth in (3, 5)},
    "deadline, ahead": replace(DEADLINE, speculate=True),
    "deadline, ahead, overwrite": replace(DEADLINE, speculate=True, overwrite=True),
}


def cases():
    return {name: tiled(pair, clusters_on(SMS))[0] for name, pair in PAIRS.items()}


def compile_all(right):
    """Every kernel and co-pilot that a run takes, several at a time."""
    works = []
    for chain in cases().values():
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
    """The median time of a replay, and, where a co-pilot deals, when each program ended."""
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
    values = parser.parse_args()
    start_s = time.time()
    compile_all(values.right)
    if values.compile:
        return
    print(f"compiled in {time.time() - start_s:.0f} s", flush=True)
    rows = []
    for name, chain in cases().items():
        policy = chain.policy()
        stages = GpuPipeline(policy, schedule="persistent-stages", unchecked=True)
        inputs = stages.example()
        expected = [t.clone() for t in torch.utils._pytree.tree_leaves(stages(**inputs))]
        row = {"program": name, "device": torch.cuda.get_device_name()}
        rows.append(row)
        for order in ("deadline, overwrite", "deadline, ahead, overwrite") if values.right else ():
            row[f"{order}, delayed"] = wrong(chain, "ccks", values.right, ORDERS[order])
            print(name, order, row[f"{order}, delayed"], flush=True)
        row["stages one by one"] = {"whole_us": replayed(stages, inputs)}
        for order, choices in ORDERS.items():
            pipeline = GpuPipeline(policy, schedule="ccks-ready", choices=choices, unchecked=True)
            actual = torch.utils._pytree.tree_leaves(pipeline(**inputs))
            right = all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))
            whole_us = replayed(pipeline, inputs)
            ends_us, counts = pipeline._counts[-1].ended_us(), asdict(pipeline._counts[-1].counts())
            row[order] = {"right": right, "whole_us": whole_us, "ends_us": ends_us, "counts": counts}
            print(name, order, "right" if right else "WRONG", round(whole_us, 1), [round(us, 1) for us in ends_us],
                  counts["overwritten"] / counts["runs"], counts["too_late"] / counts["runs"], flush=True)  # fmt: skip
            values.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
