"""How long chains take on a GPU: the same kernels under every scheduler, beside PyTorch in a graph and the roofline.

``python -m tileprof.runtime.measure OUT.json [POLICIES]`` measures the chains of `tileprof.runtime.cases` and writes rows with device, versions and date; rows of
other chains that OUT.json already holds, from the same device, stay. ``--only PATTERN`` chooses chains by a part of their name, ``--budget SECONDS`` begins none
after that and says which are left, ``--triton`` adds Triton's kernels where the persistent kernel runs, ``--compile`` torch.compile.
``--prepare POLICIES`` writes the policies first, on a machine without a GPU.

Every time is that of a captured CUDA graph: events around one replay, median and spread of `REPEATS`. A graph holds several instances of a chain, each
with tensors of its own, so that weights do not stay in L2 from one to the next; clocks are as found.
"""

from __future__ import annotations

import datetime as dt
import json
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, Final

import torch

from tileprof.devices import Device, occupancy
from tileprof.errors import UserError
from tileprof.policy.format import Policy, Stage, load_policy
from tileprof.runtime.cases import Case, cases, convolution_pair, copy_pair, gated_mlp, gelu_mlp  # noqa: F401 - also for those who measure others
from tileprof.runtime.chain import Chain
from tileprof.runtime.gpu import GpuPipeline
from tileprof.runtime.kernels.launch import kernel_of
from tileprof.runtime.persistent.cost import GRAPH_GAP_US
from tileprof.runtime.persistent.predict import predicted_us
from tileprof.runtime.persistent.takes import stage_plans
from tileprof.runtime.schedulers import scheduler
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.operator import Operator
from tileprof.runtime.stages.view import View

REPEATS: Final = 30
_ROTATED_BYTES: Final = 200 * 2**20
"""Bytes that the instances of a graph touch together: far above an L2 of 60 MB."""

PEAK_FLOPS: Final = 790e12
PEAK_BYTES_PER_S: Final = 4.3e12
"""What an H200 reached in fp16 products and in copies: the roof of the table."""

TRITON_ROWS: Final = ("graph", "pdl", "hooks", "cusync", "unsynchronised")
PERSISTENT_ROWS: Final = ("persistent-stages", "persistent-pdl", "persistent", "persistent-unsynchronised")
"""Schedulers that a chain is measured under, where its tiles fit Triton's kernels and where they fit the persistent one."""

_TORCH: Final = "PyTorch in a graph"

_WITH_POLICY: Final = ("cusync", "persistent")
"""Schedulers that are measured once a policy."""


def runnable(chain: Chain) -> tuple[str, ...]:
    """What a chain can be measured under on the GPU here: Triton's kernels and the persistent one ask for different tiles.

    Raises `UserError` with the reason of Triton's where neither takes the chain's.
    """
    persistent = torch.cuda.get_device_capability() == (9, 0) and _fits(lambda: stage_plans(chain))
    try:
        for operator in chain.operators:
            kernel_of(operator)
    except UserError:
        if not persistent:
            raise
        return PERSISTENT_ROWS
    return TRITON_ROWS + (PERSISTENT_ROWS if persistent else ())


def _fits(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except UserError:
        return False
    return True


def captured(work: Callable[[], Any]) -> Any:
    """A CUDA graph of what ``work`` launches, which runs once before it is captured."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        work()
    return graph


def time_graph(work: Callable[[], Any]) -> list[float]:
    """Microseconds of `REPEATS` replays of what ``work`` launches."""
    graph = captured(work)
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
    return schedule if policies == 1 or schedule not in _WITH_POLICY else f"{schedule}, policy {number + 1}"


def measure(
    chain: Chain,
    policies: Sequence[Policy],
    *,
    schedulers: Sequence[str] = TRITON_ROWS,
    ahead: bool = False,
    torch_rows: bool = True,
    compiled: bool = False,
) -> list[dict[str, Any]]:
    """Rows of one chain, microseconds a run of it: PyTorch, and the chain's own kernels under every scheduler, those that wait with each policy.

    ``relative_error`` is against PyTorch's result; None where it is not a number, as poison makes it that no tile has overwritten in time. ``compiled``:
    torch.compile too, which takes minutes.
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

    first = GpuPipeline(policies[0], schedule=schedulers[0], unchecked=True)
    given = _rotated(first, instances)
    wanted = first.reference(given[0])[next(iter(first.outputs))].double()
    if torch_rows:
        for name, times in _torch_rows(first, given, compiled=compiled):
            row(name, times, None)
    for name in schedulers:
        for number, policy in enumerate(policies if name in _WITH_POLICY else policies[:1]):
            pipelines = _pipelines(policy, name, instances, ahead=ahead)
            times = time_graph(partial(_launch_all, pipelines, given))
            for pipeline in pipelines:
                pipeline.check()
            row(
                row_name(name, number, len(policies)),
                times,
                _error(pipelines[0], given[0], wanted),
                correct=scheduler(name).correct,
            )
    return with_gains(found)


def with_gains(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, each with ``gain`` over the row named in ``gain_over``: the same kernels in stream order in a graph. Rows without such a one stay as they are."""
    us = {row["row"]: row["us"] for row in rows}
    for row in rows:
        over = "persistent-stages" if row["row"].startswith("persistent") or "graph" not in us else "graph"
        if over in us:
            row["gain"], row["gain_over"] = 1 - row["us"] / us[over], over
        if _TORCH in us:
            row["of_torch"] = round(row["us"] / us[_TORCH], 3)
    return rows


def _pipelines(policy: Policy, schedule: str, instances: int, *, ahead: bool = False) -> list[GpuPipeline]:
    first = GpuPipeline(policy, schedule=schedule, ahead=ahead, unchecked=True)
    return [first, *(first.twin() for _ in range(instances - 1))]


def _error(pipeline: GpuPipeline, given: dict[str, Any], wanted: Any) -> float | None:
    """How far the result of a run on poisoned memory is from PyTorch's; None: not a number."""
    pipeline.poison()
    out = pipeline(**given)
    pipeline.check()
    out = out[0] if isinstance(out, tuple) else out
    error = float((out.double() - wanted).norm() / wanted.norm())
    return error if isfinite(error) else None


def _torch_rows(
    pipeline: GpuPipeline, given: list[dict[str, Any]], *, compiled: bool
) -> Iterator[tuple[str, list[float]]]:
    """PyTorch's own kernels: one after the other, in a graph, and compiled where that works."""

    def all_of_them() -> list[Any]:
        return [pipeline.reference(g) for g in given]

    yield "PyTorch eager", time_eager(all_of_them)
    yield _TORCH, time_graph(all_of_them)
    if not compiled:
        return
    try:
        function = torch.compile(pipeline.reference, mode="max-autotune-no-cudagraphs", dynamic=False)
        times = time_graph(lambda: [function(g) for g in given])
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
        pipelines = _pipelines(policy, "graph", instances)
        given = _rotated(pipelines[0], instances)
        us = statistics.median(time_graph(partial(_launch_all, pipelines, given))) / instances
        (kernel,) = pipelines[0].compiled(given[0])
        threads, registers, shared = 32 * kernel.metadata.num_warps, int(kernel.n_regs), int(kernel.metadata.shared)
        blocks = occupancy(device, threads, registers, shared).blocks_per_sm
        found.append(StageTime(us, max(1, blocks), threads, registers, shared))
    return found


def persistent_stage_us(policy: Policy) -> list[float]:
    """Every stage of the persistent kernel alone, in a graph, one launch after the other: what `predicted_us` starts from."""
    chain = Chain.of_policy(policy)
    instances = _instances(chain)
    pipelines = _pipelines(policy, "persistent-stages", instances)
    given = _rotated(pipelines[0], instances)
    _launch_all(pipelines, given)  # stages then read numbers, not poison: arithmetic on these takes less power
    found = []
    for number in range(len(chain.operators)):
        work = partial(_launch_all, pipelines, given, number)
        found.append(statistics.median(time_graph(work)) / instances)
    return found


def _instances(chain: Chain) -> int:
    """Copies of the chain in one graph, so that what they touch together is far above L2."""
    bytes_ = sum(max(v.elements for v in views) * views[0].item_bytes for views in chain.tensors().values())
    return max(2, -(-_ROTATED_BYTES // bytes_))


def _rotated(pipeline: GpuPipeline, instances: int) -> list[dict[str, Any]]:
    given = [pipeline.example()]
    return given + [{name: tensor.clone() for name, tensor in given[0].items()} for _ in range(instances - 1)]


def _launch_all(pipelines: list[GpuPipeline], given: list[dict[str, Any]], stage: int | None = None) -> None:
    for pipeline, tensors in zip(pipelines, given, strict=True):
        if stage is None:
            pipeline.launch(tensors)
        else:
            pipeline.launch_stage(stage, tensors)


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
    """Write the policies of every case, checked against what its tiles touch."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(cases()):
        for chain, path in zip((case.chain, case.wide), _files(folder, number), strict=True):
            if chain is not None:
                _policy(chain).save(path, force=True)


def _files(folder: Path, number: int) -> tuple[Path, Path]:
    return folder / f"{number}.json", folder / f"{number}-wide.json"


def _policy(chain: Chain) -> Policy:
    memory = chain.memory()
    policy = chain.policy(memory)
    if not chain.verify(policy, memory).sound:
        raise AssertionError(f"the policy of {', '.join(chain.names)} is not sound")
    return policy


def measure_case(case: Case, files: tuple[Path, Path] | None, options: Namespace) -> list[dict[str, Any]]:
    """Rows of a case under what its chains fit; ``files``: where `prepare` has put its policies."""
    rows: list[dict[str, Any]] = []
    capability = torch.cuda.get_device_capability()
    if case.wide is not None and capability == (9, 0):
        policy = _policy(case.wide) if files is None else load_policy(files[1])
        rows += measure(case.wide, [policy], schedulers=PERSISTENT_ROWS, compiled=options.compile)
        _predict(rows, policy)
    if not rows or options.triton:
        policy = _policy(case.chain) if files is None else load_policy(files[0])
        rows += measure(
            case.chain, [policy], schedulers=TRITON_ROWS, torch_rows=not rows and not case.name.startswith("copy"), compiled=options.compile
        )  # fmt: skip
    return rows


def _predict(rows: list[dict[str, Any]], policy: Policy) -> None:
    """Put the prediction beside the rows of the persistent kernel."""
    stage_us = persistent_stage_us(policy)
    plan = GpuPipeline(policy, schedule="persistent", unchecked=True).plan
    if plan is None:
        return
    us = {"persistent-stages": sum(stage_us), "persistent": predicted_us(plan, stage_us, GRAPH_GAP_US)}
    for row in rows:
        if row["row"] in us:
            row["stage_us"] = [round(each, 3) for each in stage_us]
            row["predicted_us"] = round(us[row["row"]], 3)
            row["predicted_gain"] = round(1 - us[row["row"]] / us["persistent-stages"], 4)


def main(arguments: Sequence[str]) -> None:
    """See the module."""
    options = _options(arguments)
    if options.prepare:
        prepare(options.prepare)
        return
    begun = time.monotonic()
    rows = _known(options.out)
    chosen = [(n, case) for n, case in enumerate(cases()) if any(word in case.name for word in options.only or [""])]
    for place, (number, case) in enumerate(chosen):
        if time.monotonic() - begun > options.budget:
            left = ", ".join(f"'{c.name}'" for _, c in chosen[place:])
            sys.stderr.write(f"{options.budget:g} s are over; left: {left}\n")
            return
        found = measure_case(case, _files(options.policies, number) if options.policies else None, options)
        rows = [row for row in rows if row["chain"] != case.name] + [{"chain": case.name, **row} for row in found]
        torch.cuda.empty_cache()
        for row in found:
            gain = f"{100 * row['gain']:6.1f}%" if "gain" in row else ""
            sys.stderr.write(
                f"{case.name:60} {row['row']:28} {row['us']:9.2f} us  {row['over_roof']:.2f} x roof {gain}\n"
            )
        _write(options.out, rows)


def _options(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(prog="python -m tileprof.runtime.measure", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("out", type=Path, nargs="?", metavar="OUT.json", help="where the rows go")
    add("policies", type=Path, nargs="?", metavar="POLICIES", help="the folder that --prepare has written")
    add("--prepare", type=Path, metavar="POLICIES", help="write the policies and measure nothing")
    add("--only", action="append", metavar="PATTERN", help="chains whose name contains this; may be repeated")
    add("--budget", type=float, default=float("inf"), metavar="SECONDS", help="begin no chain after so long")
    add("--triton", action="store_true", help="Triton's kernels too where the persistent kernel runs")
    add("--compile", action="store_true", help="torch.compile too, which takes minutes a chain")
    options = parser.parse_args(arguments)
    if options.out is None and options.prepare is None:
        parser.error("give OUT.json, or --prepare POLICIES")
    return options


def _known(path: Path) -> list[dict[str, Any]]:
    """Rows of an earlier call on a device of the same name."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return list(found["rows"]) if found["device"] == torch.cuda.get_device_name() else []


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
