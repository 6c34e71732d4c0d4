"""Kernels that a compiler times to choose between them do not belong to the program."""

from __future__ import annotations

import sys
import threading
import types

import pytest

from tileprof.record.cuda import recorded_run
from tileprof.record.cuda.records import join


@pytest.fixture
def pauses(monkeypatch):
    """Provide the hook, and what it told the library, in order."""
    monkeypatch.syspath_prepend(str(recorded_run.INPROCESS))
    import tileprof_benchmark

    messages = []
    yield (
        tileprof_benchmark.Pauses(lambda on: messages.append(("pause", on)), lambda on: messages.append(("say", on))),
        messages,
    )
    sys.modules.pop("tileprof_benchmark", None)


ONCE = [("say", 1), ("pause", 1), ("pause", 0), ("say", 0)]


def test_the_outermost_timing_of_inductor_pauses(pauses):
    hook, message = pauses
    module = types.ModuleType("benchmarking")
    exec(
        "class Slow:\n    def benchmark(self): return self.benchmark_gpu() + 1\n"
        "    def benchmark_gpu(self): return 1\n    def other(self): return 5\n",
        vars(module),
    )
    module.Thread = threading.Thread  # what the module imports stays unchanged
    hook.inductor(module)
    assert module.Slow().other() == 5
    assert message == []
    assert module.Slow().benchmark() == 2
    assert message == ONCE


def test_a_timing_that_fails_ends_its_pause(pauses):
    hook, message = pauses

    class Autotuner:
        def _bench(self):
            raise ValueError

    hook.triton(types.SimpleNamespace(Autotuner=Autotuner))
    with pytest.raises(ValueError, match=r"^$"):
        Autotuner()._bench()
    assert message == ONCE


def test_inductor_and_triton_have_what_is_hooked():
    torch_module = pytest.importorskip("torch._inductor.runtime.benchmarking")
    assert "benchmark_gpu" in vars(torch_module.InductorBenchmarker)
    assert hasattr(pytest.importorskip("triton.runtime.autotuner").Autotuner, "_bench")


def test_launches_before_and_after_a_timing_are_found_in_a_pass_without_it():
    def key(name):
        return name, (1, 1, 1), (32, 1, 1)

    reference = join.Reference([0, 1, 5, 6], [key(name) for name in "abcd"], whole=False, begins=(0, 2))
    assert join.match(reference, [key(name) for name in "abcd"], "time").row_of == {0: 0, 1: 1, 5: 2, 6: 3}
    timed_keys = [key(name) for name in "abtttcd"]
    assert join.match(reference, timed_keys, "blocks", ordinals=range(7)).row_of == {0: 0, 1: 1, 5: 5, 6: 6}
