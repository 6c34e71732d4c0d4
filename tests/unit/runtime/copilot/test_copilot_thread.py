"""The co-pilots' thread leaves the processor to the program while there is no tile to assign, and spreads tiles over
the clusters.
"""

from __future__ import annotations

import ctypes
import math
import time

import numpy as np
import pytest

from tests.support.runtime.kernel_on_cpu import compiler_missing
from tileprof.errors import UserError
from tileprof.runtime.copilot.choices import Choices, places, programs
from tileprof.runtime.copilot.copilot import Copilot, PilotThread
from tileprof.runtime.copilot.copilot_build import compiled
from tileprof.runtime.measuring.cases import gelu_mlp
from tileprof.runtime.persistent.dealing import COMMANDS, LINK_HEAD, link_words
from tileprof.runtime.persistent.task_lists import plan_of

pytestmark = pytest.mark.skipif(compiler_missing(), reason="needs g++, which compiles the thread")

NAP_S = 50e-6
PATIENCE_S = 60


def test_it_naps_between_any_two_looks_and_looks_no_more_when_the_last_copilot_is_gone() -> None:
    looks = [0]

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def look(_pilot: int) -> int:
        looks[0] += 1
        return 0

    thread, end = PilotThread(), time.monotonic() + PATIENCE_S
    thread.add(look, 1)
    while True:  # it begins to sleep when nothing has been completed for a while
        begin, before = time.monotonic(), looks[0]
        time.sleep(0.05)
        actual, elapsed_s = looks[0] - before, time.monotonic() - begin
        if 0 < actual <= elapsed_s / NAP_S + 1:
            break
        assert time.monotonic() < end, f"{actual} looks in {elapsed_s:.3f} s"
    thread.remove(1)
    last = looks[0]
    time.sleep(0.01)
    assert looks[0] == last
    thread.add(look, 2)
    while looks[0] == last:
        assert time.monotonic() < end, "a co-pilot that comes later is not looked at"
        time.sleep(0.001)
    thread.remove(2)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_cluster_gets_its_next_task_while_another_has_none(tmp_path, monkeypatch, depth) -> None:
    """A run's first commands, as they stand in the rings: ready tasks go to as many clusters as there are."""
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path))
    chain = gelu_mlp(512, (128, 128), (128, 128), 768, 3072)  # 96 and 24 tiles
    plan = plan_of(chain.policy(), chain, clusters=lambda _: 40, cuts=False)
    ready = int((plan.tasks[:, 0] == 0).sum())
    pilot = Copilot(
        link_words(plan), compiled(plan, Choices(speculate=False, depth=depth)), pinned=False, threaded=False
    )
    rings = pilot.memory[LINK_HEAD:][: plan.clusters * COMMANDS].reshape(plan.clusters, COMMANDS)
    command_counts = (rings != 0).sum(dim=1).tolist()
    assert sum(command_counts) == min(ready, depth * plan.clusters)
    assert max(command_counts) - min(command_counts) <= 1
    pilot.close()


def urgent_beside_large():
    """A large chain and a small urgent one, side by side: stages 0 and 1, 2 and 3."""
    large, small = gelu_mlp(512, (128, 128), (128, 128), 768, 3072), gelu_mlp(64, (64, 64), (64, 64), 256, 512)
    chain = large.beside(small)
    assert [op.out.tensor for op in chain.operators][2:] == [f"{op.out.tensor}'" for op in small.operators]
    return plan_of(chain.policy(), chain, clusters=lambda _: 6, cuts=False)


def test_programs_of_a_plan_do_not_wait_for_each_other() -> None:
    assert programs(urgent_beside_large()).tolist() == [0, 0, 1, 1]
    alone = gelu_mlp(64, (64, 64), (64, 64), 256, 512)
    assert programs(plan_of(alone.policy(), alone, clusters=lambda _: 6, cuts=False)).tolist() == [0, 0]


def test_tasks_of_the_program_whose_deadline_is_near_come_first() -> None:
    plan = urgent_beside_large()

    def order(choices: Choices) -> list[int]:
        return plan.tasks[np.argsort(places(plan, choices)), 0].tolist()

    small = int((plan.tasks[:, 0] >= 2).sum())
    assert min(order(Choices(order="deadline", deadlines_us=(math.inf, 30.0)))[:small]) >= 2
    assert max(order(Choices(order="deadline", deadlines_us=(30.0, math.inf)))[:-small]) <= 1
    assert max(order(Choices())[:6]) <= 1  # the longest chain first
    # Without deadlines, and with one that leaves enough time, the longest chain is first.
    assert order(Choices(order="deadline", deadlines_us=(math.inf, math.inf))) == order(Choices())
    both = order(Choices(order="deadline", deadlines_us=(1e6, 1e6)))
    assert both == order(Choices())


@pytest.mark.parametrize(
    ("order", "deadlines"), [("critical", (5.0,)), ("deadline", ()), ("deadline", (0.0, 1.0)), ("deadline", (1.0,))]
)
def test_deadlines_that_do_not_fit_are_refused(order, deadlines) -> None:
    with pytest.raises(UserError, match="deadlines"):
        places(urgent_beside_large(), Choices(order=order, deadlines_us=deadlines))
