"""On a GPU: static lists, the queue on the GPU and the co-pilot on the CPU under one persistent kernel: right under
delays, and how long each takes.

python tests/gpu/measuring/schedulers/measure_dealers.py OUT.json [--compile] [--runs 1000] [--rows ccks,ccks-ready]
    [--only times] [--many] [--chains NAME …]

``--compile`` only builds the kernels, without a GPU; ``--runs`` delayed replays of each chain in ``RIGHT`` and each
scheduler; ``--rows``: of the schedulers and variants, beside stages one by one and static lists; ``--only``: times, or
right, alone; ``--many``: the chains of many tiles instead of the others; ``--chains``: of
all, those alone.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import statistics
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves

from tileprof.runtime.chain import Chain
from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.copilot.copilot_build import compiled as compiled_pilot
from tileprof.runtime.measuring import stage_times, timing
from tileprof.runtime.measuring.cases import convolution_pair, gated_mlp, gelu_mlp
from tileprof.runtime.persistent import run
from tileprof.runtime.persistent.cost import clusters_on
from tileprof.runtime.persistent.dealing import Dealer
from tileprof.runtime.persistent.persistent_build import RESIDENT, compiled
from tileprof.runtime.persistent.source import Options
from tileprof.runtime.persistent.task_lists import plan_of, plans_by_stage
from tileprof.runtime.persistent.tile_choice import tiled
from tileprof.runtime.policy_on_gpu import GpuPipeline
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.view import View

SMS = 132
DELAY_NS = 20_000
TIMEOUT_NS = 100_000_000
SCHEDULERS = ("persistent-dynamic", "ccks", "ccks-ready", "ccks-overwrite")


def stacked(tokens: int, width: int, inner: int, layers: int) -> Chain:
    """Return MLPs behind each other, each in memory of its own."""
    operators, x = [], View.contiguous("x", (tokens, width), "float16")
    for layer in range(layers):
        h, y = (View.contiguous(f"{n}{layer}", (tokens, c), "float16") for n, c in (("h", inner), ("y", width)))
        up, down = (
            View(f"{n}{layer}", s, (1, s[0]), "float16") for n, s in (("u", (width, inner)), ("d", (inner, width)))
        )
        operators += [Gemm(x, up, h, tile=(64, 64), epilogue="gelu"), Gemm(h, down, y, tile=(64, 64))]
        x = y
    return Chain(tuple(f"s{n}" for n in range(len(operators))), tuple(operators))


def resnet18_layer(number: int, images: int, tile: tuple[int, int] = (64, 64)) -> Chain:
    """Return the convolutions of one of ResNet-18's four layers, two residual blocks with batch norms folded into them.

    Stages add a residual behind ReLU, and ResNet in front of it.
    """
    channels, size, halves = 64 << number - 1, 56 >> number - 1, number > 1

    def view(name: str, *shape: int) -> View:
        return View.contiguous(name, shape, "float16")

    def convolution(
        x: View, out: View, taps: int, stride: int = 1, residual: View | None = None, epilogue: str = "none"
    ) -> Conv2d:
        weight, bias = view(f"w_{out.tensor}", channels, taps, taps, x.shape[3]), view(f"b_{out.tensor}", channels)
        return Conv2d(x, weight, out, bias, residual, tile=tile, stride=stride, padding=taps // 2, epilogue=epilogue)

    x = view("x", images, 2 * size, 2 * size, channels // 2) if halves else view("x", images, size, size, channels)
    operators, residual = [], x
    if halves:
        residual = view("narrowed", images, size, size, channels)
        operators.append(convolution(x, residual, 1, stride=2))
    for block in "ab":
        h, y = (view(f"{n}_{block}", images, size, size, channels) for n in "hy")
        stride = 2 if halves and block == "a" else 1
        operators += [convolution(x, h, 3, stride, epilogue="relu"), convolution(h, y, 3, residual=residual)]
        x = residual = y
    return Chain(tuple(f"s{n}" for n in range(len(operators))), tuple(operators))


def in_tiles(chain: Chain) -> Chain:
    """Return the chain in the tiles that the persistent kernel's model likes best."""
    return tiled(chain, clusters_on(SMS))[0]


RIGHT = {
    "products": gelu_mlp(64, (64, 48), (64, 96), 1024, 512),
    "one token": gelu_mlp(1, (1, 48), (1, 96), 1024, 512),
    "gated products": gated_mlp(80, (64, 40), (64, 64), 512, 328),
    "pairs": gelu_mlp(700, (256, 96), (256, 128), 512, 384),
    "four MLPs": stacked(128, 512, 1024, 4),
    "convolutions, rows": convolution_pair(3, 14, 64, (98, 32)),
    "a layer of ResNet-18": resnet18_layer(2, 1, (28, 32)),
}


def timed_chains() -> dict[str, Chain]:
    """Return the timed chains, in tiles for the persistent kernel."""
    plain = {
        "GPT-2 MLP, 512 tokens": gelu_mlp(512, (128, 128), (128, 128), 768, 3072),
        "four MLPs of GPT-2, 256 tokens": stacked(256, 768, 3072, 4),
        "GPT-3 MLP TP8, 64 tokens": gelu_mlp(64, (64, 128), (64, 128)),
        "GPT-3 MLP TP8, 512 tokens": gelu_mlp(512, (128, 128), (128, 128)),
        "LLaMA-65B MLP TP8, 64 tokens": gated_mlp(64, (64, 64), (64, 128)),
        "LLaMA-65B MLP TP8, 512 tokens": gated_mlp(512, (128, 64), (128, 128)),
        "ResNet, two 3x3, 28x28x128, batch 8": convolution_pair(8, 28, 128, (64, 64)),
        "ResNet, two 3x3, 14x14x256, batch 8": convolution_pair(8, 14, 256, (64, 64)),
        "BERT-large MLP, 384 tokens": gelu_mlp(384, (128, 128), (128, 128), 1024, 4096),
        "ResNet, two 3x3, 56x56x64, batch 4": convolution_pair(4, 56, 64, (64, 64)),
    }
    plain |= {
        f"ResNet-18, layer {number}, {text}": resnet18_layer(number, images)
        for images, text in ((1, "1 image"), (8, "8 images"))
        for number in (1, 2, 3, 4)
    }
    return {name: in_tiles(chain) for name, chain in plain.items()}


def chains_of_many_tiles() -> dict[str, Chain]:
    """Return chains of 3,072 tiles each, whose tiles take about 1.5 to 40 us."""
    return {
        "3,072 tiles of 64x64, k 256 and 512": stacked(4096, 256, 512, 4),
        "3,072 tiles of 64x64, k 512 and 1024": stacked(2048, 512, 1024, 4),
        "3,072 tiles of 128x128, k 1024 and 2048": gelu_mlp(16384, (128, 128), (128, 128), 1024, 2048),
        "3,072 tiles of 128x128, k 2048 and 4096": gelu_mlp(8192, (128, 128), (128, 128), 2048, 4096),
    }


VARIANTS = {
    "ccks": Choices(),
    "ccks, depth 1": Choices(depth=1),
    "ccks, depth 3": Choices(depth=3),
    "ccks, depth 5": Choices(depth=5),
    "ccks-overwrite": Choices(overwrite=True),
    "ccks-overwrite, depth 3": Choices(overwrite=True, depth=3),
    "ccks-overwrite, depth 5": Choices(overwrite=True, depth=5),
    "ccks-ready": Choices(speculate=False),
    "ccks-ready, stage order": Choices(speculate=False, order="stages"),
    "ccks-ready, affinity": Choices(speculate=False, affinity=True),
}


ROWS = ("persistent-dynamic", *VARIANTS)


def dealers_of(rows: Sequence[str]) -> set[tuple[Dealer, bool]]:
    """Return what is compiled for rows: who assigns tiles, and whether clusters claim them."""
    return {
        (Dealer.QUEUE, False) if row == "persistent-dynamic" else (Dealer.PILOT, VARIANTS[row].overwrite)
        for row in rows
    }


def compile_all(chains: dict[str, Chain], delay_ns: int, rows: Sequence[str] = ROWS) -> None:
    """Compile every kernel and co-pilot of a run, several at a time."""
    clusters = clusters_on(SMS)
    works = [partial(RESIDENT.compiled, "")]
    for chain in chains.values():
        policy = chain.policy()
        plan, whole = plan_of(policy, chain, clusters=clusters), plan_of(policy, chain, clusters=clusters, cuts=False)
        stages = plans_by_stage(plan, clusters(plan.split))
        works += [partial(compiled, part, Options(programmatic=False)) for part in stages]
        works.append(partial(compiled, plan, Options()))
        works += [
            partial(
                compiled,
                whole,
                Options(
                    dealer=d,
                    claims=claims,
                    delay_ns=delay_ns,
                    timeout_ns=TIMEOUT_NS if delay_ns else Options().timeout_ns,
                ),
            )
            for d, claims in dealers_of(rows)
        ]
        works += [partial(compiled_pilot, whole, VARIANTS[row]) for row in rows if row in VARIANTS]
    with ThreadPoolExecutor(max(2, min(16, os.cpu_count() or 2))) as pool:
        for work in [pool.submit(work) for work in works]:
            work.result()


def wrong(chain: Chain, schedule: str, runs: int, choices: Choices | None = None) -> dict[str, object]:
    """Return the number of delayed replays that differ from stream order in some bit, and the co-pilot's counts, if
    there is one.
    """
    sys.path.append(str(Path(__file__).parents[2] / "runtime/chains"))
    import replays

    start_s, policy = time.time(), chain.policy()
    pipeline = GpuPipeline(
        policy, schedule=schedule, delay_ns=DELAY_NS, timeout_ns=TIMEOUT_NS, unchecked=True, choices=choices
    )
    inputs = pipeline.example()
    stages = GpuPipeline(policy, schedule="persistent-stages", unchecked=True)
    expected = [replays.bits(t).clone() for t in tree_leaves(stages(**inputs))]
    actual = torch.zeros(1, dtype=torch.int32, device="cuda")

    def once() -> None:
        pipeline.seed.add_(1)
        pipeline.poison()
        results = [replays.bits(t) for t in tree_leaves(pipeline(**inputs))]
        differing = [(a != b).any() for a, b in zip(results, expected, strict=True)]
        actual.add_(torch.stack(differing).any().int())

    once()
    pipeline.check()
    graph = timing.captured(once)
    for number in range(runs):
        graph.replay()
        if number % 100 == 0:
            pipeline.check()
    pipeline.check()
    row = {"wrong": int(actual), "runs": runs, "seconds": round(time.time() - start_s, 1)}
    return row | (asdict(pipeline._counts[-1].counts()) if schedule.startswith("ccks") else {})


def times(chain: Chain, chosen: Sequence[str]) -> dict[str, float]:
    """Return microseconds in a graph, with weights rotated out of L2."""
    policy = chain.policy()
    count = min(8, stage_times.instances(chain))
    rows = ["persistent-stages", "persistent", *chosen]
    matches = {}
    for row in rows:
        try:
            choices = VARIANTS.get(row)
            with mock.patch.object(run, "Choices", lambda c=choices, **_: c):  # pipelines_of does not take it
                pipelines = stage_times.pipelines_of(policy, "ccks" if choices else row, count)
            inputs = stage_times.rotated(pipelines[0], count)
            graph = timing.captured(partial(stage_times.launch_all, pipelines, inputs))
            (us,) = timing.time_in_turn([graph])
            matches[row] = statistics.median(us) / count
            for pipeline in pipelines:
                pipeline.check()
            del graph, pipelines, pipeline, inputs
        except Exception as error:
            print("  failed:", row, str(error)[:300], flush=True)
    return matches


def counts(chain: Chain, choices: Choices) -> dict[str, int]:
    """Return the co-pilot's counts in 20 runs."""
    pipeline = GpuPipeline(chain.policy(), schedule="ccks", unchecked=True, choices=choices)
    inputs = pipeline.example()
    for _ in range(20):
        pipeline(**inputs)
    pipeline.check()
    time.sleep(0.01)
    return asdict(pipeline._counts[-1].counts())


def main() -> None:
    faulthandler.dump_traceback_later(45, repeat=True)
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", type=lambda text: tuple(re.split(",(?! )", text)), default=ROWS)
    parser.add_argument("--only", choices=("times", "right"))
    parser.add_argument("--many", action="store_true")
    parser.add_argument("--chains", nargs="+")
    options = parser.parse_args()
    out, rows = options.output, options.rows
    chains = chains_of_many_tiles() if options.many else timed_chains()
    chains = {name: chain for name, chain in chains.items() if not options.chains or name in options.chains}
    schedulers = [schedule for schedule in reversed(SCHEDULERS) if schedule in rows]
    start_s = time.time()
    if options.only != "times":
        compile_all(RIGHT, DELAY_NS, rows)
    compile_all(chains, 0, rows)
    if options.compile:
        return
    print(f"compiled in {time.time() - start_s:.0f} s", flush=True)
    results: dict[str, object] = {"device": torch.cuda.get_device_name(), "right": {}, "us": {}, "counts": {}}
    for schedule in schedulers:
        for name, chain in RIGHT.items() if options.only != "times" else ():
            try:
                print(name, schedule, flush=True)
                results["right"][f"{name}, {schedule}"] = message = wrong(chain, schedule, options.runs)
                print(name, schedule, message, flush=True)
            except Exception:
                traceback.print_exc()
            out.write_text(json.dumps(results, indent=1))
    for name, chain in chains.items() if options.only != "right" else ():
        try:
            results["us"][name] = message = times(chain, rows)
            print(name, {row: round(us, 1) for row, us in message.items()}, flush=True)
            results["counts"][name] = {row: counts(chain, VARIANTS[row]) for row in rows if row in VARIANTS}
            print("  ", results["counts"][name], flush=True)
        except Exception:
            traceback.print_exc()
        out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
