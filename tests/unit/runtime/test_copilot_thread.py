"""The thread of the co-pilots leaves the processor to the program while there is nothing to deal; what it deals is
spread over the clusters.
"""

from __future__ import annotations

import ctypes
import time

import pytest
from kernel_on_cpu import compiler_missing

from tileprof.runtime.copilot.build import compiled
from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.copilot.copilot import Copilot, Tower
from tileprof.runtime.measuring.cases import gelu_mlp
from tileprof.runtime.persistent.dealing import COMMANDS, completions
from tileprof.runtime.persistent.lower import plan_of

pytestmark = pytest.mark.skipif(compiler_missing(), reason="needs g++, which compiles the thread")

NAP_S = 50e-6
PATIENCE_S = 60


def test_it_naps_between_any_two_looks_and_looks_no_more_when_the_last_copilot_is_gone() -> None:
    looks = [0]

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def look(_pilot: int) -> int:
        looks[0] += 1
        return 0

    tower, end = Tower(), time.monotonic() + PATIENCE_S
    tower.add(look, 1)
    while True:  # it begins to nap when nothing has been completed for a while
        begin, before = time.monotonic(), looks[0]
        time.sleep(0.05)
        seen, elapsed_s = looks[0] - before, time.monotonic() - begin
        if 0 < seen <= elapsed_s / NAP_S + 1:
            break
        assert time.monotonic() < end, f"{seen} looks in {elapsed_s:.3f} s"
    tower.remove(1)
    last = looks[0]
    time.sleep(0.01)
    assert looks[0] == last
    tower.add(look, 2)
    while looks[0] == last:
        assert time.monotonic() < end, "a co-pilot that comes later is not looked at"
        time.sleep(0.001)
    tower.remove(2)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_cluster_gets_its_next_task_while_another_has_none(tmp_path, monkeypatch, depth) -> None:
    """A run's first commands, as they stand in the rings: tasks that are ready go to as many clusters as there are."""
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path))
    chain = gelu_mlp(512, (128, 128), (128, 128), 768, 3072)  # 96 and 24 tiles
    plan = plan_of(chain.policy(), chain, clusters=lambda _: 40, cuts=False)
    ready = int((plan.tasks[:, 0] == 0).sum())
    pilot = Copilot(plan, compiled(plan, Choices(speculate=False, depth=depth)), pinned=False, flies=False)
    begin = len(pilot.memory) - completions(plan) - plan.clusters * COMMANDS
    rings = pilot.memory[begin:][: plan.clusters * COMMANDS].reshape(plan.clusters, COMMANDS)
    sent = (rings != 0).sum(dim=1).tolist()
    assert sum(sent) == min(ready, depth * plan.clusters)
    assert max(sent) - min(sent) <= 1
    pilot.close()
