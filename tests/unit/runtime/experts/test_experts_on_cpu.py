"""A layer of experts whose tasks exist only once tokens are routed: the sources of the kernel and the co-pilot in
adversarial orders, always with the same bits; planted faults are detected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.orders import seeds
from tests.support.runtime.kernel_on_cpu import compile_machine, compiler_missing
from tests.support.runtime.planted import Patch, gate_third, replaced, without_effect
from tests.unit.runtime.experts.experts_on_cpu import HostExperts, compiled
from tileprof.errors import UserError
from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.experts.experts_build import KERNEL, PILOT
from tileprof.runtime.experts.layer import SCHEDULES
from tileprof.runtime.experts.shape import ExpertsShape

pytestmark = pytest.mark.skipif(compiler_missing(), reason="needs g++, which compiles kernel and co-pilot for the CPU")

RUNS = 4
"""Orders of each case in the gate."""
BLOCKS = 3
CASES = {
    "full tiles and others": ExpertsShape("float16", 100, 256, 128, 3, 2),
    "experts without tokens": ExpertsShape("bfloat16", 9, 256, 64, 8, 1),
    "one expert": ExpertsShape("float16", 64, 256, 128, 1, 1),
}


def layer_inputs(shape: ExpertsShape) -> tuple[tuple[Any, Any, Any], Any]:
    dice = torch.Generator().manual_seed(7)
    dtype = getattr(torch, shape.dtype)

    def numbers(*sizes: int, scale: float) -> Any:
        return (torch.randn(sizes, generator=dice) * scale).to(dtype)

    router = numbers(shape.experts, shape.width, scale=0.5)
    up = numbers(shape.experts, 2 * shape.inner, shape.width, scale=shape.width**-0.5)
    down = numbers(shape.experts, shape.width, shape.inner, scale=shape.inner**-0.5)
    return (router, up, down), numbers(shape.tokens, shape.width, scale=1.0)


def plain(weights: tuple[Any, Any, Any], x: Any, top: int) -> Any:
    """Return the layer's result by PyTorch in double precision."""
    router, up, down = (w.double() for w in weights)
    x = x.double()
    best, expert_choice = torch.topk(x @ router.T, top, dim=1)
    gates = best.softmax(dim=1)
    inner = down.shape[-1]
    result = torch.zeros_like(x)
    for expert in range(len(router)):
        token, rank = torch.where(expert_choice == expert)
        both = x[token] @ up[expert].T
        y = (torch.nn.functional.silu(both[:, :inner]) * both[:, inner:]) @ down[expert].T
        result.index_add_(0, token, y * gates[token, rank, None])
    return result


@pytest.fixture(scope="module")
def make(tmp_path_factory) -> Callable[..., HostExperts]:
    folder: Path = tmp_path_factory.mktemp("kernels")
    compile_machine(folder)
    numbers = count()

    def make(
        name: str,
        schedule: str,
        choices: Choices | None = None,
        patch: Patch | None = None,
        pilot_patch: Patch | None = None,
    ) -> HostExperts:
        """Return the program of a case; ``patch`` and ``pilot_patch`` change the sources of kernel and co-pilot."""
        shape = CASES[name]
        library = compiled(shape, BLOCKS, SCHEDULES[schedule].dealing, folder / str(next(numbers)), patch)
        return HostExperts(
            layer_inputs(shape)[0], tokens=shape.tokens, top=shape.top, schedule=schedule, blocks=BLOCKS,
            library=library, choices=choices, pilot_patch=pilot_patch,
        )  # fmt: skip

    return make


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory) -> None:
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path_factory.getbasetemp() / "pilots"))


def wrong_runs(layer: HostExperts, name: str, seeds: Iterable[int]) -> Iterator[str]:
    """Yield the fault of each run.

    Run 0 delays nothing and is close to PyTorch's result; the others have the same bits.
    """
    shape = CASES[name]
    weights, x = layer_inputs(shape)
    expected, calm = plain(weights, x, shape.top), None
    for seed in seeds:
        message = layer.run(x, seed)
        out = layer.out.double()
        if seed == 0:
            most = 2e-2 if layer.out.dtype is torch.bfloat16 else 3e-3
            calm = layer.out.clone()
            if message is None and not (out - expected).norm() < most * expected.norm():
                message = "is not PyTorch's result"
        elif message is None and not torch.equal(layer.out.view(torch.int16), calm.view(torch.int16)):
            message = "is not the result of the calm run"
        if message is not None:
            yield f"seed {seed}: {message}"


@pytest.mark.orders
@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_every_schedule_gives_the_same_bits_in_every_order(make, schedule) -> None:
    orders = seeds(RUNS, list(SCHEDULES).index(schedule))
    assert not list(wrong_runs(make("full tiles and others", schedule), "full tiles and others", orders))


@pytest.mark.orders
@pytest.mark.parametrize("schedule", ["persistent", "persistent-dynamic", "ccks"])
@pytest.mark.parametrize("name", ["experts without tokens", "one expert"])
def test_tiles_that_do_not_come_to_exist_are_not_waited_for(make, name, schedule) -> None:
    assert not list(wrong_runs(make(name, schedule), name, seeds(RUNS, len(name))))


FAULTS: dict[str, tuple[str, Patch]] = {
    "a tile exists one row early": (
        "persistent-dynamic",
        replaced("dealing.cuh", ("1) == ROWS - 1", "1) == ROWS - 2")),
    ),
    "tiles that are not full are left out": (
        "persistent-dynamic",
        replaced("dealing.cuh", ("rows % ROWS == 0 ? -1 : lane * HIGH + rows / ROWS", "-1")),
    ),
    "the result begins with its first input": (
        "persistent-dynamic",
        replaced("dealing.cuh", ("DEALING == QUEUE && done == UPS", "DEALING == QUEUE && done == 1")),
    ),
    "places of earlier runs are taken for this one's": (
        "persistent-dynamic",
        replaced("dealing.cuh", ("(run + 1) % 2048 << (KIND_AT + 2)", "1u << (KIND_AT + 2)")),
    ),
    "routing is not waited for": (
        "persistent",
        replaced("dealing.cuh", ("p.counts + ROUTED_AT) == ROUTES", "p.counts + ROUTED_AT) > 0")),
    ),
    "the inner layer is not waited for": (
        "persistent",
        replaced("dealing.cuh", ("UP_DONE_AT + tile) == UPS", "UP_DONE_AT + tile) > 0")),
    ),
    "what is stored is not waited for": (
        "persistent",
        replaced("kernel.cu", ("wait_cta(shared + STORED_AT + 8 * ring.slot, ring.turn);", "")),
    ),
    "no proxy fence before a load": (
        "persistent",
        replaced("kernel.cu", ("fence_proxy_async_global();  // what", "//")),
    ),
    "no proxy fence before a post": (
        "persistent",
        replaced("kernel.cu", ("fence_proxy_async_global();\n        __syncwarp();\n        post", "post")),
    ),
    "counts of a run are left to the next": (
        "persistent-dynamic",
        replaced("kernel.cu", ("p.counts[word] = 0;", "p.counts[word] += 0;")),
    ),
    "experts of a token are added by the first": (
        "persistent",
        replaced("kernel.cu", ("before == TOP - 1", "before == 0")),
    ),
}


@pytest.mark.parametrize("fault", gate_third(FAULTS))
def test_a_fault_planted_in_the_kernel_is_detected(make, fault) -> None:
    schedule, patch = FAULTS[fault]
    name = "full tiles and others"
    assert any(wrong_runs(make(name, schedule, patch=patch), name, range(60)))


PILOT_FAULTS: dict[str, tuple[str, Choices, Patch]] = {
    "the inner layer is not waited for": (
        "ccks-ready",
        Choices(speculate=False),
        replaced(
            "pilot.cpp",
            ("kind == UP && ++ups_done[number / UPS] == UPS", "kind == UP && ++ups_done[number / UPS] == 1"),
        ),
    ),
    "results ahead are said to be ready": (
        "ccks",
        Choices(depth=4),
        replaced("pilot.cpp", ("send_down(ahead_downs, block, AWAITS)", "send_down(ahead_downs, block, 0)")),
    ),
    "a run ends with its last command": (
        "ccks-ready",
        Choices(speculate=False),
        replaced("pilot.cpp", ("closed && finished == tasks_so_far()", "closed")),
    ),
}


def test_every_fault_that_is_planted_at_night_still_changes_the_source() -> None:
    texts = KERNEL.texts() | {PILOT.name: PILOT.read_text()}
    for faults in (FAULTS, PILOT_FAULTS):
        assert without_effect({fault: patch for fault, (*_, patch) in faults.items()}, texts) == []


@pytest.mark.parametrize("fault", gate_third(PILOT_FAULTS))
def test_a_fault_planted_in_the_copilot_is_detected(make, fault) -> None:
    schedule, choices, pilot_patch = PILOT_FAULTS[fault]
    name = "full tiles and others"
    assert any(wrong_runs(make(name, schedule, choices, pilot_patch=pilot_patch), name, range(60)))


@pytest.mark.parametrize("choices", [Choices(depth=4), Choices(depth=8), Choices(speculate=False, depth=1)])
def test_a_copilot_of_any_depth_gives_the_same_bits(make, choices) -> None:
    layer = make("full tiles and others", "ccks", choices)
    orders = seeds(RUNS, choices.depth)
    assert not list(wrong_runs(layer, "full tiles and others", orders))
    counts = layer.pilot_counts()
    assert counts.runs >= len(orders) - 1  # it may not know yet that the last one has ended
    assert (counts.ahead > 0) == choices.speculate


@pytest.mark.parametrize(
    "sizes", [(100, 200, 128, 3, 2), (100, 256, 100, 3, 2), (100, 256, 128, 3, 5), (0, 256, 64, 2, 1)]
)
def test_sizes_that_the_kernel_does_not_support_are_refused(sizes) -> None:
    with pytest.raises(UserError, match="the kernel of experts takes"):
        ExpertsShape("float16", *sizes)
