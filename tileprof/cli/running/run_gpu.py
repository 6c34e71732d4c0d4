"""``tileprof run`` on a GPU: the policy's stages as kernels, under a scheduler, beside PyTorch's result."""

from __future__ import annotations

from contextlib import suppress
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from tileprof.cli.running.run_acs import SCHEDULERS as OF_PROGRAMS
from tileprof.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tileprof.policy.format import Policy

AUTO: Final = "auto"

TIMED: Final = {"persistent": ("persistent-stages", "persistent"), "others": ("graph", "cusync")}
"""Schedulers that are timed beside PyTorch: stream order, and the policy's waits."""

RUNS: Final = 20
"""Runs of the stages, each on poisoned memory; their results must have the same bits."""


def check_scheduler(name: str) -> None:
    """Raises `UserError` for a scheduler that there is not, that computes wrong results on purpose, or that there is
    no GPU for.
    """
    if name == AUTO:
        return
    if name in OF_PROGRAMS:
        raise UserError(f"{name} runs the kernels of a program: tileprof run --scheduler {name} -- python infer.py")
    import torch  # noqa: PLC0415 - slow to import

    from tileprof.runtime.schedulers import scheduler  # noqa: PLC0415 - as above

    if not scheduler(name).correct:
        raise UserError(f"{name} computes wrong results, for timing: tileprof run POLICY --compare")
    if not torch.cuda.is_available():
        raise UserError(
            f"there is no GPU here that PyTorch can use, so nothing runs under {name}; leave out --scheduler"
        )


def check_program_scheduler(name: str) -> None:
    """Raises `UserError` for a scheduler of policies, or one that there is not, with a program after --."""
    from tileprof.runtime.schedulers import SCHEDULERS  # noqa: PLC0415 - not needed for --help

    if name == AUTO or name in OF_PROGRAMS:
        return
    names = " and ".join(OF_PROGRAMS)
    if name in SCHEDULERS:
        raise UserError(
            f"{name} runs the stages of a policy: tileprof run --scheduler {name} POLICY; of programs {names}"
        )
    raise UserError(f"there is no scheduler {name!r} for a program; known: {names}, or leave --scheduler out")


def check_device(policy: Policy) -> None:
    """Raise `UserError` where the GPU here is another than the one that the policy was verified for; without a GPU it
    does not matter.
    """
    import torch  # noqa: PLC0415 - slow to import

    from tileprof.devices import of_driver  # noqa: PLC0415 - not needed for --help

    if not torch.cuda.is_available():
        return
    major, minor = torch.cuda.get_device_capability()
    architecture, here = policy.guard.get("architecture"), f"sm_{major}{minor}"
    again = "`tileprof record` here and `tileprof export` make one for it. Nothing was run"
    if architecture is not None and architecture != here:
        raise UserError(f"the policy was verified for {architecture!r:.40}, and this GPU is {here}: {again}")
    name = policy.guard.get("device")
    if policy.options.wait_kernel or name is None:
        return
    try:
        device = of_driver(torch.cuda.get_device_name()).name
    except UserError:
        device = torch.cuda.get_device_name()
    if name != device:
        raise UserError(
            f"the policy does without a wait kernel because of what resides on {name!r:.40}, and this GPU is {device}: "
            f"{again}"
        )


def run_on_gpu(
    policy: Policy, name: str, seed: int, tolerance: Mapping[str, float], say: Callable[[str], None]
) -> dict[str, Any] | None:
    """Return what the policy's stages compute under a scheduler, or why they do not run; None where there is no GPU.

    Raises `UserError` where the GPU's memory does not hold the stages.
    """
    import torch  # noqa: PLC0415 - slow to import

    if not torch.cuda.is_available():
        return None
    from tileprof.runtime.policy_on_gpu import GpuPipeline  # noqa: PLC0415 - imports Triton

    say("compiling the stages' kernels for the GPU")
    try:
        prepare(policy, name)
        say("running on the GPU")
        pipeline = GpuPipeline(policy, schedule=name, unchecked=True)  # what the kernels compute, right or wrong
        inputs = pipeline.example(seed)
        first = _outputs(pipeline, inputs)
        same = True
        for _ in range(RUNS - 1):
            pipeline.poison()
            again = _outputs(pipeline, inputs)
            same = same and all(torch.equal(a, b) for a, b in zip(again, first, strict=True))
    except torch.cuda.OutOfMemoryError as error:
        raise UserError(f"the GPU's memory does not hold the stages: {str(error).splitlines()[0]}") from None
    except UserError as error:
        if name != AUTO:
            raise
        return {"scheduler": None, "reason": str(error)}
    reference = pipeline.reference(inputs)
    numbers = []
    for (output, view), value in zip(pipeline.outputs.items(), first, strict=True):
        exact = reference[output].double()
        far = float((value.double() - exact).norm() / exact.norm())
        numbers.append(
            {"output": output, "relative_error": far if isfinite(far) else None, "agrees": far < tolerance[view.dtype]}
        )
    clean = same and all(n["agrees"] for n in numbers)
    return {
        "scheduler": pipeline.scheduler.name,
        "reason": pipeline.reason,
        "device": torch.cuda.get_device_name(),
        "runs": RUNS,
        "same_in_every_run": same,
        "numbers": numbers,
        "clean": clean,
        "times": _times(policy, pipeline.scheduler.name, say) if clean else [],
    }


def prepare(policy: Policy, name: str = AUTO, schedulers: Sequence[str] = TIMED["persistent"]) -> None:
    """Compile the persistent kernel for a policy, all that will be timed at once, where this GPU runs it."""
    import torch  # noqa: PLC0415 - slow to import

    from tileprof.runtime.chain import Chain  # noqa: PLC0415 - imports PyTorch
    from tileprof.runtime.persistent.persistent_launch import max_clusters  # noqa: PLC0415 - talks to the driver
    from tileprof.runtime.persistent.run import compile_for  # noqa: PLC0415 - as above
    from tileprof.runtime.schedulers import scheduler  # noqa: PLC0415 - as above

    if torch.cuda.get_device_capability() != (9, 0) or not (name == AUTO or scheduler(name).persistent):
        return
    torch.cuda.synchronize()  # makes PyTorch's context the current one
    with suppress(UserError):  # the kernel does not take these stages: others run them
        compile_for(policy, Chain.of_policy(policy), map(scheduler, schedulers), max_clusters)


def _times(policy: Policy, name: str, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return rows of `tileprof.runtime.measuring.measure` for PyTorch, stream order and what the policy runs under."""
    from tileprof.runtime.chain import Chain  # noqa: PLC0415 - imports PyTorch
    from tileprof.runtime.measuring.measure import measure  # noqa: PLC0415 - as above

    say("timing it beside stream order and PyTorch")
    schedulers: tuple[str, ...] = TIMED["persistent" if name.startswith("persistent") else "others"]
    schedulers = (*schedulers, name) if name not in schedulers else schedulers
    return measure(Chain.of_policy(policy), [policy], schedulers=schedulers)


def _outputs(pipeline: Any, inputs: Mapping[str, Any]) -> list[Any]:
    out = pipeline(**inputs)
    pipeline.check()
    return [value.clone() for value in (out if isinstance(out, tuple) else (out,))]


def sentences(result: Mapping[str, Any]) -> list[str]:
    """Return what `run_on_gpu` found, for a reader."""
    if result["scheduler"] is None:
        return [f"Not run on the GPU: {result['reason']}."]
    lines = [f"On {result['device']} under {result['scheduler']} ({result['reason']}):"]
    for number in result["numbers"]:
        verdict = "agrees with PyTorch" if number["agrees"] else "DIFFERS from PyTorch"
        far = "not finite" if number["relative_error"] is None else f"{number['relative_error']:.1e}"
        lines.append(f"  {number['output']}: {verdict} (relative error {far})")
    bits = "the same bits" if result["same_in_every_run"] else "DIFFERENT BITS"
    return [*lines, f"  {result['runs']} runs, {bits} in each.", *_lines_of_times(result)]


def _lines_of_times(result: Mapping[str, Any]) -> list[str]:
    """Return the times, and in one sentence what they mean."""
    rows = {row["row"]: row for row in result["times"]}
    if not rows:
        return []
    lines = ["Measured, median of replays of a CUDA graph, weights not in L2:"]
    names = {"graph": "stream order", "persistent-stages": "stream order", "PyTorch in a graph": "PyTorch"}
    own = rows[result["scheduler"]]
    for name, row in rows.items():
        if row["correct"] and name != "PyTorch eager":
            label = "this policy" if row is own and name not in names else names.get(name, name)
            change = f"{100 * (own['us'] / row['us'] - 1):+8.1f}%" if row is not own else " " * 9
            lines.append(f"  {label:14}{row['us']:9.1f} us{change}{'  (' + name + ')' if label != name else ''}")
    best = min((row for row in rows.values() if row["correct"]), key=lambda row: row["us"])
    if best is own and result["scheduler"] not in names:
        return [*lines, "The policy is the fastest of these."]
    if best is own:
        return [*lines, "Stream order is the fastest of these: the policy is not used."]
    label = names.get(best["row"], best["row"])
    return [*lines, f"{label[0].upper()}{label[1:]} is faster here: this policy does not pay on this GPU."]
