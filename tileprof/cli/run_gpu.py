"""``tileprof run`` on a GPU: the policy's stages as kernels, under a scheduler, beside PyTorch's result."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from tileprof.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tileprof.policy.format import Policy

AUTO: Final = "auto"

RUNS: Final = 20
"""Of the stages, on poisoned memory each: what comes out has to be the same to the bit."""


def check_scheduler(name: str) -> None:
    """Raises `UserError` for a scheduler that there is not, that computes wrong results on purpose, or that there is
    no GPU for.
    """
    if name == AUTO:
        return
    import torch  # noqa: PLC0415 - slow to import

    from tileprof.runtime.schedulers import scheduler  # noqa: PLC0415 - likewise

    if not scheduler(name).correct:
        raise UserError(f"{name} computes wrong results, for timing: tileprof run POLICY --compare")
    if not torch.cuda.is_available():
        raise UserError(
            f"there is no GPU here that PyTorch can use, so that nothing runs under {name}; leave out --scheduler"
        )


def run_on_gpu(
    policy: Policy, name: str, seed: int, tolerance: Mapping[str, float], say: Callable[[str], None]
) -> dict[str, Any] | None:
    """What the policy's stages compute under a scheduler, or why they do not run; None where there is no GPU."""
    import torch  # noqa: PLC0415 - slow to import

    if not torch.cuda.is_available():
        return None
    from tileprof.runtime.gpu import GpuPipeline  # noqa: PLC0415 - imports Triton

    say("running on the GPU")
    try:
        pipeline = GpuPipeline(policy, schedule=name, unchecked=True)  # what the kernels compute, right or wrong
        given = pipeline.example(seed)
        first = _outputs(pipeline, given)
        same = True
        for _ in range(RUNS - 1):
            pipeline.poison()
            again = _outputs(pipeline, given)
            same = same and all(torch.equal(a, b) for a, b in zip(again, first, strict=True))
    except torch.cuda.OutOfMemoryError as error:
        raise UserError(f"the GPU's memory does not hold the stages: {str(error).splitlines()[0]}") from None
    except UserError as error:
        if name != AUTO:
            raise
        return {"scheduler": None, "reason": str(error)}
    wanted = pipeline.reference(given)
    numbers = []
    for (output, view), value in zip(pipeline.outputs.items(), first, strict=True):
        exact = wanted[output].double()
        far = float((value.double() - exact).norm() / exact.norm())
        numbers.append(
            {"output": output, "relative_error": far if isfinite(far) else None, "agrees": far < tolerance[view.dtype]}
        )
    return {
        "scheduler": pipeline.scheduler.name,
        "reason": pipeline.reason,
        "device": torch.cuda.get_device_name(),
        "runs": RUNS,
        "same_in_every_run": same,
        "numbers": numbers,
        "clean": same and all(n["agrees"] for n in numbers),
    }


def _outputs(pipeline: Any, given: Mapping[str, Any]) -> list[Any]:
    out = pipeline(**given)
    pipeline.check()
    return [value.clone() for value in (out if isinstance(out, tuple) else (out,))]


def sentences(found: Mapping[str, Any]) -> list[str]:
    """What `run_on_gpu` found, for a reader."""
    if found["scheduler"] is None:
        return [f"Not run on the GPU: {found['reason']}."]
    told = [f"On {found['device']} under {found['scheduler']} ({found['reason']}):"]
    for number in found["numbers"]:
        verdict = "agrees with PyTorch" if number["agrees"] else "DIFFERS from PyTorch"
        far = "not finite" if number["relative_error"] is None else f"{number['relative_error']:.1e}"
        told.append(f"  {number['output']}: {verdict} (relative error {far})")
    bits = "the same bits" if found["same_in_every_run"] else "DIFFERENT BITS"
    return [*told, f"  {found['runs']} runs, {bits} in each; times: tileprof run POLICY --compare"]
