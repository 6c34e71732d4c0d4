"""The transformer kernel's source, run on the CPU thread by thread in adversarial orders: the reference's results,
always the same bits, and planted faults are detected.

`TILEPROF_KERNEL_RUNS` is the number of orders per program.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.support.orders import seeds
from tests.support.runtime.encoder_programs import inputs_of, post_norm, pre_norm
from tests.support.runtime.kernel_on_cpu import compile_machine, compiler_missing
from tests.support.runtime.planted import Patch, gate_third, replaced, together, without_effect
from tests.unit.runtime.encoder.encoder_on_cpu import HostLauncher, aligned, compiled
from tileprof.runtime.encoder import reference
from tileprof.runtime.encoder.encoder_build import KERNEL
from tileprof.runtime.encoder.memory import Memory, memory_of
from tileprof.runtime.encoder.plan import Box, Plan, faults, plan_of, touches, without_task
from tileprof.runtime.encoder.program import Program

pytestmark = pytest.mark.skipif(compiler_missing(), reason="needs g++, which compiles the kernel for the CPU")

RUNS = 3
"""Orders of each case in the gate."""

CASES: dict[str, tuple[Program, int, int, int | None]] = {
    "causal blocks": (pre_norm(48, 128, 1), 4, 2, 2),
    "two blocks, one block per cluster": (pre_norm(40, 64, 2), 3, 1, None),
    "clusters of four": (pre_norm(100, 64, 1, k_major=True, causal=False, epilogue="gelu"), 4, 4, None),
    "k in passes": (pre_norm(33, 64, 1, k_major=True), 4, 2, 1),
    "k in four parts": (pre_norm(33, 64, 1, k_major=True), 4, 2, 4),
    "sequences that end within tiles": (pre_norm(3 * 41, 64, 1, length=41, causal=True), 4, 2, None),
    "keys that are shared": (pre_norm(64, 256, 1, key_heads=2, dtype="bfloat16", epilogue="silu"), 4, 2, None),
    "more keys than are loaded at once": (pre_norm(150, 64, 1, causal=False), 4, 2, None),
    "norms behind sums": (post_norm(64, 128, 2), 4, 2, None),
    "a mask": (post_norm(2 * 33, 64, 1, length=33, masked=True), 3, 1, None),
    "wide tiles": (pre_norm(70, 128, 1, k_major=True, causal=False, epilogue="gelu"), 4, 2, 2),
    "wide tiles of rows of k": (pre_norm(33, 128, 1), 4, 2, 1),
}
"""A program, blocks, blocks per cluster, and the number of parts into which k may be cut."""

WIDTHS = {"wide tiles": 80, "wide tiles of rows of k": 96}
"""Tile shapes, if they are not the best ones."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder")
    compile_machine(path)
    return path


def launcher_of(plan: Plan, folder: Path, name: str, patch: Patch | None = None) -> HostLauncher:
    return HostLauncher(plan, compiled(plan, folder / name.replace(" ", "-"), patch))


def inputs(program: Program) -> dict[str, torch.Tensor]:
    return {name: aligned(tensor) for name, tensor in inputs_of(program).items()}


@pytest.mark.orders
@pytest.mark.parametrize("case", CASES)
def test_every_order_gives_the_bits_of_the_first_and_the_values_of_the_reference(case: str, folder: Path) -> None:
    program, blocks, cluster, splits = CASES[case]
    plan = plan_of(program, blocks, cluster, WIDTHS.get(case), splits)
    launcher, arguments = launcher_of(plan, folder, case), inputs(program)
    expected = reference.run(program, arguments)
    separate = HostLauncher(
        plan, launcher.library, memory_of(plan, reuse=False)
    )  # so that the results of stages can be compared
    (first,) = separate.run(arguments, 0)
    assert separate.complaint is None
    for name in plan.sizes.keys() & expected.keys():
        close(separate.launcher.buffer(name), expected[name])
    close(first, expected["out"])
    for seed in seeds(RUNS, list(CASES).index(case))[1:]:
        (out,) = launcher.run(arguments, seed)
        assert launcher.complaint is None
        assert torch.equal(out, first)


LAYERS = pre_norm(33, 64, 4)
"""Enough layers for memory to be reused within a run, where generations have two stages."""


def layers_plan() -> tuple[Plan, Memory]:
    plan = plan_of(LAYERS, 3, 1)
    return plan, memory_of(plan, stages=2)


@pytest.mark.parametrize("wiping_warp", [False, True])
def test_layers_that_use_memory_again_give_the_reference_and_all_blocks_post_what_has_ended(
    folder: Path, *, wiping_warp: bool
) -> None:
    plan, memory = layers_plan()
    assert all(ring.slots < len(ring.names) for ring in memory.rings)
    library = compiled(plan, folder / f"layers-{wiping_warp}", wiping_warp=wiping_warp)
    launcher, arguments = HostLauncher(plan, library, memory), inputs(LAYERS)
    expected = reference.run(LAYERS, arguments)["out"]
    outs = [launcher.run(arguments, seed)[0] for seed in range(3)]
    assert launcher.complaint is None
    close(outs[0], expected)
    assert all(torch.equal(out, outs[0]) for out in outs)
    assert launcher.launcher.ended().tolist() == [3 * len(plan.blocks)] * (memory.generations[-1] + 1)


def test_a_generation_whose_end_is_not_posted_is_awaited_in_vain(folder: Path) -> None:
    plan, memory = layers_plan()
    silent = replaced("kernel.cu", ("FENCE_WORDS * ended, 1", "FENCE_WORDS * ended, 0"))
    sooner = replaced("tables.cuh", ("++tries % 256", "++tries % 4"))  # the machine waits for a shorter time than a GPU
    library = compiled(plan, folder / "silent", together(silent, sooner), timeout_ns=40)
    launcher = HostLauncher(plan, library, memory)
    launcher.run(inputs(LAYERS), 1)
    assert launcher.complaint is not None
    assert launcher.complaint.startswith("a wait gave up: [1, "), launcher.complaint


def close(result: torch.Tensor, expected: torch.Tensor) -> None:
    error = (result.float() - expected.float()).norm() / expected.float().norm()
    assert error < (5e-3 if expected.dtype == torch.float16 else 3e-2)


def differs(
    launcher: HostLauncher, arguments: dict[str, torch.Tensor], expected: list[torch.Tensor], runs: int
) -> bool:
    """Return whether a fault is detected in any of ``runs`` orders: by the machine, by a wait that times out, or by a
    wrong result.

    Every third run has other activations.
    """
    for seed in range(runs):
        sign = seed // 3 % 2
        (out,) = launcher.run({**arguments, "x": -arguments["x"] if sign else arguments["x"]}, seed)
        if launcher.complaint is not None or not torch.equal(out, expected[sign]):
            return True
    return False


FAULTS: dict[str, tuple[str, str, str]] = {
    "readers do not check that data are there": (
        "absent.cuh",
        "v.x == ABSENT || v.y == ABSENT || v.z == ABSENT || v.w == ABSENT",
        "false",
    ),
    "memory is not made absent again": ("tables.cuh", "if (wiped != 0) store_words", "if (false) store_words"),
    "sums are not made absent again": ("finish.cuh", "if (split < splits) store_words", "if (false) store_words"),
    "slots are freed before they are read": (
        "kernel.cu",
        "wait_cta(shared + WEIGHTS_FREE + 8 * slot, (place / SLOTS & 1) ^ 1);",
        "",
    ),
    "weights are not awaited": ("product.cuh", "wait_cta(shared + WEIGHTS_FULL + 8 * slot, place / SLOTS & 1);", ""),
    "sums over activations that are still read": (
        "product.cuh",
        "meet_consumers();  // no warp reads activations any more",
        "",
    ),
    "keys over keys that are still read": ("attention.cuh", "if (from > 0) meet_consumers();", ""),
    "tiles over tiles that are still read": ("kernel.cu", "meet_consumers();  // shared memory is the next task's", ""),
}


def test_every_fault_that_is_planted_at_night_still_changes_the_source() -> None:
    faults = {fault: replaced(file, (old, new)) for fault, (file, old, new) in FAULTS.items()}
    assert without_effect(faults, KERNEL.texts()) == []


@pytest.fixture(scope="module")
def right(folder: Path) -> Callable[[str], tuple[Plan, dict[str, torch.Tensor], list[torch.Tensor]]]:
    """Return the plan of a case, its inputs, and the results that no order changes."""

    @cache
    def right(name: str) -> tuple[Plan, dict[str, torch.Tensor], list[torch.Tensor]]:
        program, blocks, cluster, splits = CASES[name]
        plan, arguments = plan_of(program, blocks, cluster, splits=splits), inputs(program)
        launcher = launcher_of(plan, folder, f"right {name}")
        expected = [launcher.run({**arguments, "x": sign * arguments["x"]}, 0)[0] for sign in (1, -1)]
        assert not differs(launcher, arguments, expected, 4)
        return plan, arguments, expected

    return right


@pytest.mark.parametrize("fault", gate_third(FAULTS))
def test_a_planted_fault_is_detected(fault: str, folder: Path, right: Callable[[str], tuple]) -> None:
    name = {"keys": "more keys than are loaded at once", "weights": "a mask"}.get(
        fault.split(maxsplit=1)[0], "causal blocks"
    )
    file, old, new = FAULTS[fault]
    plan, arguments, expected = right(name)
    assert differs(launcher_of(plan, folder, fault, replaced(file, (old, new))), arguments, expected, 40)


def test_a_task_ends_after_those_that_write_its_activations_had_their_sums(folder: Path) -> None:
    program, blocks, cluster, splits = CASES["causal blocks"]
    plan = plan_of(program, blocks, cluster, splits=splits)
    launcher = HostLauncher(plan, compiled(plan, folder / "times", stamps=True))
    launcher.run(inputs(program), 1)
    assert launcher.complaint is None
    times = launcher.launcher.times()
    assert (times[:, 1:] >= times[:, :-1]).all()
    assert (times[:, 0] > 0).all()
    touch_sets = [touches(plan.stages[task.stage], task) for task in plan.tasks]
    pairs = [
        (writer, reader)
        for reader, task in enumerate(plan.tasks)
        for writer, earlier in enumerate(plan.tasks)
        if earlier.stage < task.stage
        and any(overlap(a, b) for a in touch_sets[writer].writes for b in touch_sets[reader].reads)
    ]
    assert len({plan.tasks[writer].stage for writer, _ in pairs}) == len(plan.stages) - 1
    writers, readers = torch.tensor(pairs).unbind(1)
    assert (times[writers, 2] < times[readers, 3]).all()


def overlap(a: Box, b: Box) -> bool:
    """Return whether two boxes have an element in common."""
    return a[0] == b[0] and all(a[at] < b[at + 1] and b[at] < a[at + 1] for at in (1, 3))


def test_a_task_without_a_block_is_reported_by_the_plan_and_by_the_kernel(folder: Path) -> None:
    program, blocks, cluster, splits = CASES["causal blocks"]
    plan, arguments = plan_of(program, blocks, cluster, splits=splits), inputs(program)
    attention = next(n for n, task in enumerate(plan.tasks) if plan.stages[task.stage].name == "att_0")
    broken_plan = without_task(plan, attention)
    assert not faults(plan)
    assert faults(broken_plan)
    library = compiled(
        plan, folder / "a-task-too-few", replaced("tables.cuh", ("++tries % 256", "++tries % 4")), timeout_ns=40
    )  # the machine waits for a shorter time than a GPU
    launcher = HostLauncher(broken_plan, library)
    launcher.run(arguments, 1)
    assert launcher.complaint is not None
    assert launcher.complaint.startswith("a wait gave up: [1, "), launcher.complaint
