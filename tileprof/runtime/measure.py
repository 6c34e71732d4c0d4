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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from tileprof.devices import Device, occupancy
from tileprof.errors import UserError
from tileprof.policy.format import Policy, Stage, load_policy
from tileprof.runtime.chain import Chain
from tileprof.runtime.gpu import GpuPipeline
from tileprof.runtime.schedulers import scheduler
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


ROWS: Final = ("graph", "pdl", "hooks", "cusync", "unsynchronised")
"""Schedulers that a chain is measured under."""


@dataclass(frozen=True, slots=True)
class Case:
    """A chain to measure."""

    name: str
    chain: Chain
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


def time_eager(work: Callable[[], Any]) -> list[float]:
    """Microseconds of `REPEATS` runs of what ``work`` launches, without a graph."""
    times = []
    for number in range(REPEATS + 5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        if number >= 5:
            times.append(1000 * begin.elapsed_time(end))
    return times


def row_name(schedule: str, number: int, policies: int) -> str:
    """What a row is called; a policy is named by its place where there are several."""
    return schedule if policies == 1 or schedule != "cusync" else f"cusync, policy {number + 1}"


def measure(
    chain: Chain,
    policies: Sequence[Policy],
    *,
    schedulers: Sequence[str] = ROWS,
    ahead: bool = False,
    torch_rows: bool = True,
) -> list[dict[str, Any]]:
    """Rows of one chain, microseconds a run of it: PyTorch, and the chain's own kernels under every scheduler, ``cusync`` with each policy.

    ``relative_error`` is against PyTorch's result; None where it is not a number, as poison makes it that no tile has overwritten in time.
    """
    instances = _instances(chain)
    roof = _roof_us(chain)
    found: list[dict[str, Any]] = []

    def row(name: str, times: list[float], error: float | None, *, correct: bool = True) -> None:
        each = sorted(t / instances for t in times)
        median = statistics.median(each)
        found.append({
            "row": name, "us": round(median, 3), "us_10": round(each[len(each) // 10], 3), "us_90": round(each[-1 - len(each) // 10], 3),
            "over_roof": round(median / roof, 3), "roof_us": round(roof, 3), "instances": instances, "relative_error": error,
            "correct": correct,
        })  # fmt: skip

    first = GpuPipeline(policies[0], schedule="graph", unchecked=True)
    given = _rotated(first, instances)
    wanted = first.reference(given[0])
    if torch_rows:
        for name, times in _torch_rows(first, given):
            row(name, times, None)
    for name in schedulers:
        for number, policy in enumerate(policies if name == "cusync" else policies[:1]):
            pipelines = [GpuPipeline(policy, schedule=name, ahead=ahead, unchecked=True) for _ in given]
            times = time_graph(partial(_launch_all, pipelines, given))
            for pipeline in pipelines:
                pipeline.check()
            pipelines[0].poison()
            out = pipelines[0](**given[0])
            pipelines[0].check()
            out = out[0] if isinstance(out, tuple) else out
            exact = wanted[next(iter(pipelines[0].outputs))].double()
            error = float((out.double() - exact).norm() / exact.norm())
            finite = error == error  # noqa: PLR0124 - NaN differs from itself
            row(
                row_name(name, number, len(policies)),
                times,
                error if finite else None,
                correct=scheduler(name).correct,
            )
    return found


def _torch_rows(pipeline: GpuPipeline, given: list[dict[str, Any]]) -> Iterator[tuple[str, list[float]]]:
    """PyTorch's own kernels: one after the other, in a graph, and compiled where that works."""

    def all_of_them() -> list[Any]:
        return [pipeline.reference(g) for g in given]

    yield "PyTorch eager", time_eager(all_of_them)
    yield "PyTorch in a graph", time_graph(all_of_them)
    try:
        compiled = torch.compile(pipeline.reference, mode="max-autotune-no-cudagraphs", dynamic=False)
        times = time_graph(lambda: [compiled(g) for g in given])
    except Exception as error:  # noqa: BLE001 - a compiler fails in ways of its own; the row is left out and the reader told
        sys.stderr.write(f"torch.compile max-autotune does not run here: {str(error).splitlines()[0][:200]}\n")
    else:
        yield "torch.compile max-autotune", times


@dataclass(frozen=True, slots=True)
class StageTime:
    """A stage's kernel alone: microseconds in a graph, one after the other, and what a block takes."""

    us: float
    blocks_per_sm: int
    threads: int
    registers: int
    shared_bytes: int


def stage_times(chain: Chain, device: Device) -> list[StageTime]:
    """Every stage of a chain by itself on the GPU here, weights rotated out of L2."""
    found = []
    for name, operator in zip(chain.names, chain.operators, strict=True):
        alone = Chain((name,), (operator,))
        policy = Policy(
            (Stage(name, operator.grid, op=operator.NAME, operator=operator.describe()),),
            (),
            (),
            guard={"renamed": True},
        )
        instances = _instances(alone)
        pipelines = [GpuPipeline(policy, schedule="graph", unchecked=True) for _ in range(instances)]
        given = _rotated(pipelines[0], instances)
        us = statistics.median(time_graph(partial(_launch_all, pipelines, given))) / instances
        (kernel,) = pipelines[0].compiled(given[0])
        threads, registers, shared = 32 * kernel.metadata.num_warps, int(kernel.n_regs), int(kernel.metadata.shared)
        blocks = occupancy(device, threads, registers, shared).blocks_per_sm
        found.append(StageTime(us, max(1, blocks), threads, registers, shared))
    return found


def _instances(chain: Chain) -> int:
    """Copies of the chain in one graph, so that what they touch together is far above L2."""
    bytes_ = sum(max(v.elements for v in views) * views[0].item_bytes for views in chain.tensors().values())
    return max(2, -(-_ROTATED_BYTES // bytes_))


def _rotated(pipeline: GpuPipeline, instances: int) -> list[dict[str, Any]]:
    given = [pipeline.example()]
    return given + [{name: tensor.clone() for name, tensor in given[0].items()} for _ in range(instances - 1)]


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
        found = measure(case.chain, [policy], ahead=case.ahead, torch_rows=not case.name.startswith("copy"))
        rows += [{"chain": case.name, **row} for row in found]
        torch.cuda.empty_cache()
        for row in found:
            sys.stderr.write(f"{case.name:60} {row['row']:28} {row['us']:9.2f} us  {row['over_roof']:.2f} x roof\n")
        _write(Path(arguments[0]), rows)


def measured_on() -> dict[str, Any]:
    """Device, versions and date of what is measured here; raises `UserError` without a GPU."""
    if not torch.cuda.is_available():
        raise UserError(
            "there is no GPU here that PyTorch can use, so that nothing can be measured; leave out --compare"
        )
    import triton  # noqa: PLC0415 - for its version

    return {
        "device": torch.cuda.get_device_name(), "driver": _driver(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "triton": triton.__version__, "date": dt.datetime.now(dt.UTC).date().isoformat(), "repeats": REPEATS,
        "roof": f"{PEAK_FLOPS / 1e12:g} TFLOP/s, {PEAK_BYTES_PER_S / 1e12:g} TB/s",
    }  # fmt: skip


def _driver() -> str:
    try:
        text = Path("/sys/module/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    return text.strip()


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps(measured_on() | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
