"""Two programs in one persistent kernel on a GPU, one of them urgent: when it ends by each order of the co-pilot.

python tests/gpu/measuring/measure_deadlines.py OUT.json [--compile]     --compile: only build, without a GPU

A large chain of products and a small urgent one are one plan (`Chain.beside`). *ends* is the co-pilot's own time from a
run's first completion to the last of each program, mean over replays; *whole* is the time of a replay. Results are
compared with stream order bit by bit.
"""

import argparse
import json
import math
import statistics
from functools import partial
from pathlib import Path

import torch
from measure_dealers import SMS

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
PAIRS = {
    "GPT-3 MLP TP8, 512 tokens": gelu_mlp(512, (128, 128), (128, 128)),
    "GPT-2 MLP, 2,048 tokens": gelu_mlp(2048, (128, 128), (128, 128), 768, 3072),
}
ORDERS = {
    "stages": Choices(order="stages", speculate=False),
    "critical": Choices(speculate=False),
    "deadline": Choices(order="deadline", deadlines_us=(math.inf, 40.0), speculate=False),
    "deadline, depth 1": Choices(order="deadline", deadlines_us=(math.inf, 40.0), speculate=False, depth=1),
}


def cases():
    return {name: tiled(large.beside(URGENT), clusters_on(SMS))[0] for name, large in PAIRS.items()}


def compile_all():
    for chain in cases().values():
        policy = chain.policy()
        whole = plan_of(policy, chain, clusters=clusters_on(SMS), cuts=False)
        cut = plan_of(policy, chain, clusters=clusters_on(SMS))
        for part in plans_by_stage(cut, clusters_on(SMS)(cut.split)):
            compiled(part, Options(programmatic=False))
        compiled(whole, Options(dealer=Dealer.PILOT))
        for choices in ORDERS.values():
            compiled_pilot(whole, choices)


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
    values = parser.parse_args()
    if values.compile:
        compile_all()
        return
    rows = []
    for name, chain in cases().items():
        policy = chain.policy()
        stages = GpuPipeline(policy, schedule="persistent-stages", unchecked=True)
        inputs = stages.example()
        expected = [t.clone() for t in torch.utils._pytree.tree_leaves(stages(**inputs))]
        row = {"program": name, "stages one by one": {"whole_us": replayed(stages, inputs)}}
        rows.append(row)
        for order, choices in ORDERS.items():
            pipeline = GpuPipeline(policy, schedule="ccks-ready", choices=choices, unchecked=True)
            actual = torch.utils._pytree.tree_leaves(pipeline(**inputs))
            right = all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))
            whole_us = replayed(pipeline, inputs)
            ends_us = pipeline._counts[-1].ended_us()
            row[order] = {"right": right, "whole_us": whole_us, "ends_us": ends_us}
            print(name, order, "right" if right else "WRONG", round(whole_us, 1), [round(us, 1) for us in ends_us])
            values.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
