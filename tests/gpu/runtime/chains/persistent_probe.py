"""Checks and times the persistent kernel against its own launches per stage, PyTorch in a graph and the roof.

``python tests/gpu/runtime/chains/persistent_probe.py OUT.json [--set check,gemm,conv] [--only WORD] [--tune]`` with
tileprof on the path. Every wait in a kernel ends after 200 ms. Times: a captured graph of several instances of a chain,
so that weights do not stay in L2; median of 30 replays, microseconds per instance.
"""

import argparse
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan
from pathlib import Path

import torch

from tileprof.runtime.chain import Chain
from tileprof.runtime.measuring.cases import convolution_pair, gated_mlp, gelu_mlp
from tileprof.runtime.measuring.measure import _roof_us
from tileprof.runtime.measuring.stage_times import instances
from tileprof.runtime.measuring.timing import REPEATS, captured
from tileprof.runtime.persistent.persistent_build import compiled
from tileprof.runtime.persistent.persistent_launch import Launcher, max_clusters
from tileprof.runtime.persistent.source import Options
from tileprof.runtime.persistent.task_lists import plan_of, plans_by_stage
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.view import View

TIMEOUT_NS = 200_000_000
DELAY_NS = 20_000
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
ERROR = {"float16": 3e-3, "bfloat16": 2e-2}


@dataclass(frozen=True)
class Case:
    name: str
    chain: Chain
    split: int
    options: tuple[Options, ...] = field(default=(Options(),))


def view(name, *shape, dtype="float16"):
    return View.contiguous(name, shape, dtype)


def linear(name, k, n, dtype="float16"):
    return View(name, (k, n), (1, k), dtype)


def small(dtype, epilogue, split, tile, m=100, k=328, n=232, last=200, *, residual=True):
    """Two products of ragged sizes with bias; the second adds the input of the first where shapes allow."""
    gated = epilogue == "silu_gate"
    x, h, y = view("x", m, k, dtype=dtype), view("h", m, n, dtype=dtype), view("y", m, last, dtype=dtype)
    wide = 2 * n if gated else n
    first = Gemm(
        x,
        linear("w1", k, wide, dtype),
        h,
        view("b1", wide, dtype=dtype),
        tile=(tile[0], tile[1] // (1 + gated)),
        epilogue=epilogue,
    )
    second = Gemm(
        h,
        linear("w2", n, last, dtype),
        y,
        view("b2", last, dtype=dtype),
        view("r", m, last, dtype=dtype) if residual else None,
        tile=tile,
    )
    return Chain(("first", "second"), (first, second))


def checks():
    for split in (1, 2, 4):
        yield Case(f"ragged gelu S{split}", small("float16", "gelu", split, (64, 48)), split)
        yield Case(f"ragged gate S{split}", small("float16", "silu_gate", split, (128, 64), 300), split)
        yield Case(f"ragged gate 64 S{split}", small("float16", "silu_gate", split, (48, 80), 300), split)
    yield Case("gelu_tanh bf16", small("bfloat16", "gelu_tanh", 2, (128, 72), 200), 2)
    yield Case("relu bf16", small("bfloat16", "relu", 1, (16, 128), 50, residual=False), 1)
    yield Case("silu S8", small("float16", "silu", 8, (64, 128), 80, 1096, 584, 1000), 8)
    yield Case("pair gelu", small("float16", "gelu", 2, (256, 48), 300), 2)
    yield Case("pair gate", small("float16", "silu_gate", 2, (256, 80), 600, 1096, 584, 1000), 2)
    yield Case("none wide", small("float16", "none", 2, (128, 256), 500, 1096, 584, 1000), 2)
    one = Options(buffers=1, buffer_bytes=52 * 1024)
    yield Case("one buffer", small("float16", "gelu", 4, (64, 192), 64, 1096, 584, 1000), 4, (one,))


def fit_line(columns, split, most, step=16):
    """Return the narrowest tiles with the fewest rounds over the clusters."""
    clusters = max_clusters(split)
    for rounds in range(1, 1000):
        width = -(-columns // (clusters * rounds * step)) * step
        if width <= most:
            return width
    raise AssertionError(columns)


MODELS = {
    "GPT-3": (12288, 6144, gelu_mlp),
    "LLaMA-65B": (8192, 2752, lambda tokens, up, down: gated_mlp(tokens, up, down, 8192, 2752)),
    "LLaMA-7B": (4096, 11008, lambda tokens, up, down: gated_mlp(tokens, up, down, 4096, 11008)),
}
"""Columns, hidden columns, and the chain for a number of tokens in given tiles."""

TUNED = (Options(buffers=1), Options(programmatic=False), Options(lag=2))


def products(tune):
    for tokens in (1, 16, 64, 128, 256, 512, 1024, 2048):
        for name, (width, inner, chain) in MODELS.items():
            sides = 1 if name == "GPT-3" else 2
            most, rows = 256 // sides, min(tokens, 256)
            for split in (2, 4) if tokens <= 128 else (2,):
                if tokens <= 256:
                    up, down = fit_line(inner, split, most, 16 // sides), fit_line(width, split, 256)
                else:
                    up, down = best(inner, tokens, most, sides), best(width, tokens, 256, 1)
                more = TUNED if tune and tokens in {16, 64, 128} and split == 2 else ()
                yield Case(f"{name} {tokens}", chain(tokens, (rows, up), (rows, down)), split, (Options(), *more))


def best(columns, tokens, most, sides):
    """Return the width of a pair's tiles with the least busy clusters, wide ones first."""
    clusters, rows = max_clusters(2), -(-tokens // 256)
    widths = range(most, 32 // sides, -8 if sides == 2 else -16)
    cost = {w: -(-(-(-columns // w) * rows) // clusters) * (max(w * sides, 160) + 8) for w in widths}
    return min(cost, key=cost.get)


def strided(batch, size, channels, tile):
    """A 1x1 convolution of stride 2 after a 3x3 one, as in a residual block that narrows."""
    half = (size + 1) // 2
    x, h = (view(n, batch, size, size, channels) for n in "xh")
    y = view("y", batch, half, half, 2 * channels)
    w1, w2 = view("w1", channels, 3, 3, channels), view("w2", 2 * channels, 1, 1, channels)
    first = Conv2d(x, w1, h, view("b1", channels), tile=tile[0], padding=1, epilogue="relu")
    return Chain(("first", "second"), (first, Conv2d(h, w2, y, tile=tile[1], stride=2)))


def convolutions():
    yield Case("1x1 stride 2", strided(4, 28, 128, ((112, 64), (98, 64))), 1)
    yield Case("1x1 stride 2 S2", strided(4, 28, 128, ((112, 64), (14, 64))), 2)
    shapes = {
        (56, 64): {1: (56, 32, 1), 8: (112, 64, 1), 32: (112, 64, 1)},
        (28, 128): {1: (28, 32, 1), 8: (56, 128, 1), 32: (112, 128, 1)},
        (14, 256): {1: (28, 64, 4), 8: (98, 64, 2), 32: (98, 128, 1)},
        (7, 512): {1: (49, 64, 8), 8: (49, 64, 2), 32: (98, 128, 2)},
    }
    for (size, channels), by_batch in shapes.items():
        for batch, (pixels, width, split) in by_batch.items():
            yield Case(
                f"conv {size}x{channels} b{batch}", convolution_pair(batch, size, channels, (pixels, width)), split
            )


def storage(chain, seed):
    """Return flat tensors by name: random inputs, scaled so that results stay near 1; all other memory is poisoned."""
    generator = torch.Generator("cuda").manual_seed(seed)
    scales = {}
    for operator in chain.operators:
        weight = operator.b if isinstance(operator, Gemm) else operator.weight
        scales[weight.tensor] = (
            weight.shape[0] ** -0.5 if isinstance(operator, Gemm) else (weight.elements / weight.shape[0]) ** -0.5
        )
    inputs = chain.inputs()
    matches = {}
    for name, views in chain.tensors().items():
        size, dtype = max(v.elements for v in views), DTYPES[views[0].dtype]
        if name in inputs:
            matches[name] = (torch.randn(size, generator=generator, device="cuda") * scales.get(name, 1)).to(dtype)
        else:
            matches[name] = torch.full((size,), float("nan"), dtype=dtype, device="cuda")
    return matches


def roles(chain, flat):
    return [
        {role: flat[v.tensor].as_strided(v.shape, v.strides, v.offset) for role, v in operator.views().items()}
        for operator in chain.operators
    ]


def reference(chain, flat, dtype=None):
    """Compute every stage by PyTorch; with a dtype, in that type, and rounded after each stage."""
    values = {}
    for operator in chain.operators:
        inputs = {}
        for role, v in operator.views().items():
            if role != "out":
                inputs[role] = (
                    values[v.tensor] if v.tensor in values else flat[v.tensor].as_strided(v.shape, v.strides, v.offset)
                )
        if dtype is not None:
            inputs = {role: t.to(dtype) for role, t in inputs.items()}
        out = operator.reference(inputs)
        values[operator.out.tensor] = out if dtype is None else out.to(DTYPES[operator.out.dtype])
    return values


class Run:
    """A chain's plan, launched at once or one stage at a time, on tensors of its own."""

    def __init__(self, chain, plans, flat, options, delay_ns=0):
        inputs = roles(chain, flat)
        self.inputs = inputs
        self.launchers = [Launcher(p, "cuda", timeout_ns=TIMEOUT_NS, delay_ns=delay_ns, options=options) for p in plans]
        self.seed, self.record = (torch.zeros(n, dtype=torch.int32, device="cuda") for n in (1, 8))
        flags = torch.zeros(max(plan.flag_words for plan in plans), dtype=torch.int32, device="cuda")
        self.shared = [
            (self.seed, flags, torch.zeros(32, dtype=torch.int32, device="cuda"), self.record) for _ in plans
        ]

    def launch(self):
        for launcher, shared in zip(self.launchers, self.shared, strict=True):
            launcher.launch(self.inputs, shared)

    def check(self):
        torch.cuda.synchronize()
        actual = self.record.tolist()
        if actual[0]:
            raise RuntimeError(f"a wait gave up: stage, tile, semaphore, seen, expected = {actual[1:6]}")


def poison(chain, flat):
    inputs = chain.inputs()
    for name, tensor in flat.items():
        if name not in inputs:
            tensor.fill_(float("nan"))


def worst_error(chain, flat):
    """Return the largest relative error of a stage's result, each compared with PyTorch in float32."""
    expected, worst = reference(chain, flat, torch.float32), 0.0
    for operator in chain.operators:
        v = operator.out
        actual = flat[v.tensor].as_strided(v.shape, v.strides, v.offset).float()
        exact = expected[v.tensor].float()
        error = float((actual - exact).norm() / exact.norm())
        worst = max(worst, float("inf") if isnan(error) else error)
    return worst


def plans_of(case):
    """Return the plan of one launch, and the plans of one launch per stage."""
    plan = plan_of(case.chain.policy(), case.chain, clusters=max_clusters, split=case.split)
    return [plan], plans_by_stage(plan, max_clusters(plan.split))


def check(case, options):
    """Return errors without and with delays, and whether twenty delayed runs agree bit for bit."""
    plan, by_stage = plans_of(case)
    flat = storage(case.chain, 1)
    out = case.chain.operators[-1].out.tensor
    runs = {"": Run(case.chain, plan, flat, options), "stages": Run(case.chain, by_stage, flat, options)}
    errors, results = [], []
    for run in runs.values():
        poison(case.chain, flat)
        run.launch()
        run.check()
        errors.append(worst_error(case.chain, flat))
        results.append(flat[out].clone())
    same = int(torch.equal(*results))
    slow = Run(case.chain, plan, flat, options, delay_ns=DELAY_NS)
    for _ in range(20):
        poison(case.chain, flat)
        slow.seed.add_(1)
        slow.launch()
        slow.check()
        same += int(torch.equal(flat[out], results[0]))
    return max(errors), same == 21


def medians(graphs):
    """Return microseconds per replay of each, taken in turn so that the clock is the same for all."""
    times = [[] for _ in graphs]
    for number in range(REPEATS + 5):
        for graph, result in zip(graphs, times, strict=True):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if number >= 5:
                result.append(1000 * begin.elapsed_time(end))
    return [statistics.median(result) for result in times]


def measurement(case):
    count = max(8, instances(case.chain))
    flats = [storage(case.chain, seed) for seed in range(min(count, 2))]
    flats += [{n: t.clone() for n, t in flats[0].items()} for _ in range(count - len(flats))]
    plans = plans_of(case)
    for options in case.options:
        sets = [[Run(case.chain, p, flat, options) for flat in flats] for p in plans]
        works = [lambda runs=runs: [run.launch() for run in runs] for runs in sets]
        graphs = [captured(work) for work in [*works, lambda: [reference(case.chain, flat) for flat in flats]]]
        us, stages_us, torch_us = (t / count for t in medians(graphs))
        errors = []
        for runs in sets:
            for run in runs:
                run.check()
            poison(case.chain, flats[0])
            runs[0].launch()
            runs[0].check()
            errors.append(worst_error(case.chain, flats[0]))
        yield {
            "case": case.name,
            "options": repr(options),
            "roof_us": _roof_us(case.chain),
            "torch_us": torch_us,
            "us": us,
            "stages_us": stages_us,
            "us_error": errors[0],
            "stages_us_error": errors[1],
            "split": case.split,
            "clusters": plans[0][0].clusters,
            "tiles": len(plans[0][0].tasks),
            "widths": [s.columns for s in plans[0][0].stages],
            "instances": count,
        }


def precompile(cases):
    """Compile everything at once, on all cores."""
    delayed_names = {case.name for case in checks()}
    expected = [
        partial(compiled, plans_of(case)[0][0], replace(options, delay_ns=delay_ns, timeout_ns=TIMEOUT_NS))
        for case in cases  # all launches of a stage use the same kernel
        for options in case.options
        for delay_ns in ((0, DELAY_NS) if case.name in delayed_names else (0,))
    ]
    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(work) for work in expected]:
            future.result()


def check_all(cases):
    """Print one row per case, and the lines of the table."""
    for case in cases:
        for options in case.options:
            error, same = check(case, options)
            right = error < ERROR[case.chain.operators[0].out.dtype] and same
            message = "" if same else "differs between runs"
            yield (
                {"case": case.name, "error": error, "same": same},
                f"{'ok   ' if right else 'WRONG'} {case.name:24} error {error:.1e} {message}",
            )


def line(row):
    options = "" if row["options"] == repr(Options()) else row["options"]
    return (
        f"{row['case']:16} S{row['split']} {row['widths']!s:10} roof {row['roof_us']:7.1f} torch "
        f"{row['torch_us']:7.1f} stages {row['stages_us']:7.1f} "
        f"one {row['us']:7.1f} = {row['us'] / row['roof_us']:5.2f} roof, gain {row['stages_us'] / row['us']:.3f}, "
        f"torch/one {row['torch_us'] / row['us']:.3f}, "
        f"error {max(row['us_error'], row['stages_us_error']):.0e} {options}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", default="check,gemm,conv")
    parser.add_argument("--only", default="")
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    sets = {"check": checks, "gemm": partial(products, options.tune), "conv": convolutions}
    cases = {name: [c for c in sets[name]() if options.only in c.name] for name in options.set.split(",")}
    sys.stdout.write(f"clusters: { {s: max_clusters(s) for s in (1, 2, 4, 8)} }\n")
    precompile([case for some in cases.values() for case in some])
    rows, lines = [], []
    for row, text in check_all(cases.pop("check", [])):
        rows.append(row)
        lines.append(text)
    for case in (case for some in cases.values() for case in some):
        for row in measurement(case):
            rows.append(row)
            lines.append(line(row))
        torch.cuda.empty_cache()
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
