"""Times chains on a GPU: the same kernels under every scheduler, beside PyTorch in a graph and the roofline.

``python -m tileprof.runtime.measuring.measure OUT.json`` measures the chains of `tileprof.runtime.measuring.cases` and
writes rows with device, versions and date, what is worth most first: the persistent kernel with PyTorch beside it;
Triton's kernels where that one takes no chain; then, for a choice of sizes, Triton's kernels and torch.compile's. Rows
that OUT.json already holds, from the same device, stay. ``--missing`` measures only what it lacks, so that a run that
was cut short continues; ``--only PATTERN`` chooses chains by a part of their name, ``--budget SECONDS`` begins none
after that and says what is left, ``--triton`` and ``--compile`` take every size, and ``--limit SECONDS`` is what
torch.compile gets per chain. A failure to measure is printed, and the rest continues.

The persistent kernel is compiled for all chains before the first is timed: compilers beside it disturb the times, with
half of the cores idle, too. ``--prepare`` compiles it into $TILEPROF_CACHE on a machine without a GPU; the cache counts
where the compiler is the same. In a checkout, ``python -m tests.gpu.measuring.chains.add_predictions OUT.json`` then
puts predictions beside Triton's rows, and ``chain_summary`` there makes tables.

Every time is that of a captured CUDA graph: events around one replay, median and spread of `REPEATS`; the rows of a
chain take turns. A graph holds several instances of a chain, each with tensors of its own, so that weights do not stay
in L2 from one to the next; clocks are as found.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, Final

import torch

from tileprof.devices import of_driver
from tileprof.errors import UserError
from tileprof.policy.format import Policy
from tileprof.runtime.chain import Chain
from tileprof.runtime.kernels.triton_launch import kernel_of
from tileprof.runtime.measuring.baselines import COMPILED, EAGER, GRAPH, compiled_times
from tileprof.runtime.measuring.cases import Case, cases, convolution_pair, copy_pair, gated_mlp, gelu_mlp  # noqa: F401
from tileprof.runtime.measuring.stage_times import (
    instances,
    launch_all,
    persistent_stage_us,
    pipelines_of,
    rotated,
    stage_times,
)
from tileprof.runtime.measuring.timing import REPEATS, captured, time_eager, time_in_turn
from tileprof.runtime.persistent.cost import GRAPH_GAP_US, clusters_on
from tileprof.runtime.persistent.plan import SPLITS
from tileprof.runtime.persistent.predict import predicted_us
from tileprof.runtime.persistent.run import compile_for
from tileprof.runtime.persistent.supported import stage_plans
from tileprof.runtime.policy_on_gpu import GpuPipeline
from tileprof.runtime.schedulers import scheduler
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.operator import Operator
from tileprof.runtime.stages.view import View

PEAK_FLOPS: Final = 790e12
PEAK_BYTES_PER_S: Final = 4.3e12
"""Rates that an H200 reached in fp16 products and in copies: the roof of the table."""

TRITON_ROWS: Final = ("graph", "pdl", "hooks", "cusync", "unsynchronised")
PERSISTENT_ROWS: Final = ("persistent-stages", "persistent-pdl", "persistent", "persistent-unsynchronised")
"""Schedulers that a chain is measured under, where its tiles fit Triton's kernels and where they fit the persistent
one.
"""

_PREPARED_SMS: Final = 132
"""SMs of the GPU for which kernels are prepared: an H200."""

_WITH_POLICY: Final = ("cusync", "persistent")
"""Schedulers that are measured once per policy."""


def runnable(chain: Chain) -> tuple[str, ...]:
    """Return what a chain can be measured under on the GPU here: Triton's kernels and the persistent one ask for
    different tiles.

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


def row_name(schedule: str, number: int, policies: int) -> str:
    """Return what a row is called; a policy is named by its place where there are several."""
    return schedule if policies == 1 or schedule not in _WITH_POLICY else f"{schedule}, policy {number + 1}"


def measure(
    chain: Chain,
    policies: Sequence[Policy],
    *,
    schedulers: Sequence[str] = TRITON_ROWS,
    ahead: bool = False,
    beside_torch: bool = True,
) -> list[dict[str, Any]]:
    """Return rows of one chain, microseconds per run: PyTorch, and the chain's own kernels under every scheduler, those
    that wait with each policy. All but PyTorch without a graph are timed in turn.

    ``relative_error`` is against PyTorch's result; None where it is not a number, as poison makes it that no tile has
    overwritten in time.
    """
    count = instances(chain)
    first = GpuPipeline(policies[0], schedule=schedulers[0], unchecked=True)
    input_sets = rotated(first, count)
    expected_out = first.reference(input_sets[0])[next(iter(first.outputs))].double()

    def plain() -> list[Any]:
        return [first.reference(tensors) for tensors in input_sets]

    rows = [_row(chain, EAGER, time_eager(plain))] if beside_torch else []
    graphs = {GRAPH: captured(plain)} if beside_torch else {}
    row_pipelines: dict[str, tuple[str, list[GpuPipeline]]] = {}
    for name in schedulers:
        for number, policy in enumerate(policies if name in _WITH_POLICY else policies[:1]):
            row, pipelines = row_name(name, number, len(policies)), pipelines_of(policy, name, count, ahead=ahead)
            row_pipelines[row], graphs[row] = (name, pipelines), captured(partial(launch_all, pipelines, input_sets))
    for row, times in zip(graphs, time_in_turn(list(graphs.values())), strict=True):
        rows.append(_row(chain, row, times))
        if row in row_pipelines:
            name, pipelines = row_pipelines[row]
            for pipeline in pipelines:
                pipeline.check()
            rows[-1] |= {
                "relative_error": _error(pipelines[0], input_sets[0], expected_out),
                "correct": scheduler(name).correct,
            }
    return with_gains(rows)


def measure_compiled(chain: Chain, policy: Policy, limit_s: float) -> dict[str, Any]:
    """Return the row of torch.compile; without ``us`` and with ``said`` where it has none to show in ``limit_s``
    seconds.
    """
    pipeline = GpuPipeline(policy, schedule="graph", unchecked=True)
    times = compiled_times(pipeline.reference, rotated(pipeline, instances(chain)), limit_s)
    if isinstance(times, str):
        return {"row": COMPILED, "roof_us": round(_roof_us(chain), 3), "correct": True, "said": times}
    return _row(chain, COMPILED, times)


def _row(chain: Chain, name: str, times: Sequence[float]) -> dict[str, Any]:
    """Return a row of results; ``times`` are those of all instances together."""
    count, roof = instances(chain), _roof_us(chain)
    each = sorted(t / count for t in times)
    median = statistics.median(each)
    return {
        "row": name,
        "us": round(median, 3),
        "us_10": round(each[len(each) // 10], 3),
        "us_90": round(each[-1 - len(each) // 10], 3),
        "over_roof": round(median / roof, 3),
        "roof_us": round(roof, 3),
        "instances": count,
        "relative_error": None,
        "correct": True,
    }


def with_gains(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows, each with ``gain`` over the row named in ``gain_over``: the same kernels in stream order in a
    graph. Rows without such a one stay as they are.
    """
    us = {row["row"]: row["us"] for row in rows if "us" in row}
    for row in (row for row in rows if "us" in row):
        over = "persistent-stages" if row["row"].startswith("persistent") or "graph" not in us else "graph"
        if over in us:
            row["gain"], row["gain_over"] = 1 - row["us"] / us[over], over
        if GRAPH in us:
            row["of_torch"] = round(row["us"] / us[GRAPH], 3)
    return rows


def _error(pipeline: GpuPipeline, inputs: dict[str, Any], expected_out: Any) -> float | None:
    """Return how far the result of a run on poisoned memory is from PyTorch's; None: not a number."""
    pipeline.poison()
    out = pipeline(**inputs)
    pipeline.check()
    out = out[0] if isinstance(out, tuple) else out
    error = float((out.double() - expected_out).norm() / expected_out.norm())
    return error if isfinite(error) else None


def _roof_us(chain: Chain) -> float:
    """Return the larger of arithmetic and of what must come from and go to DRAM, stage by stage."""
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


def _policy(chain: Chain) -> Policy:
    memory = chain.memory()
    policy = chain.policy(memory)
    if not chain.verify(policy, memory).sound:
        raise AssertionError(f"the policy of {', '.join(chain.names)} is not sound")
    return policy


@dataclass(frozen=True, slots=True)
class Job:
    """A unit of measurement: rows of a case of a ``kind``, "persistent", "triton" or "compiled"; ``alone``: nothing
    else measures this case, so that PyTorch stands beside it.
    """

    case: Case
    kind: str
    alone: bool = False

    @property
    def name(self) -> str:
        return f"{self.case.name} ({self.kind})"

    @property
    def row(self) -> str:
        """One that is there if the job has been done."""
        return {"persistent": "persistent", "triton": "graph", "compiled": COMPILED}[self.kind]

    def run(self, limit_s: float) -> list[dict[str, Any]]:
        """Return its rows. Raises `UserError` where a kernel does not take the case."""
        if self.kind == "persistent":
            policy = _policy(self.case.wide)
            rows = measure(self.case.wide, [policy], schedulers=PERSISTENT_ROWS)
            _predict(rows, policy)
            return rows
        policy = _policy(self.case.chain)
        if self.kind == "compiled":
            return [measure_compiled(self.case.chain, policy, limit_s)]
        copies = self.case.name.startswith("copy")
        names = (
            TRITON_ROWS if copies else [name for name in TRITON_ROWS if name != "hooks"]
        )  # what these cost, copies say
        rows = measure(self.case.chain, [policy], schedulers=names, beside_torch=self.alone and not copies)
        times = stage_times(self.case.chain, of_driver(torch.cuda.get_device_name()))
        return [row | {"stages": [asdict(t) for t in times]} if row["row"] == "cusync" else row for row in rows]


def jobs(selected_cases: Sequence[Case], capability: tuple[int, int], options: Namespace) -> list[Job]:
    """Return what is measured, what is worth most first."""
    wide = [case for case in selected_cases if case.persistent and capability == (9, 0)]
    others = [case for case in selected_cases if case not in wide]
    return [
        *(Job(case, "persistent", alone=True) for case in wide),
        *(Job(case, "triton", alone=True) for case in others),
        *(Job(case, "triton") for case in wide if case.thorough or options.triton),
        *(Job(case, "compiled") for case in selected_cases if case.thorough or options.compile),
    ]


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
    begin_s = time.monotonic()
    options = _options(arguments)
    selected_cases = [case for case in cases() if any(word in case.name for word in options.only or [""])]
    if not selected_cases:
        raise SystemExit(f"no chain's name contains {' or '.join(map(repr, options.only))}")
    if not options.prepare:
        try:
            measured_on("--prepare compiles without one")
        except UserError as reason:
            raise SystemExit(str(reason)) from None
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if options.prepare:
            kernels = _compiling(pool, selected_cases, clusters_on(_PREPARED_SMS))
            failures = [f"{name}: {error}\n" for name, future in kernels.items() if (error := future.exception())]
            sys.stderr.writelines([*failures, f"{len(kernels) - len(failures)} chains are compiled\n"])
            return
        rows = _rows_on_file(options.out)
        planned_jobs = jobs(selected_cases, torch.cuda.get_device_capability(), options)
        if options.missing:
            there = {(row["chain"], row["row"]) for row in rows}
            planned_jobs = [job for job in planned_jobs if (job.case.name, job.row) not in there]
        persistent = [job.case for job in planned_jobs if job.kind == "persistent"]
        kernels = _compiling(pool, persistent, _clusters_here()) if persistent else {}
        if kernels:
            sys.stderr.write(f"compiling the persistent kernel for {len(kernels)} chains\n")
            wait(kernels.values())
        for place, job in enumerate(planned_jobs):
            if time.monotonic() - begin_s > options.budget:
                remaining = ", ".join(f"'{other.name}'" for other in planned_jobs[place:])
                sys.stderr.write(f"{options.budget:g} s are over; left: {remaining}\n")
                pool.shutdown(wait=False, cancel_futures=True)
                return
            rows = _with_rows_of_job(rows, job, _rows(job, kernels, options.limit))
            _write(options.out, rows)


def _clusters_here() -> Callable[[int], int]:
    """Return how many clusters of a size the GPU holds, asked now."""
    from tileprof.runtime.persistent.persistent_launch import max_clusters  # noqa: PLC0415 - talks to the driver

    return {split: max_clusters(split) for split in SPLITS}.__getitem__


def _compiling(
    pool: ThreadPoolExecutor, selected_cases: Sequence[Case], clusters: Callable[[int], int]
) -> dict[str, Future[None]]:
    """Return the persistent kernel of every case that it takes, being compiled, by the case's name."""

    def make(chain: Chain) -> None:
        compile_for(chain.policy(), chain, map(scheduler, PERSISTENT_ROWS), clusters)

    return {case.name: pool.submit(make, case.wide) for case in selected_cases if case.persistent}


def _rows(job: Job, kernels: dict[str, Future[None]], limit_s: float) -> list[dict[str, Any]]:
    """Return what a job measures; nothing, and a sentence, where it cannot."""
    begin_s = time.monotonic()
    try:
        if job.kind == "persistent":
            kernels[job.case.name].result()
        job_rows = job.run(limit_s)
    except (UserError, torch.OutOfMemoryError) as error:
        sys.stderr.write(f"{job.name} is left out: {str(error).splitlines()[0]}\n")
        return []
    finally:
        torch.cuda.empty_cache()
    for row in job_rows:
        gain = f"{100 * row['gain']:6.1f}%" if "gain" in row else ""
        result_text = f"{row['us']:9.2f} us  {row['over_roof']:.2f} x roof {gain}" if "us" in row else row["said"]
        sys.stderr.write(f"{job.case.name:60} {row['row']:28} {result_text}\n")
    sys.stderr.write(f"{'':60} {time.monotonic() - begin_s:.1f} s\n")
    return job_rows


def _with_rows_of_job(rows: list[dict[str, Any]], job: Job, job_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with those of a job: in the place of rows of the same names, and with gains over what is there
    now.
    """
    if not job_rows:
        return rows
    chain, names = job.case.name, {row["row"] for row in job_rows}
    other_rows = [row for row in rows if row["chain"] == chain and row["row"] not in names]
    chain_rows = with_gains([*other_rows, *({"chain": chain, **row} for row in job_rows)])
    others = [row for row in rows if row["chain"] != chain]
    place = next((n for n, row in enumerate(rows) if row["chain"] == chain), len(rows))
    return others[:place] + chain_rows + others[place:]


def _options(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(
        prog="python -m tileprof.runtime.measuring.measure", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("out", type=Path, nargs="?", metavar="OUT.json", help="where the rows go")
    add("--prepare", action="store_true", help="compile the persistent kernel for every chain and measure nothing")
    add("--only", action="append", metavar="PATTERN", help="chains whose name contains this; may be repeated")
    add("--missing", action="store_true", help="only what OUT.json lacks")
    add("--budget", type=float, default=float("inf"), metavar="SECONDS", help="begin no chain after so long")
    add("--triton", action="store_true", help="Triton's kernels wherever the persistent kernel runs")
    add("--compile", action="store_true", help="torch.compile for every chain, which takes minutes")
    add("--limit", type=float, default=45.0, metavar="SECONDS", help="time for torch.compile per chain (default 45)")
    options = parser.parse_args(arguments)
    if options.out is None and not options.prepare:
        parser.error("give OUT.json, or --prepare")
    return options


def _rows_on_file(path: Path) -> list[dict[str, Any]]:
    """Return rows of an earlier call on a device of the same name."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return list(document["rows"]) if document["device"] == torch.cuda.get_device_name() else []
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} holds no measured rows, and is not overwritten; name another file") from None


def measured_on(instead: str = "leave out --compare") -> dict[str, Any]:
    """Return device, versions and date of what is measured here; raises `UserError`, which proposes ``instead``,
    without a GPU.
    """
    if not torch.cuda.is_available():
        raise UserError(f"there is no GPU here that PyTorch can use, so nothing can be measured; {instead}")
    import triton  # noqa: PLC0415 - for its version

    return {
        "device": torch.cuda.get_device_name(),
        "driver": _driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "repeats": REPEATS,
        "roof": f"{PEAK_FLOPS / 1e12:g} TFLOP/s, {PEAK_BYTES_PER_S / 1e12:g} TB/s",
    }


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
