"""Times of stacks of transformer blocks in one launch, stage by stage.

python encoder_probe.py CASE...; a case is MODEL[:cluster=2][:width=96][:splits=2][:layers=12][:stamps], or whole:MODEL
for a model behind torch.compile and its kernels. Memory: [:stages=3] per generation, or [:sets], used again by the
next run alone; [:wipe], made absent by a warp of its own.
"""

from __future__ import annotations

import statistics
import sys
import traceback
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[4]))
from tests.support.runtime.encoder_programs import inputs_of, post_norm, pre_norm
from tileprof.runtime.encoder import reference
from tileprof.runtime.encoder.encoder_build import KERNEL
from tileprof.runtime.encoder.encoder_launch import Launcher, report
from tileprof.runtime.encoder.memory import memory_of
from tileprof.runtime.encoder.plan import Plan, cluster_for, plan_of
from tileprof.runtime.encoder.program import Program
from tileprof.runtime.encoder.source import Options, header
from tileprof.runtime.persistent.persistent_launch import max_clusters

REPLAYS = 30

MODELS = {
    "gpt2": lambda layers: pre_norm(128, 768, layers),
    "bert": lambda layers: post_norm(128, 768, layers),
    "vit": lambda layers: pre_norm(197, 768, layers, k_major=True, causal=False, epilogue="gelu"),
    "bert4": lambda layers: post_norm(4 * 128, 768, layers, length=128),
    "small": lambda layers: pre_norm(197, 384, layers, k_major=True, causal=False, epilogue="gelu"),
}


def say(line: str) -> None:
    """Print at once, since a job may be interrupted."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run_times(launcher: Launcher, arguments: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Return median and shortest microseconds of a replay of one launch."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launcher(arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        launcher(arguments)
    return replayed(graph)


def replayed(graph: torch.cuda.CUDAGraph) -> tuple[float, float]:
    """Return median and shortest microseconds of a replay."""
    times = []
    for _ in range(REPLAYS + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return statistics.median(times[3:]), min(times[3:])


def stages_of(launcher: Launcher) -> None:
    """What the last run's stages took: their tasks' medians, and how much later than the stage before each ended, both
    of the layers but the first and the last.
    """
    plan = launcher.plan
    stamps = launcher.times().cpu().double()
    stamps -= stamps[stamps[:, 0] > 0, 0].min()
    rows: dict[int, list[int]] = defaultdict(list)
    for number, task in enumerate(plan.tasks):
        rows[task.stage].append(number)
    ends = {stage: stamps[result, 3].max().item() for stage, result in rows.items()}
    kinds: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for number, stage in enumerate(plan.stages):
        result = stamps[rows[number]]
        wait, work, store = ((result[:, k + 1] - result[:, k]).median().item() for k in range(3))
        ready = result[:, 1].min().item(), result[:, 1].max().item()
        before = ends.get(number - 1, 0.0)
        name = f"{type(stage).__name__} {stage.name.rsplit('_', 1)[0].rstrip('0123456789')}"
        split = getattr(stage, "splits", 0)
        kinds[f"{name} s{split} n{len(result)}"].append(
            (ends[number] - before, ready[0] - before, ready[1] - before, wait, work, store)
        )
    say("    stage: ends behind the one before; first and last ready behind its end; a task's load, work, store")
    for name, times in kinds.items():
        medians = [statistics.median(column) for column in zip(*times, strict=True)]
        say(f"    {name:32} x{len(times):3} " + " ".join(f"{t / 1e3:8.2f}" for t in medians))


def plan_and_options(case: str) -> tuple[Plan, dict[str, int]]:
    """Return the plan of a case, and its options."""
    name, *options = case.split(":")
    option_values = {key: int(value or 1) for key, _, value in (option.partition("=") for option in options)}
    program, cluster = MODELS[name](option_values.get("layers", 12)), option_values.get("cluster", 0)
    cluster = cluster or cluster_for(program)
    blocks = max_clusters(cluster) * cluster
    return plan_of(program, blocks, cluster, option_values.get("width"), option_values.get("splits")), option_values


INPUTS: dict[str, dict[str, torch.Tensor]] = {}


def given_to(name: str, program: Program) -> dict[str, torch.Tensor]:
    """Return inputs of a model, made once, since the CPU's random numbers take a second."""
    if name not in INPUTS:
        INPUTS.clear()
        INPUTS[name] = inputs_of(program, "cuda")
    return INPUTS[name]


def one(case: str) -> str:
    plan, chosen = plan_and_options(case)
    program = plan.program
    inputs = given_to(case.split(":", maxsplit=1)[0], program)
    memory = memory_of(plan, reuse="sets" not in chosen, stages=chosen.get("stages", 3))
    launcher = Launcher(plan, torch.device("cuda"), Options(wiping_warp="wipe" in chosen), memory)
    (out,) = (each.clone() for each in launcher(inputs))
    report(launcher)
    expected = reference.run(program, inputs)["out"].float()
    error = ((out.float() - expected).norm() / expected.norm()).item()
    same = all(torch.equal(launcher(inputs)[0], out) for _ in range(20))
    median, least = run_times(launcher, inputs)
    tasks = max(map(len, plan.blocks))
    line = f"{case:36} {median:7.1f} us (least {least:.1f}), {len(plan.blocks)} blocks, width {plan.width}, "
    line += f"{memory.bytes / 1e6:.1f} MB, at most {tasks} tasks, error {error:.1e}, same bits {same}"
    say(line)
    if "stamps" in chosen:
        stamp_launcher = Launcher(
            plan, torch.device("cuda"), Options(stamps=True, wiping_warp="wipe" in chosen), memory
        )
        for _ in range(3):
            stamp_launcher(inputs)
        report(stamp_launcher)
        stages_of(stamp_launcher)
    return line


WHOLE = {"gpt2": "GPT-2, 128 tokens", "bert": "BERT base, 128 tokens", "vit": "ViT-B/16"}


def whole(case: str) -> str:
    """Return a model behind torch.compile, and the kernels of a call."""
    from tests.gpu.measuring.models.model_cases import TABLE

    chosen = TABLE[WHOLE[case.removeprefix("whole:")]]("cuda", False)
    torch._dynamo.reset()
    program = torch.compile(chosen.model, backend="tileprof", options={"use": "always"})
    with torch.no_grad():
        for _ in range(3):
            out = chosen.call(program)
        exact = chosen.reference()
        error = ((out.float() - exact).norm() / exact.norm()).item()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            chosen.call(program)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            chosen.call(program)
        median, least = replayed(graph)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(10):
                graph.replay()
            torch.cuda.synchronize()
    line = f"{case:36} {median:7.1f} us (least {least:.1f}), error {error:.1e}"
    say(line)
    for event in sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)[:14]:
        say(
            f"    {event.self_device_time_total / 10:8.2f} us per call, {event.count / 10:4.1f} times: {event.key[:90]}"
        )
    return line


def main(cases: list[str]) -> None:
    plans = [plan_and_options(case) for case in cases if not case.startswith("whole:")]
    headers = {header(plan, Options(wiping_warp="wipe" in chosen)) for plan, chosen in plans}
    headers |= {
        header(plan, Options(stamps=True, wiping_warp="wipe" in chosen)) for plan, chosen in plans if "stamps" in chosen
    }
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(KERNEL.compiled, headers))
    say(f"{len(headers)} kernels compiled")
    lines = []
    for case in cases:
        try:
            lines.append(whole(case) if case.startswith("whole:") else one(case))
        except Exception:  # noqa: BLE001 - the other cases are still measured
            say(case + " failed: " + traceback.format_exc())
    say("\n".join(["", *lines]))


if __name__ == "__main__":
    main(sys.argv[1:])
