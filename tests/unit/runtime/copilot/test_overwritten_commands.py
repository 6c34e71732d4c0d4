"""Commands that a co-pilot overwrites before they are taken: each task runs once, after its inputs, in every order in
which words cross the link, and planted faults are detected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.runtime.chains import matrix, weight
from tests.support.runtime.kernel_on_cpu import compiler_missing
from tests.support.runtime.planted import Patch, gate_third, replaced, without_effect
from tests.unit.runtime.copilot.machine_of_workers import Machine
from tileprof.runtime.chain import Chain
from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.copilot.copilot import Copilot
from tileprof.runtime.copilot.copilot_build import SOURCE, compiled
from tileprof.runtime.persistent.dealing import link_words
from tileprof.runtime.persistent.plan import Plan
from tileprof.runtime.persistent.task_lists import plan_of
from tileprof.runtime.stages.gemm import Gemm

pytestmark = pytest.mark.skipif(compiler_missing(), reason="needs g++, which compiles the co-pilot")

DEADLINES = (math.inf, 60.0, 30.0)
CHOICES = {
    "deadline": Choices(order="deadline", deadlines_us=DEADLINES, speculate=False, overwrite=True),
    "deadline, ahead": Choices(order="deadline", deadlines_us=DEADLINES, overwrite=True),
    "critical, ahead": Choices(overwrite=True),
    "affinity": Choices(order="stages", affinity=True, overwrite=True),
}


def square(stages: int, columns: int, rows: int = 64) -> Chain:
    """Return products, each of which reads the one before."""
    x = [matrix(f"x{n}", rows, columns) for n in range(stages + 1)]
    operators = [Gemm(x[n], weight(f"w{n}", columns, columns), x[n + 1], tile=(64, 64)) for n in range(stages)]
    return Chain(tuple(f"s{n}" for n in range(stages)), tuple(operators))


def three_programs() -> Plan:
    """Stages of 4, 4, 4, of 3, 3 and of 1, 1, 1 tiles on three clusters."""
    chain = square(3, 128, 128).beside(square(2, 192)).beside(square(3, 64))
    return plan_of(chain.policy(), chain, clusters=lambda _: 3, cuts=False)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory) -> None:
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path_factory.getbasetemp() / "pilots"))


def pilot_for(plan: Plan, choices: Choices, patch: Patch | None = None) -> Copilot:
    text = SOURCE.read_text()
    library: Path = compiled(plan, choices, patch("pilot.cpp", text) if patch else text)
    return Copilot(link_words(plan), library, pinned=False, threaded=False)


def wrong_runs(plan: Plan, pilot: Copilot, seeds: range) -> Iterator[str]:
    """Return the faults, by the seed of the order; runs follow each other in the same rings."""
    machine = Machine(plan, pilot)
    for seed in seeds:
        message = machine.run(seed)
        if message is not None:
            yield f"seed {seed}: {message}"
            pilot.zero_()
            machine = Machine(plan, pilot)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return three_programs()


@pytest.mark.parametrize("choices", list(CHOICES))
def test_every_task_runs_once_in_every_order(plan, choices) -> None:
    pilot = pilot_for(plan, CHOICES[choices])
    assert not list(wrong_runs(plan, pilot, range(40)))
    counts = pilot.counts()
    assert 0 < counts.too_late < counts.overwritten  # both versions of a command were taken
    assert counts.runs == 40
    pilot.close()


@pytest.mark.nightly
@pytest.mark.parametrize("choices", list(CHOICES))
def test_every_task_runs_once_in_a_thousand_orders(plan, choices) -> None:
    assert not list(wrong_runs(plan, pilot_for(plan, CHOICES[choices]), range(40, 1040)))


def test_a_search_looks_at_each_cluster_twice_at_most() -> None:
    """Where all clusters have taken what a task should overwrite. On a GPU, searches that began anew with each of 132
    clusters took 0.2 ms.
    """
    x = [matrix(f"x{n}", 64, columns) for n, columns in enumerate((64, 64, 256))]
    operators = [
        Gemm(x[n], weight(f"w{n}", *shape), x[n + 1], tile=(64, 64)) for n, shape in enumerate([(64, 64), (64, 256)])
    ]
    chain = square(1, 1024).beside(Chain(("s0", "s1"), tuple(operators)))
    wide = plan_of(chain.policy(), chain, clusters=lambda _: 6, cuts=False)
    choices = Choices(order="deadline", deadlines_us=(math.inf, 30.0), speculate=False, overwrite=True)
    counting = replaced(
        "pilot.cpp",
        ("ahead = 0, own = 0;", "ahead = 0; mutable u64 own = 0;"),
        ("bool replace(int task, int before) {", "bool replace(int task, int before) { ++ahead;"),
        ("int command_for(int task, int cluster) const {", "int command_for(int task, int cluster) const { ++own;"),
    )
    pilot = pilot_for(wide, choices, counting)
    machine = Machine(wide, pilot)
    runs = [0] * len(wide.tasks)
    for number, worker in enumerate(machine.workers):
        machine.arrive(worker, number, 2, runs)
        while machine.fetch(worker, number, 2, runs)[0]:
            machine.land(worker, number, 2, runs)  # the claim
    urgent = int(np.flatnonzero(wide.tasks[:, 0] == 1)[0])
    [owner] = [worker for worker in machine.workers if urgent in worker.fetched]
    machine.work(owner, machine.workers.index(owner), 2, runs)
    machine.land(owner, 0, 2, runs)
    assert pilot.step()  # four tasks are ready, and there is room for one
    counts = pilot.counts()
    assert counts.ahead == 2  # searches, of which one finds that a new command is as good
    assert wide.clusters < counts.own <= 2 * wide.clusters
    pilot.close()


FAULTS: dict[str, tuple[Choices, Patch]] = {
    "the other task is dealt before the claim": (
        CHOICES["deadline"],
        replaced(
            "pilot.cpp",
            ("owner[task] = best;", "owner[task] = best; was_sent[command.before] = false; deal();"),
        ),
    ),
    "the new task is taken to have won": (
        CHOICES["deadline"],
        replaced("pilot.cpp", ("const int won = static_cast<int>(value & ~AWAITS);", "const int won = command.task;")),
    ),
    "the other task is forgotten": (
        CHOICES["deadline"], replaced("pilot.cpp", ("was_sent[lost] = false;", "")),
    ),
    "a command is overwritten twice": (
        CHOICES["deadline, ahead"], replaced("pilot.cpp", ("command.before < 0 && better", "better")),
    ),
    "a task that others wait for goes elsewhere": (
        CHOICES["deadline, ahead"], replaced("pilot.cpp", ("if (was_sent[WAITERS[i]]) return false;", "")),
    ),
    "what waits for an overwritten task is sent ahead": (
        CHOICES["deadline, ahead"], replaced("pilot.cpp", ("if (SPECULATE) begun.remove(command.before);", "")),
    ),
    "claims of the run before are read": (
        CHOICES["deadline"],
        replaced("pilot.cpp", ("u32 value; rings.claimed(", "u32 value; taken[cluster] % 2 || rings.claimed(")),
    ),
    "a task that waits is taken for a ready one": (
        CHOICES["deadline, ahead"],
        replaced("pilot.cpp", ("if (done.met(lost)) {", "if (true) {")),
    ),
}  # fmt: skip


def test_every_fault_that_is_planted_at_night_still_changes_the_source() -> None:
    assert without_effect({name: patch for name, (_, patch) in FAULTS.items()}, {"pilot.cpp": SOURCE.read_text()}) == []


@pytest.mark.parametrize("fault", gate_third(FAULTS))
def test_a_planted_fault_is_detected(plan, fault) -> None:
    choices, patch = FAULTS[fault]
    assert any(wrong_runs(plan, pilot_for(plan, choices, patch), range(200)))
