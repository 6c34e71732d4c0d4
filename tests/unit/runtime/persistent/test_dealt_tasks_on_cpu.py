"""Tiles that a queue on the GPU or a co-pilot on the CPU assigns: the sources of the kernel and the co-pilot in
adversarial orders, always with the same bits; planted faults are detected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from unittest import mock

import pytest

from tests.support.orders import seeds
from tests.support.runtime.kernel_on_cpu import HostKernel, compile_machine, compiled, compiler_missing
from tests.support.runtime.planted import Patch, gate_third, replaced, without_effect
from tests.unit.runtime.persistent.kernel_cases import CASES, own_rows_alone, plan_for, wrong_runs
from tileprof.policy.format import Policy
from tileprof.policy.format.expression import parse
from tileprof.runtime.copilot import copilot_build as pilot_build
from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.copilot.copilot import Copilot
from tileprof.runtime.persistent import source
from tileprof.runtime.persistent.dealing import Dealer, link_words
from tileprof.runtime.persistent.persistent_build import KERNEL
from tileprof.runtime.persistent.plan import Plan

pytestmark = pytest.mark.skipif(compiler_missing(), reason="needs g++, which compiles kernel and co-pilot for the CPU")

NAMES = (
    "the smallest products", "products by four", "gated products by two", "gated pairs", "bias and residual by two",
    "convolutions, rows, short rings", "a residual block", "abreast behind parts", "attention", "attention, high",
)  # fmt: skip

PLAIN = Choices(order="stages", speculate=False, depth=1)
CHOICES = {
    "ahead": Choices(),
    "plain": PLAIN,
    "affinity": Choices(affinity=True, speculate=False),
    "far ahead": Choices(affinity=True, depth=6),
    "deadline": Choices(order="deadline", deadlines_us=(50.0,)),
}
RUNS = 4
"""Orders of each case in the gate."""
URGENT = Choices(order="deadline", deadlines_us=(math.inf, 40.0), speculate=False, overwrite=True)
OVERWRITING = {"overwrite": URGENT, "overwrite, ahead": replace(URGENT, speculate=True)}


@pytest.fixture(scope="module")
def make(tmp_path_factory) -> Callable[..., HostKernel]:
    folder: Path = tmp_path_factory.mktemp("kernels")
    compile_machine(folder)
    numbers = count()

    def make(
        name: str,
        choices: Choices | None = None,
        patch: Patch | None = None,
        pilot_patch: Patch | None = None,
        policy: Policy | None = None,
    ) -> HostKernel:
        """Return a case's kernel.

        With ``choices``, a co-pilot assigns tiles. ``patch`` and ``pilot_patch`` change the sources; ``policy``
        replaces the case's own.
        """
        plan: Plan = plan_for(name, policy)
        dealer = Dealer.QUEUE if choices is None else Dealer.PILOT
        with mock.patch.object(source, "SHARED_BYTES", 1024 * CASES[name][4]):
            claims = choices is not None and choices.overwrite
            library = compiled(plan, folder / str(next(numbers)), patch, dealer, claims=claims)
        if choices is None:
            return HostKernel(plan, library, dealer)
        text = pilot_build.SOURCE.read_text()
        pilot_library = pilot_build.compiled(plan, choices, pilot_patch("pilot.cpp", text) if pilot_patch else text)
        return HostKernel(plan, library, dealer, Copilot(link_words(plan), pilot_library, pinned=False, threaded=False))

    return make


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory) -> None:
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path_factory.getbasetemp() / "pilots"))


@pytest.mark.orders
@pytest.mark.parametrize("name", NAMES)
def test_a_queue_on_the_gpu_gives_the_same_bits_in_every_order(make, name) -> None:
    assert not list(wrong_runs(make(name), CASES[name][0], seeds(RUNS, NAMES.index(name))))


@pytest.mark.orders
@pytest.mark.parametrize(
    ("name", "choices"),
    [
        pytest.param(name, choices, marks=[pytest.mark.nightly] if (row + column) % 2 else [])
        for row, name in enumerate(["products by two", "gated pairs", "bias and residual", "attention"])
        for column, choices in enumerate(CHOICES)
    ],
)  # each choice with two chains in the gate
def test_a_copilot_gives_the_same_bits_in_every_order(make, name, choices) -> None:
    kernel = make(name, CHOICES[choices])
    orders = seeds(RUNS, list(CHOICES).index(choices))
    assert not list(wrong_runs(kernel, CASES[name][0], orders))
    counts = kernel.pilot.counts()
    assert counts.runs >= len(orders) - 1
    assert (counts.ahead > 0) == CHOICES[choices].speculate
    assert (counts.own > 0) == (choices == "affinity")
    assert kernel.pilot.ended_us()[0] > 0


@pytest.mark.parametrize("choices", list(OVERWRITING))
def test_a_copilot_that_overwrites_commands_gives_the_same_bits_in_every_order(make, choices) -> None:
    kernel = make("two programs", OVERWRITING[choices])
    assert not list(wrong_runs(kernel, CASES["two programs"][0], range(30)))
    counts = kernel.pilot.counts()
    assert counts.runs >= 29
    assert 0 < counts.too_late < counts.overwritten
    assert (counts.ahead > 0) == OVERWRITING[choices].speculate


QUEUE_FAULTS: dict[str, tuple[str, Patch]] = {
    "a task begins with its first input": (
        "products",
        replaced("dealing.cuh", ("if (count != (run + 1) * static_cast<u32>(needs)) continue;", "")),
    ),
    "places of earlier runs are taken for this one's": (
        "bias and residual",
        replaced("dealing.cuh", ("(run + 1) % 2048 << NUMBER_BITS", "1u << NUMBER_BITS")),
    ),
    "tickets of earlier runs are counted": (
        "products",
        replaced("dealing.cuh", (" - run * static_cast<u32>(TASKS + CLUSTERS)", "")),
    ),
    "waiters are told one post early": ("products", replaced("dealing.cuh", ("+ 1u - run *", "+ 2u - run *"))),
    "a role need not have read a slot": ("products by two", replaced("common.cuh", ("SPLIT * (1 +", "SPLIT * (0 +"))),
    "no proxy fence before a pair's load": (
        "pairs",
        replaced("loads.cuh", ("if (DEALT) fence_proxy_async_global();  // a ready", "// a ready")),
    ),
    "no proxy fence before a post": (
        "products",
        replaced(
            "kernel.cu",
            ("        fence_proxy_async_global();\n        if constexpr (DEALT)", "        if constexpr (DEALT)"),
        ),
    ),
    "what is stored is not waited for": (
        "high products",
        replaced("kernel.cu", ("wait_cta(shared + STORED + 8 * ring.slot, ring.turn);", "")),
    ),
    "clusters end while slots are given back": (
        "products by two",
        replaced("kernel.cu", ("PAIRED || (DEALT && SPLIT > 1)", "PAIRED")),
    ),
}


def test_attention_that_waits_for_its_own_rows_alone_goes_wrong(make) -> None:
    assert any(wrong_runs(make("attention", policy=own_rows_alone()), CASES["attention"][0], range(24)))


@pytest.mark.parametrize("fault", gate_third(QUEUE_FAULTS))
def test_a_fault_planted_in_the_queue_is_detected(make, fault) -> None:
    name, patch = QUEUE_FAULTS[fault]
    assert any(wrong_runs(make(name, patch=patch), CASES[name][0], range(60)))


PILOT_FAULTS: dict[str, tuple[str, Choices, Patch | None, Patch | None]] = {
    "a task is ready with its first input": (
        "products",
        PLAIN,
        None,
        replaced("pilot.cpp", ("++pending[WAITERS[i]] == NEEDS[WAITERS[i]]", "++pending[WAITERS[i]] == 1")),
    ),
    "tasks ahead are said to be ready": (
        "products",
        Choices(),
        None,
        replaced("pilot.cpp", ("send(cluster, task, AWAITS)", "send(cluster, task, 0)")),
    ),
    "a run ends before its last task": (
        "products",
        PLAIN,
        None,
        replaced("pilot.cpp", ("++sent == TASKS", "++sent == TASKS - 1")),
    ),
    "tasks go ahead of those that they wait for": (
        "products",
        Choices(order="critical", depth=6),
        None,
        replaced(
            "pilot.cpp",
            (
                "for (int task : READY_TASKS) ready.insert(PLACE[task]);",
                "for (int task = 0; task < TASKS; ++task) sendable.insert(task);",
            ),
            (
                "if (!was_sent[AT_PLACE[place]]) return AT_PLACE[place];",
                "if (!was_sent[AT_PLACE[TASKS - 1 - place]]) return AT_PLACE[TASKS - 1 - place];",
            ),
        ),
    ),
    "one block's part is taken for a tile": (
        "products by two",
        PLAIN,
        replaced("dealing.cuh", ("if (done != (run + 1) * SPLIT) return;", "")),
        None,
    ),
    "commands of an earlier run are taken": (
        "products",
        PLAIN,
        replaced(
            "dealing.cuh", ("arguments.flags[TAKEN_AT + cluster] = taken;", "arguments.flags[TAKEN_AT + cluster] = 0;")
        ),
        None,
    ),
    "a claim repeats what stands there later": (
        "two programs",
        URGENT,
        replaced(
            "dealing.cuh",
            (
                "link_claims(arguments, cluster) + place, seen);",
                "link_claims(arguments, cluster) + place, (nanosleep(20), load_acquire_sys_u64(command)));",
            ),
        ),
        None,
    ),
    "nothing is claimed": (
        "two programs",
        URGENT,
        replaced("dealing.cuh", ("if constexpr (CLAIMS) store_relaxed", "if constexpr (false) store_relaxed")),
        None,
    ),
    "an overwritten task is dealt before the claim": (
        "two programs",
        URGENT,
        None,
        replaced(
            "pilot.cpp",
            (
                "++commands, ++undecided,",
                "was_sent[command.before] = false, ready.insert(PLACE[command.before]), ++commands, ++undecided,",
            ),
        ),
    ),
    "the CPU is told before the proxy fence": (
        "products",
        PLAIN,
        replaced(
            "kernel.cu",
            ("        fence_proxy_async_global();\n        if constexpr (DEALT)", "        if constexpr (DEALT)"),
        ),
        None,
    ),
}


def test_every_fault_that_is_planted_at_night_still_changes_the_source() -> None:
    texts = KERNEL.texts() | {pilot_build.SOURCE.name: pilot_build.SOURCE.read_text()}
    of_copilots = {fault: patch or pilot_patch for fault, (*_, patch, pilot_patch) in PILOT_FAULTS.items()}
    assert without_effect({fault: patch for fault, (_, patch) in QUEUE_FAULTS.items()}, texts) == []
    assert without_effect(of_copilots, texts) == []


@pytest.mark.parametrize("fault", gate_third(PILOT_FAULTS))
def test_a_fault_planted_in_the_copilot_is_detected(make, fault) -> None:
    name, choices, patch, pilot_patch = PILOT_FAULTS[fault]
    assert any(wrong_runs(make(name, choices, patch, pilot_patch), CASES[name][0], range(60)))


def test_a_copilot_that_has_ended_ends_the_kernel_and_a_new_one_begins_anew(make) -> None:
    name = "products"
    kernel = make(name, PLAIN)
    assert not list(wrong_runs(kernel, CASES[name][0], range(2)))
    kernel.pilot.close()
    kernel.beside(None)
    assert "a wait gave up" in kernel.run(1)
    kernel.begin_anew()
    assert kernel.run(2) is None


@pytest.mark.parametrize("choices", [None, PLAIN, Choices()], ids=["a queue on the GPU", "ready", "ahead"])
def test_a_task_that_never_becomes_ready_is_given_up(make, choices) -> None:
    chain = CASES["products"][0]
    policy = chain.policy()
    strong = replace(policy, edges=tuple(replace(e, value=parse("1000", ("x", "y", "z"))) for e in policy.edges))
    kernel = make("products", choices, policy=strong)
    assert any("a wait gave up" in message for message in wrong_runs(kernel, chain, range(2)))


def test_a_copilot_that_does_not_answer_is_given_up(make) -> None:
    name = "products"
    kernel = make(name, Choices())
    assert not list(wrong_runs(kernel, CASES[name][0], range(1)))
    kernel.beside(None)
    assert "a wait gave up" in kernel.run(1)
