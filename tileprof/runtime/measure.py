"""How long chains take on a GPU: the same kernels under every scheduler, beside PyTorch in a graph and the roofline.

``python -m tileprof.runtime.measure OUT.json [POLICIES]`` measures the chains of `chains` and writes rows with device, versions and date;
``--prepare POLICIES`` writes their policies first, on a machine without a GPU.

Every time is that of a captured CUDA graph: events around one replay, median and spread of `REPEATS`. A graph holds several instances of a chain, each
with tensors of its own, so that weights do not stay in L2 from one to the next; clocks are as found.
"""

from __future__ import annotations

import datetime as dt
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from tileprof.policy.format import Policy, load_policy
from tileprof.runtime.chain import Chain
from tileprof.runtime.gpu import GpuPipeline
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.operator import Operator
from tileprof.runtime.stages.pointwise import Pointwise
from tileprof.runtime.stages.view import View

REPEATS: Final = 30
_ROTATED_BYTES: Final = 200 * 2**20
"""Bytes that the instances of a graph touch together: far above an L2 of 60 MB."""

PEAK_FLOPS: Final = 790e12
PEAK_BYTES_PER_S: Final = 4.3e12
"""What an H200 reached in fp16 products and in copies: the roof of the table."""


@dataclass(frozen=True, slots=True)
class Case:
    """A chain to measure; ``rows`` are the schedulers whose rows it gets."""

    name: str
    chain: Chain
    rows: tuple[str, ...] = ("graph", "pdl", "hooks", "cusync", "unsynchronised")
    ahead: bool = False


def copy_pair(tiles: int) -> Chain:
    """Two copies, tile by tile: nothing but synchronisation. Each tile is 8 KiB, 16 of them fill an SM."""
    shape = 4 * tiles, 1024
    x, y, z = (View.contiguous(name, shape, "float16") for name in "xyz")
    return Chain(("first", "second"), (Pointwise(x, y, tile=(4, 1024)), Pointwise(y, z, tile=(4, 1024))))


def gelu_mlp(tokens: int, up: tuple[int, int], down: tuple[int, int], width: int = 12288, inner: int = 6144) -> Chain:
    """GPT-3's MLP on one of eight GPUs; ``up`` and ``down`` are the tiles of its products. Weights lie as nn.Linear keeps them."""
    x, h, y = (View.contiguous(n, (tokens, c), "float16") for n, c in (("x", width), ("h", inner), ("y", width)))
    first = Gemm(x, View("w1", (width, inner), (1, width), "float16"), h, tile=up, epilogue="gelu")
    second = Gemm(h, View("w2", (inner, width), (1, inner), "float16"), y, tile=down)
    return Chain(("up", "down"), (first, second))


def gated_mlp(tokens: int, up: tuple[int, int], down: tuple[int, int], width: int = 8192, inner: int = 2816) -> Chain:
    """LLaMA-65B's MLP on one of eight GPUs, gate and up in one product; 2752 is padded to 2816."""
    x, h, y = (View.contiguous(n, (tokens, c), "float16") for n, c in (("x", width), ("h", inner), ("y", width)))
    first = Gemm(x, View("w1", (width, 2 * inner), (1, width), "float16"), h, tile=up, epilogue="silu_gate")
    second = Gemm(h, View("w2", (inner, width), (1, inner), "float16"), y, tile=down)
    return Chain(("gate and up", "down"), (first, second))


def convolution_pair(batch: int, size: int, channels: int, tile: tuple[int, int]) -> Chain:
    """Two 3x3 convolutions of equal width with bias and ReLU, as in a residual block."""
    x, h, y = (View.contiguous(n, (batch, size, size, channels), "float16") for n in "xhy")
    w1, w2 = (View.contiguous(n, (channels, 3, 3, channels), "float16") for n in ("w1", "w2"))
    b1, b2 = (View.contiguous(n, (channels,), "float16") for n in ("b1", "b2"))
    first = Conv2d(x, w1, h, b1, tile=tile, padding=1, epilogue="relu")
    second = Conv2d(h, w2, y, b2, tile=tile, padding=1, epilogue="relu")
    return Chain(("first", "second"), (first, second))


def cases() -> Iterator[Case]:
    """What is measured."""
    for waves in (1, 4, 16):
        yield Case(f"copy pair, {waves} waves of 2112 tiles", copy_pair(2112 * waves))
    for tokens in (64, 128, 256, 512, 1024, 2048):
        height = min(tokens, 128)
        chain = gelu_mlp(tokens, (height, 128), (height, 128))
        yield Case(f"GPT-3 MLP TP8, {tokens} tokens, tile {height} x 128", chain)
    for tokens in (64, 256, 1024):
        height = min(tokens, 128)
        chain = gated_mlp(tokens, (height, 64), (height, 128))
        yield Case(f"LLaMA-65B MLP TP8, {tokens} tokens, tiles {height} x 64 and {height} x 128", chain)
    for batch in (1, 8, 32):
        for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512)):
            tile = (64, 64) if batch * size * size * channels >= 132 * 4096 else (16, 64)
            name = f"two 3x3 convolutions, {size} x {size} x {channels}, batch {batch}, tile {tile[0]} x {tile[1]}"
            yield Case(name, convolution_pair(batch, size, channels, tile))


def time_graph(work: Callable[[], Any]) -> list[float]:
    """Microseconds of `REPEATS` replays of what ``work`` launches."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        work()
    times = []
    for number in range(REPEATS + 5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if number >= 5:
            times.append(1000 * begin.elapsed_time(end))
    return times


def measure(case: Case, policy: Policy) -> list[dict[str, Any]]:
    """Rows of one chain: each scheduler, PyTorch in a graph, and the roof; microseconds a chain."""
    bytes_ = sum(max(v.elements for v in views) * views[0].item_bytes for views in case.chain.tensors().values())
    instances = max(2, -(-_ROTATED_BYTES // bytes_))
    roof = _roof_us(case.chain)
    found: list[dict[str, Any]] = []

    def row(scheduler: str, times: list[float], error: float | None) -> None:
        each = sorted(t / instances for t in times)
        median = statistics.median(each)
        found.append({
            "chain": case.name, "scheduler": scheduler, "us": round(median, 3), "us_10": round(each[len(each) // 10], 3),
            "us_90": round(each[-1 - len(each) // 10], 3), "over_roof": round(median / roof, 3), "roof_us": round(roof, 3), "instances": instances,
            "relative_error": error,
        })  # fmt: skip

    first = GpuPipeline(policy, schedule="graph", unchecked=True)
    given = [first.example()]
    given += [{name: tensor.clone() for name, tensor in given[0].items()} for _ in range(instances - 1)]
    wanted = first.reference(given[0])
    row("PyTorch in a graph", time_graph(lambda: [first.reference(g) for g in given]), None)
    for name in case.rows:
        pipelines = [GpuPipeline(policy, schedule=name, ahead=case.ahead, unchecked=True) for _ in given]
        times = time_graph(partial(_launch_all, pipelines, given))
        for pipeline in pipelines:
            pipeline.check()
        pipelines[0].poison()
        out = pipelines[0](**given[0])
        pipelines[0].check()
        exact = wanted[next(iter(pipelines[0].outputs))].double()
        error = float((out.double() - exact).norm() / exact.norm())
        row(name, times, None if error != error else error)  # noqa: PLR0124 - NaN differs from itself
    return found


def _launch_all(pipelines: list[GpuPipeline], given: list[dict[str, Any]]) -> None:
    for pipeline, tensors in zip(pipelines, given, strict=True):
        pipeline.launch(tensors)


def _roof_us(chain: Chain) -> float:
    """The larger of arithmetic and of what must come from and go to DRAM, stage by stage."""
    total = 0.0
    for operator in chain.operators:
        views = operator.views()
        bytes_ = sum(_numel(view) * view.item_bytes for view in views.values())
        total += max(_flops(operator) / PEAK_FLOPS, bytes_ / PEAK_BYTES_PER_S)
    return 1e6 * total


def _flops(operator: Operator) -> int:
    match operator:
        case Gemm(a=a, b=b):
            return 2 * _numel(a) * b.shape[-1]
        case Conv2d(out=out, weight=weight):
            return 2 * _numel(out) * _numel(weight) // weight.shape[0]
    return 0


def _numel(view: View) -> int:
    total = 1
    for size in view.shape:
        total *= size
    return total


def prepare(folder: Path) -> None:
    """Write the policy of every case, checked against what its tiles touch."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(cases()):
        memory = case.chain.memory()
        policy = case.chain.policy(memory)
        if not case.chain.verify(policy, memory).sound:
            raise AssertionError(f"the policy of {case.name} is not sound")
        policy.save(folder / f"{number}.json", force=True)


def main(arguments: list[str]) -> None:
    """See the module."""
    if arguments[0] == "--prepare":
        prepare(Path(arguments[1]))
        return
    policies = Path(arguments[1]) if len(arguments) > 1 else None
    rows: list[dict[str, Any]] = []
    for number, case in enumerate(cases()):
        policy = case.chain.policy() if policies is None else load_policy(policies / f"{number}.json")
        rows += measure(case, policy)
        torch.cuda.empty_cache()
        for row in rows[-len(case.rows) - 1 :]:
            sys.stderr.write(
                f"{row['chain']:60} {row['scheduler']:20} {row['us']:9.2f} us  {row['over_roof']:.2f} x roof\n"
            )
        _write(Path(arguments[0]), rows)


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    import triton  # noqa: PLC0415 - for its version

    header = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton.__version__,
        "date": dt.datetime.now(dt.UTC).date().isoformat(), "repeats": REPEATS,
        "roof": f"{PEAK_FLOPS / 1e12:g} TFLOP/s, {PEAK_BYTES_PER_S / 1e12:g} TB/s", "rows": rows,
    }  # fmt: skip
    path.write_text(json.dumps(header, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
