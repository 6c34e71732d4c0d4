"""The source of the persistent kernel, run on the CPU thread by thread in adversarial orders: always the same bits, and
every planted fault is seen.

`TILEPROF_KERNEL_RUNS` is how many orders of each chain are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.orders import orders, seeds
from tests.support.runtime.kernel_on_cpu import HostKernel, compile_machine, compiled, compiler_missing
from tests.support.runtime.planted import Patch, gate_third, replaced, together, without_effect
from tests.unit.runtime.persistent.chain_policies import random_plans
from tests.unit.runtime.persistent.kernel_cases import (
    CASES,
    own_rows_alone,
    plan_for,
    wrong_runs,
)
from tileprof.errors import UserError
from tileprof.policy.format.expression import parse
from tileprof.runtime.chain import Chain
from tileprof.runtime.persistent import source
from tileprof.runtime.persistent.persistent_build import KERNEL
from tileprof.runtime.persistent.plan import Plan

pytestmark = pytest.mark.skipif(compiler_missing(), reason="needs g++, which compiles the kernel for the CPU")

RUNS = 4
"""Orders of each case in the gate."""


@pytest.fixture(scope="module")
def make(tmp_path_factory) -> Callable[..., HostKernel]:
    folder: Path = tmp_path_factory.mktemp("kernels")
    compile_machine(folder)
    numbers = count()

    def make(plan: Plan, patch: Patch | None = None, kilobytes: int = 227) -> HostKernel:
        with mock.patch.object(source, "SHARED_BYTES", 1024 * kilobytes):
            return HostKernel(plan, compiled(plan, folder / str(next(numbers)), patch))

    return make


AT_NIGHT = {
    "a gate apart", "a batch norm and a product of results", "convolutions, taps of a row", "bias and residual",
    "gated products", "pairs whose k is cut", "all abreast", "attention, high, of 128 columns",
}  # fmt: skip
"""Cases that another case of the gate contains: the same stages by two blocks, with a gate, or each of both sizes."""


@pytest.mark.orders
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in AT_NIGHT else []) for name in CASES]
)
def test_every_order_gives_the_same_bits(make, name) -> None:
    case = CASES[name]
    plan = plan_for(name)
    assert plan.early.any() == ("cut" in name)
    assert not list(wrong_runs(make(plan, kilobytes=case[4]), case[0], seeds(RUNS, list(CASES).index(name))))


@settings(max_examples=max(orders(6) // 2, 1), deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=random_plans())
def test_plans_at_random_give_the_same_bits_in_every_order(make, plan) -> None:
    operators = tuple(stage.operator for stage in plan.stages)
    try:
        kernel = make(plan)
    except UserError:
        return  # no room for rings
    chain = Chain(tuple(f"s{n}" for n in range(len(operators))), operators)
    assert not list(wrong_runs(kernel, chain, range(max(orders(6) // 2, 3))))


FAULTS: dict[str, tuple[str, Patch]] = {
    "tiles are posted before they are stored": (
        "high products",
        replaced("kernel.cu", ("wait_cta(shared + STORED + 8 * ring.slot, ring.turn);", "")),
    ),
    "one warp need not have stored": (
        "high products",
        replaced("kernel.cu", ("STORED + 8 * slot, CONSUMER_WARPS)", "STORED + 8 * slot, CONSUMER_WARPS - 1)")),
    ),
    "posts may fall behind without end": (
        "high products",
        replaced("kernel.cu", ("wait_cta(shared + POSTED + 8 * posting.slot, posting.turn ^ 1);", "")),
    ),
    "a warp's lanes need not have stored": (
        "high products",
        together(
            replaced("kernel.cu", ("__syncwarp(); if (thread % 32 == 0) mbarrier", "if (thread % 32 == 0) mbarrier")),
            replaced("ends.cuh", ("__syncwarp(); pass<S, LAST>", "pass<S, LAST>")),
        ),
    ),
    "slots are given back while they are multiplied": (
        "convolutions, rows, short rings",
        replaced("kernel.cu", ("if (k - begin >= LAG * S::GROUP) release", "if (true) release")),
    ),
    "activations are given back by all warps but one": (
        "convolutions, rows, short rings",
        replaced("kernel.cu", ("A_FREE + 8 * slot, CONSUMER_WARPS)", "A_FREE + 8 * slot, CONSUMER_WARPS - 1)")),
    ),
    "those abreast take the same columns": (
        "abreast behind parts",
        replaced("common.cuh", ("S::ABREAST > 1 ? rank.part * (S", "S::ABREAST > 1 ? 0 * (S")),
    ),
    "those abreast take a part of k": (
        "abreast behind parts",
        replaced("common.cuh", ("(S::ABREAST > 1 ? 1 : PARTS)", "PARTS")),
    ),
    "gates lie as for one warpgroup": (
        "gated, abreast before parts",
        replaced("loads.cuh", ("row + quarter % 2 * S::N + quarter / 2", "row + quarter / 2 * S::N + quarter % 2")),
    ),
    "weights wait for one warp too many": (
        "products",
        replaced("kernel.cu", ("CONSUMER_WARPS * HALVES)", "CONSUMER_WARPS * HALVES + 1)")),
    ),
    "weights do not wait for slots": (
        "high products",
        replaced("loads.cuh", ("wait_blocks<HALVES>(shared + B_FREE + 8 * ring.slot, ring.turn ^ 1);", "")),
    ),
    "activations do not wait for those who await": (
        "products",
        replaced("loads.cuh", ("if (awaited < wanted)", "if (false)")),
    ),
    "more is said to be awaited than is": (
        "products",
        replaced("semaphore_waits.cuh", ("ordinal(tasks, number, k - 1)", "ordinal(tasks, number, end - 1)")),
    ),
    "no proxy fence before a load": (
        "products",
        replaced("loads.cuh", (">= wanted; });\n                    fence_proxy_async_global();", ">= wanted; });")),
    ),
    "no proxy fence before a post": ("products", replaced("kernel.cu", ("fence_proxy_async_global();", ""))),
    "runs are not counted": ("products", replaced("loads.cuh", ("arguments.state[0] = epoch + 1;", ""))),
    "blocks end before others have read them": ("products by two", replaced("kernel.cu", ("ends.drain();", ""))),
    "buffers of sums are written before they are read": (
        "products by two",
        replaced(
            "ends.cuh",
            ("wait_cta(shared + SUMS_FREE + 8 * writing.slot, writing.turn ^ 1);\n        if (PARTS", "if (PARTS"),
        ),
    ),
    "warps turn round in one another's buffers": (
        "a residual block",
        replaced("ends.cuh", ("thread / 32 * ALONE_BYTES", "thread / 64 * ALONE_BYTES")),
    ),
    "all rows of taps are the first one": (
        "convolutions, taps of a row",
        replaced("loads.cuh", ("k % S::TAPS / S::SLOT_TAPS * S::SLOT_TAPS", "0")),
    ),
    "blocks of pairs end while others say that slots are free": (
        "pairs",
        replaced("kernel.cu", ("__syncwarp();\n        cluster_barrier();", "")),
    ),
    "pairs hand over in buffers that are not stored": (
        "pairs",
        replaced("handover.cuh", ("wait_cta(shared + SUMS_FREE + 8 * buffer, ring.turn ^ 1);", "")),
    ),
    "sums of a cut k are not waited for": (
        "pairs whose k is cut",
        replaced("handover.cuh", ("until([=] { return load_acquire_gpu_s32(word) != 0; });", "")),
    ),
    "a query sees the key behind it": (
        "attention",
        replaced("attention.cuh", ("mine > query)", "mine > query + 1)")),
    ),
    "keys are multiplied before they are there": (
        "attention of 128 columns",
        replaced(
            "attention.cuh",
            (
                "part < OF_KEYS; ++part) wait_cta(shared + A_FULL + 8 * slots[part], turns[part]);",
                "part < OF_KEYS; ++part) {}",
            ),
        ),
    ),
    "values are multiplied before they are there": (
        "attention of 128 columns",
        replaced("attention.cuh", ("int part = OF_KEYS; part < S::BLOCK_SLOTS", "int part = 9; part < S::BLOCK_SLOTS")),
    ),
    "values are given back while they are multiplied": (
        "attention, high",
        replaced("attention.cuh", ("if (sees) add_values(scores);", "give_all_back(); if (sees) add_values(scores);")),
    ),
    "warps meet in slots that others still read": (
        "attention",
        replaced("attention.cuh", ("barrier_sync<3, CONSUMERS>();  // all have read", "// all have read")),
    ),
    "warps meet before their sums are there": (
        "attention",
        replaced("attention.cuh", ("}\n        barrier_sync<3, CONSUMERS>();", "}")),
    ),
    "slots are given back before warps have met": (
        "attention",
        together(
            replaced(
                "attention.cuh", ("if (GROUPS == 1 || block + GROUPS < blocks) give_all_back();", "give_all_back();")
            ),
            replaced("attention.cuh", ("}\n        give_all_back();", "}")),
        ),
    ),
    "slots of the other group are given back before they are there": (
        "attention to all keys",
        replaced("attention.cuh", ("if (GROUPS > 1) wait_cta(shared + A_FULL + 8 * ring.slot, ring.turn);", "")),
    ),
    "sums keep their old peak": (
        "attention, high",
        replaced("attention.cuh", ("sums[box][i] *= shrink, sums[box][i + 1] *= shrink;", ";")),
    ),
    "values of other keys": (
        "attention, high, of 128 columns",
        replaced("attention.cuh", ("step * (16 * 128 / 16)", "step * (32 * 128 / 16) % 512")),
    ),
    "weights in each other's columns": (
        "attention of 128 columns",
        replaced("attention.cuh", ("rounded[i / 4][i % 4]", "rounded[i / 4][i % 4 ^ 1]")),
    ),
    "attention does not wait for those who await": (
        "attention",
        replaced("loads.cuh", ("if (awaited < wanted)", "if (awaited < wanted && !S::ATTENTION)")),
    ),
    "sums of a cut k are not all there": (
        "pairs whose k is cut",
        replaced(
            "handover.cuh",
            ("    __syncwarp();\n    if (thread % 32 == 0) add_release", "    if (thread % 32 == 0) add_release"),
        ),
    ),
}


def test_every_fault_that_is_planted_at_night_still_changes_the_source() -> None:
    assert without_effect({fault: patch for fault, (_, patch) in FAULTS.items()}, KERNEL.texts()) == []


@pytest.mark.parametrize("fault", gate_third(FAULTS))
def test_a_planted_fault_is_detected(make, fault) -> None:
    name, patch = FAULTS[fault]
    case = CASES[name]
    assert any(wrong_runs(make(plan_for(name), patch, case[4]), case[0], range(60)))


def test_attention_that_waits_for_its_own_rows_alone_goes_wrong(make) -> None:
    chain, *_, kilobytes = CASES["attention"]
    assert any(wrong_runs(make(plan_for("attention", own_rows_alone()), kilobytes=kilobytes), chain, range(24)))


@pytest.mark.parametrize(
    "name", ["products", "products by two", "pairs", "bias and residual", "convolutions, rows", "attention"]
)
def test_without_its_waits_a_chain_goes_wrong(make, name) -> None:
    case = CASES[name]
    policy = case[0].policy()
    weak = replace(policy, edges=tuple(replace(e, value=parse("0", ("x", "y", "z"))) for e in policy.edges))
    assert any(wrong_runs(make(plan_for(name, weak), kilobytes=case[4]), case[0], range(24)))


def test_a_wait_that_cannot_end_is_recorded_and_the_next_run_is_right(make) -> None:
    case = CASES["products"]
    policy = case[0].policy()
    strong = replace(policy, edges=tuple(replace(e, value=parse("1000", ("x", "y", "z"))) for e in policy.edges))
    kernel = make(plan_for("products", strong))
    assert any("a wait gave up: [1, 1, " in line for line in wrong_runs(kernel, case[0], range(2)))


def test_counts_go_on_beyond_what_a_word_holds(make) -> None:
    chain, *_ = CASES["products by two"]
    plan = plan_for("products by two")
    kernel = make(plan)
    kernel.begin_after(2**31 // int(plan.waits[:, 4].max()) - 3)
    assert not list(wrong_runs(kernel, chain, range(6)))
