"""A pipeline passes the persistent kernel what it needs; the operators' own tiles on the CPU stand for the kernel."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
import torch

pytest.importorskip("triton")

from tileprof.cli.running import run_compare as comparing
from tileprof.cli.verbs.run import VERB
from tileprof.devices import get
from tileprof.errors import UserError
from tileprof.runtime.errors import WaitTimeoutError
from tileprof.runtime.measuring.measure import convolution_pair, copy_pair, gelu_mlp
from tileprof.runtime.pipeline import FellBackWarning
from tileprof.runtime.policy_on_gpu import GpuPipeline


class Launcher:
    """Runs a plan's tasks in stage order, and counts runs as the kernel does."""

    launched: ClassVar[list] = []

    def __init__(self, plan, device, *, delay_ns, timeout_ns, options, whole) -> None:
        self.plan, self.options, self.whole = plan, options, whole

    def launch(self, tensors, shared) -> None:
        self.launched.append(self.plan)
        _, flags, state, *_ = shared
        order = sorted(range(len(self.plan.tasks)), key=lambda t: self.plan.tasks[t, 0])
        for task in order:
            stage, _, _, tile = self.plan.tasks[task].tolist()
            operator = self.plan.stages[stage].operator
            for _, _, semaphore, value, posts in self.plan.waits[
                self.plan.wait_ptr[task] : self.plan.wait_ptr[task + 1]
            ].tolist():
                assert flags[32 * semaphore] >= int(state[0]) * posts + value
            operator.run_tile(*operator.place(tile), tensors[stage])
            for semaphore in self.plan.posts[self.plan.post_ptr[task] : self.plan.post_ptr[task + 1]].tolist():
                flags[32 * semaphore] += self.plan.split
        state[0] += 1


@pytest.fixture(autouse=True)
def fake_gpu(monkeypatch):
    """Provide a GPU of compute capability 9.0 that is the CPU."""
    module = ModuleType("tileprof.runtime.persistent.persistent_launch")
    module.Launcher, module.max_clusters = Launcher, lambda split: 132 // split
    monkeypatch.setitem(sys.modules, "tileprof.runtime.persistent.persistent_launch", module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device", lambda *_: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: "the stream")
    Launcher.launched.clear()


PRODUCTS = gelu_mlp(70, (64, 48), (64, 96), 192, 320)
PAIR = convolution_pair(2, 6, 64, (12, 32))


@pytest.mark.parametrize("chain", [PRODUCTS, PAIR], ids=["products", "convolutions"])
@pytest.mark.parametrize(
    ("schedule", "launches"),
    [
        ("persistent", 1),
        ("persistent-dynamic", 1),
        ("ccks", 1),
        ("ccks-ready", 1),
        ("ccks-overwrite", 1),
        ("persistent-stages", 2),
        ("persistent-pdl", 2),
        ("persistent-unsynchronised", 1),
    ],
)
def test_every_stage_gets_its_tensors_run_after_run(chain, schedule, launches) -> None:
    pipeline = GpuPipeline(chain.policy(), schedule=schedule, device="cpu")
    inputs = pipeline.example()
    for _ in range(3):
        pipeline.poison()
        out = pipeline(**inputs)
        expected = pipeline.reference(inputs)[next(iter(pipeline.outputs))]
        assert (out.float() - expected.float()).norm() < 3e-3 * expected.float().norm()
        pipeline.check()
    assert len(Launcher.launched) == 3 * launches
    assert bool(len(Launcher.launched[0].waits)) == (launches == 1 and schedule != "persistent-unsynchronised")


def test_a_launch_starts_as_a_whole_where_it_is_asked_for_and_has_something_to_wait_for() -> None:
    for schedule, launches, whole in (("persistent", 1, True), ("persistent-stages", 2, False)):
        for request in (True, False):
            Launcher.launched.clear()
            pipeline = GpuPipeline(PRODUCTS.policy(), schedule=schedule, device="cpu", unchecked=True, whole=request)
            assert [result.whole for result in pipeline._persistent._launchers] == [request and whole] * launches


def test_a_second_pipeline_shares_the_kernel_but_no_memory() -> None:
    first = GpuPipeline(PRODUCTS.policy(), schedule="persistent", device="cpu")
    second = first.twin()
    inputs = first.example()
    snapshot = first(**inputs).clone()
    second(**{name: -tensor for name, tensor in inputs.items()})
    assert torch.equal(first(**inputs), snapshot)
    assert len({id(plan) for plan in Launcher.launched}) == 1


def test_what_the_kernel_refuses_runs_under_another_scheduler_and_says_why() -> None:
    policy = copy_pair(8).policy()
    for schedule, other in (
        ("persistent", "cusync"),
        ("ccks-overwrite", "cusync"),
        ("persistent-stages", "graph"),
        ("persistent-pdl", "pdl"),
        ("persistent-unsynchronised", "unsynchronised"),
    ):
        with pytest.warns(FellBackWarning, match=rf"it is pointwise.*; the stages run under {other} instead"):
            pipeline = GpuPipeline(policy, schedule=schedule, device="cpu")
        assert pipeline.scheduler.name == other


def test_another_architecture_falls_back_too(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (10, 0))
    with pytest.warns(FellBackWarning, match=r"as compute capability 9.0 does; this GPU has 10.0"):
        GpuPipeline(gelu_mlp(64, (64, 64), (64, 64), 64, 64).policy(), schedule="persistent", device="cpu")


def test_a_wait_that_timed_out_is_reported_once_and_counters_restart() -> None:
    pipeline = GpuPipeline(PRODUCTS.policy(), schedule="persistent", device="cpu")
    inputs = pipeline.example()
    pipeline(**inputs)
    blocks = pipeline.plan.split
    pipeline._record.copy_(torch.tensor([1, 1, 3, 0, 2 * blocks, 5 * blocks, 0, 0], dtype=torch.int32))
    with pytest.raises(
        WaitTimeoutError, match=r"stage 1 \(down\), tile 3: semaphore 0 .* seen 2, expected 5.* whole=True"
    ):
        pipeline.check()
    pipeline.check()
    assert all(not tensor.any() for tensor in pipeline._counts)
    pipeline(**inputs)


def test_tiles_that_neither_kernel_takes_are_an_error() -> None:
    chain = gelu_mlp(64, (64, 44), (64, 64), 64, 64)
    with pytest.warns(FellBackWarning), pytest.raises(UserError, match="powers of two"):
        GpuPipeline(chain.policy(), schedule="persistent", device="cpu")


def test_by_default_a_pipeline_takes_the_scheduler_with_the_predicted_gain() -> None:
    gains = GpuPipeline(PAIR.policy(), schedule="auto", device="cpu")
    assert gains.scheduler.name == "persistent"
    assert "faster than its stages one after the other" in gains.reason
    assert gains._persistent.plans == [gains._plan], "what was judged is what runs"
    copies = copy_pair(8).policy()
    for percent, name in ((12.5, "cusync"), (-3.0, "graph")):
        with_prediction = GpuPipeline(
            replace(copies, prediction={"gain_percent": percent}), schedule="auto", device="cpu"
        )
        assert with_prediction.scheduler.name == name
        assert f"{percent:+g}%" in with_prediction.reason
    assert GpuPipeline(copies, schedule="auto", device="cpu").scheduler.name == "graph"


def test_the_command_runs_a_policy_on_the_gpu_and_compares(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a pretended GPU")
    monkeypatch.setattr("tileprof.runtime.policy_on_gpu.GpuPipeline", partial(GpuPipeline, device="cpu"))
    monkeypatch.setattr("tileprof.cli.running.run_gpu._times", lambda *_: [])  # this needs events of a GPU
    PAIR.policy().save(tmp_path / "p.json")
    assert run(tmp_path / "p.json") == 0
    output = capsys.readouterr().out
    assert "On a pretended GPU under persistent (modelled" in output
    assert "y: agrees with PyTorch" in output
    assert "20 runs, the same bits in each" in output
    assert run(tmp_path / "p.json", "--scheduler", "persistent-stages", "--json") == 0
    assert json.loads(capsys.readouterr().out)["gpu"]["scheduler"] == "persistent-stages"
    monkeypatch.setattr(Launcher, "launch", lambda *_: None)
    assert run(tmp_path / "p.json") == 1
    assert "y: DIFFERS from PyTorch (relative error not finite)" in capsys.readouterr().out
    with pytest.raises(UserError, match="wrong results, for timing"):
        run(tmp_path / "p.json", "--scheduler", "unsynchronised")
    with pytest.raises(UserError, match="no scheduler 'cusink'"):
        run(tmp_path / "p.json", "--scheduler", "cusink")
    with pytest.raises(UserError, match="cannot be combined with --compare"):
        run(tmp_path / "p.json", "--scheduler", "graph", "--compare")


def run(*words: object) -> int:
    parser = ArgumentParser()
    VERB.prepare(parser)
    return VERB.run(parser.parse_args([str(w) for w in words]))


def test_the_persistent_rows_are_predicted_from_its_stages_alone(monkeypatch) -> None:
    monkeypatch.setattr("tileprof.runtime.policy_on_gpu.GpuPipeline", partial(GpuPipeline, device="cpu"))
    monkeypatch.setattr("tileprof.runtime.measuring.stage_times.persistent_stage_us", lambda _: [30.0, 20.0])
    actual = comparing.predict_persistent([PAIR.policy()] * 2, get("H200"))
    assert actual["persistent-stages"] == 50.0
    assert actual["persistent, policy 1"] == actual["persistent, policy 2"] <= 50.0
    assert actual["persistent-unsynchronised"] <= actual["persistent, policy 1"]


def test_a_comparison_has_the_rows_that_the_tiles_allow_each_with_its_own_baseline(monkeypatch) -> None:
    us = {
        "PyTorch in a graph": 90.0,
        "persistent-stages": 60.0,
        "persistent-pdl": 55.0,
        "persistent": 40.0,
        "persistent-unsynchronised": 35.0,
    }

    def measurements(chain, policies, *, schedulers, beside_torch):
        names = [*(["PyTorch in a graph"] if beside_torch else []), *schedulers]
        return [{"row": name, "us": us[name], "correct": True} for name in names]

    monkeypatch.setattr("tileprof.runtime.policy_on_gpu.GpuPipeline", partial(GpuPipeline, device="cpu"))
    for name, value in {
        "measure.measure": measurements,
        "measure.measured_on": lambda: {"device": "NVIDIA H200"},
        "stage_times.persistent_stage_us": lambda _: [30.0, 30.0],
    }.items():
        monkeypatch.setattr(f"tileprof.runtime.measuring.{name}", value)
    actual = {row["row"]: row for row in comparing.compare([PRODUCTS.policy()])["rows"]}
    assert list(actual) == list(us)
    assert actual["persistent"]["gain_over"] == "persistent-stages"
    assert actual["persistent"]["gain"] == pytest.approx(1 / 3)
    expected = actual["persistent"]["predicted_gain"]
    assert actual["persistent"]["residual_points"] == pytest.approx(100 * (1 / 3 - expected))
    assert "predicted_us" not in actual["PyTorch in a graph"]
