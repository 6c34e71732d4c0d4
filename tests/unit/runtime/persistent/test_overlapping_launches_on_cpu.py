"""Launches of the persistent kernel that overlap, as under ``persistent-pdl`` and in replays of ``persistent``, on the
CPU: blocks of a launch begin at any moment after all blocks of the one in front have triggered or ended. Always the
same bits, and every planted fault is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

from tests.support.orders import seeds
from tests.support.runtime.kernel_on_cpu import HostLaunches, compile_machine, compiled, compiler_missing
from tests.support.runtime.planted import Patch, replaced, together
from tests.unit.runtime.persistent.kernel_cases import CASES, plan_for
from tileprof.runtime.chain import Chain
from tileprof.runtime.persistent.task_lists import plans_by_stage
from tileprof.runtime.pipeline import Pipeline

pytestmark = pytest.mark.skipif(compiler_missing(), reason="needs g++, which compiles the kernel for the CPU")

RUNS = 4
"""Orders of each case in the gate."""
ROUNDS = 2

WORK = "consume(arguments, shared, rank, tasks); }"
FAULTS: dict[str, Patch] = {
    "no launch waits for the one in front": replaced("kernel.cu", ("grid_wait();", "")),
    "those who await and load activations do not wait": replaced(
        "kernel.cu", ("grid_wait();", "if (threadIdx.x < 32 || threadIdx.x >= 96) grid_wait();")
    ),
    "only the first block waits": replaced("kernel.cu", ("grid_wait();", "if (blockIdx.x == 0) grid_wait();")),
    "a trigger behind the work in place of a wait": together(
        replaced("kernel.cu", ("grid_launch_dependents();", "")),
        replaced("kernel.cu", ("grid_wait();", "")),
        replaced("kernel.cu", (WORK, f"{WORK} grid_launch_dependents();")),
    ),
}  # fmt: skip


OVERLAPPED = ["the smallest products", "products by two", "pairs", "a residual block"]


@pytest.fixture(scope="module")
def make(tmp_path_factory) -> Callable[..., HostLaunches]:
    folder: Path = tmp_path_factory.mktemp("kernels")
    compile_machine(folder)
    numbers = count()

    def make(name: str, patch: Patch | None = None, *, by_stage: bool = True) -> HostLaunches:
        plan = plan_for(name)
        plans = plans_by_stage(plan, plan.clusters) if by_stage else [plan]
        return HostLaunches(plans, compiled(plans[0], folder / str(next(numbers)), patch))

    return make


def wrong_runs(kernel: HostLaunches, chain: Chain, seeds: Iterable[int]) -> Iterator[str]:
    """What went wrong in which run. Run 0, the first, is calm, and within rounding of PyTorch's results."""
    pipeline = Pipeline(chain.policy())
    rounds = [pipeline.example(seed) for seed in range(ROUNDS)]
    kernel.put_rounds(rounds)
    expected = [pipeline.reference(inputs)[chain.operators[-1].out.tensor].double() for inputs in rounds]
    calm: list[torch.Tensor] = []
    for seed in seeds:
        message = kernel.run(seed)
        bits = [result.clone().view(torch.int16) for result in kernel.results]
        if seed == 0:
            calm = bits
            for result, wanted in zip(kernel.results, expected, strict=True):
                if not (result.double() - wanted).norm() < 2e-2 * wanted.norm():
                    message = message or "is not PyTorch's result"
        elif message is None and not all(map(torch.equal, bits, calm)):
            message = "is not the result of the calm run"
        if message is not None:
            yield f"seed {seed}: {message}"
            kernel.begin_anew()


@pytest.mark.orders
@pytest.mark.parametrize("name", OVERLAPPED)
def test_stages_that_overlap_give_the_same_bits_in_every_order(make, name) -> None:
    assert not list(wrong_runs(make(name), CASES[name][0], seeds(RUNS, OVERLAPPED.index(name))))


@pytest.mark.parametrize("name", ["the smallest products", "pairs whose k is cut"])
def test_replays_of_one_launch_that_overlap_give_the_same_bits_in_every_order(make, name) -> None:
    assert not list(wrong_runs(make(name, by_stage=False), CASES[name][0], seeds(RUNS, len(name))))


@pytest.mark.parametrize("by_stage", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_detected(make, fault, by_stage) -> None:
    name = "the smallest products"
    assert any(wrong_runs(make(name, FAULTS[fault], by_stage=by_stage), CASES[name][0], range(24)))
