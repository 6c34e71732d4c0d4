"""On a GPU: a mixture of experts whose tokens are routed in the same run, under every schedule of its kernel and by
PyTorch; right under delays, and how long each takes.

python tests/gpu/measuring/schedulers/measure_experts.py OUT.json [--compile] [--runs 1000] [--only times]

``--compile``: only build, for the machine's SMs. *even*: a router of random numbers; *uneven*: tokens share a direction
that some experts like, so that most go to few of them. Weights rotate through several copies, out of L2.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.experts.experts_build import KERNEL, compiled_pilot
from tileprof.runtime.experts.layer import SCHEDULES, Experts
from tileprof.runtime.experts.shape import Dealing, ExpertsShape
from tileprof.runtime.measuring import timing

SMS = 132
DELAY_NS, DELAYED_TIMEOUT_NS, TIMEOUT_NS = 20_000, 500_000_000, 2_000_000_000
COPIES = 3
SHAPES = {
    "8 experts, 512 tokens": ExpertsShape("bfloat16", 512, 1024, 3584, 8, 2),
    "8 experts, 128 tokens": ExpertsShape("bfloat16", 128, 1024, 3584, 8, 2),
    "16 experts, 1,024 tokens, narrow": ExpertsShape("bfloat16", 1024, 1024, 512, 16, 4),
    "8 experts, 2,048 tokens": ExpertsShape("bfloat16", 2048, 1024, 1792, 8, 2),
}
RIGHT = {"8 experts, 300 tokens": ExpertsShape("bfloat16", 300, 512, 512, 8, 2)}


def compile_all() -> None:
    works = []
    for shapes, delay_ns, timeout_ns in ((RIGHT, DELAY_NS, DELAYED_TIMEOUT_NS), (SHAPES, 0, TIMEOUT_NS)):
        for shape in shapes.values():
            works += [
                partial(KERNEL.compiled, shape.header(SMS, dealing, delay_ns=delay_ns, timeout_ns=timeout_ns))
                for dealing in Dealing
            ]
            works += [partial(compiled_pilot, shape, SMS, Choices(speculate=speculate)) for speculate in (True, False)]
    with ThreadPoolExecutor(16) as pool:
        for work in [pool.submit(work) for work in works]:
            work.result()


def inputs(shape: ExpertsShape, *, uneven: bool, seed: int = 0):
    """Weights and tokens."""
    torch.manual_seed(seed)

    def numbers(*sizes, scale):
        return (torch.randn(sizes, device="cuda") * scale).to(getattr(torch, shape.dtype))

    router = numbers(shape.experts, shape.width, scale=shape.width**-0.5)
    up = numbers(shape.experts, 2 * shape.inner, shape.width, scale=shape.width**-0.5)
    down = numbers(shape.experts, shape.width, shape.inner, scale=shape.inner**-0.5)
    x = numbers(shape.tokens, shape.width, scale=1.0)
    if uneven:
        bias = torch.linspace(1.5, -1.5, shape.experts, device="cuda")
        direction = torch.randn(shape.width, device="cuda")
        direction /= direction.norm()
        x += (direction * 3.0).to(x.dtype)
        router += (bias[:, None] * direction).to(router.dtype)
    return (router, up, down), x


def route(weights, x, top, *, exact=False):
    """Return gates and experts of each token.

    ``exact`` uses scores that are not rounded to 16 bits, so that a few tokens go to other experts.
    """
    scores = x.float() @ weights[0].float().T if exact else (x @ weights[0].T).float()
    best, chosen = torch.topk(scores, top, dim=1)
    return best.softmax(dim=1), chosen


def by_loops(weights, x, top, *, exact=False):
    """Compute by PyTorch, expert by expert, as models are written: the host waits for the routing."""
    gates, chosen = route(weights, x, top, exact=exact)
    inner = weights[2].shape[-1]
    result = torch.zeros_like(x)
    for expert in range(len(weights[0])):
        token, rank = torch.where(chosen == expert)
        if len(token):
            both = x[token] @ weights[1][expert].T
            y = (torch.nn.functional.silu(both[:, :inner]) * both[:, inner:]) @ weights[2][expert].T
            result.index_add_(0, token, y * gates[token, rank, None].to(y.dtype))
    return result


def by_groups(weights, x, top):
    """Compute by PyTorch's grouped products, whose ends are read on the GPU: the host does not wait, and it can be
    captured.
    """
    gates, chosen = route(weights, x, top)
    inner, experts = weights[2].shape[-1], len(weights[0])
    order = chosen.view(-1).argsort(stable=True)
    ends = (chosen.view(-1)[:, None] == torch.arange(experts, device=x.device)).sum(0).cumsum(0).to(torch.int32)
    token = order // top
    both = torch._grouped_mm(x[token], weights[1].transpose(1, 2), offs=ends)
    y = torch._grouped_mm(
        torch.nn.functional.silu(both[:, :inner]) * both[:, inner:], weights[2].transpose(1, 2), offs=ends
    )
    result = torch.zeros_like(x)
    return result.index_add_(0, token, y * gates.view(-1)[order, None].to(y.dtype))


def error(actual, expected):
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def wrong(shape, schedule, runs):
    """Return the number of delayed replays that differ in some bit from one kind after the other; the tokens change
    every time.
    """
    start_s = time.time()
    weights, x = inputs(shape, uneven=True)
    layer = Experts(
        *weights,
        tokens=shape.tokens,
        top=shape.top,
        schedule=schedule,
        delay_ns=DELAY_NS,
        timeout_ns=DELAYED_TIMEOUT_NS,
    )
    order = Experts(*weights, tokens=shape.tokens, top=shape.top, schedule="persistent-stages")
    count = torch.zeros(1, dtype=torch.int32, device="cuda")

    def once():
        layer.seed.add_(1)
        layer.poison()
        x.copy_(x.roll(1, 1))  # other tokens, another routing
        expected = order(x).view(torch.int16)
        count.add_((layer(x).view(torch.int16) != expected).any().int())

    graph = timing.captured(once)
    for number in range(runs):
        graph.replay()
        if number % 100 == 0:
            layer.check()
    layer.check()
    return {"wrong": int(count), "runs": runs, "seconds": round(time.time() - start_s, 1)}


def times(shape, *, uneven):
    """Return microseconds per call of each schedule in a CUDA graph, and of PyTorch without one if the host waits."""
    sets = [inputs(shape, uneven=uneven, seed=seed) for seed in range(COPIES)]
    counts = torch.bincount(route(sets[0][0], sets[0][1], shape.top)[1].view(-1), minlength=shape.experts).tolist()
    result = {"rows of experts": counts, "tiles": sum(-(-n // 64) for n in counts), "of at most": shape.most_tiles}
    expected = by_loops(*sets[0], shape.top, exact=True)
    layers = {}
    for schedule in SCHEDULES:
        try:
            layers[schedule] = [Experts(*w, tokens=shape.tokens, top=shape.top, schedule=schedule) for w, _ in sets]
            result[f"error, {schedule}"] = error(layers[schedule][0](sets[0][1]), expected)
            layers[schedule][0].check()
        except Exception as failure:
            print("  failed:", schedule, str(failure)[:300], flush=True)
            layers.pop(schedule, None)
    works = {s: [partial(layer, x) for layer, (_, x) in zip(own, sets, strict=True)] for s, own in layers.items()}
    works["PyTorch, grouped products"] = [partial(by_groups, w, x, shape.top) for w, x in sets]

    def all_of(calls):
        for call in calls:
            call()

    graphs = {}
    for name, calls in works.items():
        try:
            graphs[name] = timing.captured(partial(all_of, calls))
        except Exception as failure:
            print("  failed:", name, str(failure)[:300], flush=True)
            torch.cuda.synchronize()
    for name, us in zip(graphs, timing.time_in_turn(list(graphs.values())), strict=True):
        result[name] = statistics.median(us) / COPIES
    for own in layers.values():
        own[0].check()
    us = timing.time_eager(lambda: [by_loops(w, x, shape.top) for w, x in sets])
    result["PyTorch, expert by expert"] = statistics.median(us) / COPIES
    if "ccks" in layers:
        torch.cuda.synchronize()
        time.sleep(0.01)
        result["counts of ccks"] = str(layers["ccks"][0].pilot_counts())
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--only", choices=("times", "right"))
    options = parser.parse_args()
    compile_all()
    if options.compile:
        return
    results = {"device": torch.cuda.get_device_name(), "us": {}, "right": {}}
    for name, shape in SHAPES.items() if options.only != "right" else ():
        for uneven in (False, True):
            label = f"{name}, {'uneven' if uneven else 'even'}"
            try:
                results["us"][label] = row = times(shape, uneven=uneven)
                print(label, {k: round(v, 1) for k, v in row.items() if isinstance(v, float) and "error" not in k})
                print("  ", row["rows of experts"], row["tiles"], "of", row["of at most"], row.get("counts of ccks"))
            except Exception:
                traceback.print_exc()
            options.output.write_text(json.dumps(results, indent=1))
    for name, shape in RIGHT.items() if options.only != "times" else ():
        for schedule in ("persistent", "persistent-dynamic", "ccks", "ccks-ready"):
            try:
                results["right"][f"{name}, {schedule}"] = row = wrong(shape, schedule, options.runs)
                print(name, schedule, row, flush=True)
            except Exception:
                traceback.print_exc()
            options.output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
