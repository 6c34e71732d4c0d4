"""Runs of whole-model kernels as traces: clocks become tiles on SMs, and the tile graph of the trace is the graph of
the kernel's plan.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support.runtime.decoder_shapes import TINY
from tests.support.runtime.encoder_programs import pre_norm
from tests.support.runtime.networks import small
from tileprof.analysis import build_graph
from tileprof.cli.entry import main
from tileprof.cli.running import run_program
from tileprof.cli.running.timeline_trace import write_trace
from tileprof.devices import of_driver
from tileprof.errors import UserError
from tileprof.runtime.convnet.plan import plan_network
from tileprof.runtime.encoder.memory import memory_of
from tileprof.runtime.encoder.plan import plan_of
from tileprof.runtime.programs import compare
from tileprof.runtime.programs.compare import Comparison
from tileprof.runtime.programs.timeline import DECODER_STAGES, observer, observing, of_blocks, of_decoder, of_network
from tileprof.runtime.programs.whole_policy import of_blocks as plan_of_blocks
from tileprof.runtime.programs.whole_policy import of_network as plan_of_network
from tileprof.trace import load, validate

H200 = of_driver("NVIDIA H200")
SHAPE = replace(TINY, vocabulary=128)
BLOCKS, CACHED = 12, 200


def blocks_run():
    """A run in which each task takes a microsecond and waits as long."""
    plan = plan_of(pre_norm(32, 128, 2), 16, 2)
    stamps = np.zeros((len(plan.tasks), 4), np.int64)
    for tasks in plan.blocks:
        for place, task in enumerate(tasks):
            stage = plan.tasks[task].stage
            stamps[task] = 10**9 + 1000 * (20 * stage + place) + np.array([0, 500, 900, 1000])
    return plan, of_blocks(plan, stamps, 384, 200_000)


def decoder_run():
    clocks = np.zeros((BLOCKS, SHAPE.layers + 1, len(DECODER_STAGES), 4), np.int64)
    for layer in range(SHAPE.layers + 1):
        for stage, kind in enumerate(DECODER_STAGES):
            if (kind == "head") == (layer == SHAPE.layers):
                at = 10**9 + 10_000 * (6 * layer + stage)
                clocks[:, layer, stage] = at + np.arange(BLOCKS)[:, None] * 10 + np.array([0, 4000, 8000, 9000])
    return of_decoder(SHAPE, BLOCKS, CACHED, clocks, 288, 200_000)


def test_a_run_of_blocks_is_a_valid_trace_whose_graph_is_the_plans(tmp_path) -> None:
    plan, timeline = blocks_run()
    path = write_trace(timeline, tmp_path / "run.tileprof", H200, ["infer.py"])
    assert not validate(load(path))
    graph = build_graph(load(path))
    # the trace has a buffer per matrix, whatever its address
    whole = plan_of_blocks(plan, memory_of(plan, reuse=False))
    matches = {}
    for producer, consumer, number in graph.links[["producer", "consumer", "block"]].itertuples(index=False):
        parent, child, _ = graph.blocks[number].edges()
        matches.setdefault((producer, consumer), set()).update(zip(parent.tolist(), child.tolist(), strict=True))
    assert matches == {
        key: set(zip(p.tolist(), c.tolist(), strict=True)) for key, (p, c) in whole.needed.items() if len(p)
    }


def test_tiles_begin_when_their_inputs_are_there_on_the_block_that_ran_them(tmp_path) -> None:
    plan, timeline = blocks_run()
    number = next(n for n, task in enumerate(plan.tasks) if task.stage == 3)
    (block,) = (b for b, tasks in enumerate(plan.blocks) if number in tasks)
    stage = timeline.stages[3]
    place = list(plan.blocks[block]).index(number)
    assert (stage.block[0], stage.end_ns[0] - stage.begin_ns[0]) == (block, 500)
    assert stage.begin_ns[0] == 1000 * (60 + place) + 500
    trace = load(write_trace(timeline, tmp_path / "run.tileprof", H200, ["infer.py"]))
    assert (trace.launches["timing"] == "measured").all()
    assert len(trace.launches) == len(plan.stages)


def test_a_run_of_a_decoder_is_a_valid_trace_and_its_stages_depend_on_each_other(tmp_path) -> None:
    timeline = decoder_run()
    assert [stage.name for stage in timeline.stages[:6]] == [
        "qkv 0",
        "attention 0",
        "output 0",
        "gate 0",
        "down 0",
        "qkv 1",
    ]
    assert timeline.stages[-1].name == "head"
    path = write_trace(timeline, tmp_path / "run.tileprof", H200, ["infer.py"])
    assert not validate(load(path))
    graph = build_graph(load(path))
    names = [stage.name for stage in timeline.stages]
    pairs = {(names[p], names[c]) for p, c in zip(graph.pairs["producer"], graph.pairs["consumer"], strict=True)}
    assert {
        ("qkv 0", "attention 0"),
        ("attention 0", "output 0"),
        ("output 0", "gate 0"),
        ("gate 0", "down 0"),
        ("down 0", "qkv 1"),
        ("down 1", "head"),
    } <= pairs


def test_a_run_of_a_network_is_a_valid_trace_whose_graph_is_the_plans(tmp_path) -> None:
    plan = plan_network(small(2), 16)
    times = np.zeros((len(plan.tasks), 7), np.int64)
    times[:, 0] = 10**9 + 1000 * (20 * plan.tasks[:, 0] + np.arange(len(plan.tasks)))
    times[:, 1], times[:, 6] = times[:, 0] + 400, times[:, 0] + 900
    timeline = of_network(plan, times, 384, 200_000)
    path = write_trace(timeline, tmp_path / "run.tileprof", H200, ["infer.py"])
    assert not validate(load(path))
    graph = build_graph(load(path))
    matches = {}
    for producer, consumer, number in graph.links[["producer", "consumer", "block"]].itertuples(index=False):
        parent, child, _ = graph.blocks[number].edges()
        matches.setdefault((producer, consumer), set()).update(zip(parent.tolist(), child.tolist(), strict=True))
    # the trace has a buffer per layer, whatever the address of its rows
    apart = plan_network(small(2), 16, reuse=False)
    needs = plan_of_network(apart).needed
    assert matches == {key: set(zip(p.tolist(), c.tolist(), strict=True)) for key, (p, c) in needs.items() if len(p)}
    assert (timeline.stages[0].end_ns - timeline.stages[0].begin_ns == 500).all()


def test_every_weight_is_read_once_and_every_result_written_once() -> None:
    timeline = decoder_run()
    read, writes = {}, {}
    for stage in timeline.stages:
        t = stage.touches
        for buffer, mode, size in zip(t.buffer, t.mode, t.length * t.count_0 * t.count_1, strict=True):
            which = writes if mode else read
            which[int(buffer)] = which.get(int(buffer), 0) + int(size)
    for number, (name, size, kind) in enumerate(timeline.buffers):
        if kind == "parameter":
            assert read[number] == size, name
        elif kind == "activation":
            assert writes[number] == size, name


def test_view_draws_a_run(tmp_path) -> None:
    _, timeline = blocks_run()
    path = write_trace(timeline, tmp_path / "run.tileprof", H200, ["infer.py"])
    page = tmp_path / "run.html"
    assert main(["view", str(path), "--quick", "-o", str(page)]) == 0
    assert "att_1" in page.read_text()


def test_regions_are_shown_to_an_observer_on_its_own_thread_only() -> None:
    assert observer() is None
    with observing(lambda *_: None) as empty:
        assert empty is None
        assert observer() is not None
    assert observer() is None


def test_each_model_whose_kernel_has_clocks_gets_a_trace_and_the_others_a_sentence(
    tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H200")
    rows = [Comparison("GPT2Model", 1, timelines=[blocks_run()[1]]), Comparison("ResNet", 1)]
    run_program.write_timelines(rows, tmp_path, ["infer.py"], force=False)
    assert len(load(tmp_path / "model1-1.tileprof").launches) == len(blocks_run()[0].stages)
    output = capsys.readouterr().err
    assert "model1-1.tileprof; next: tileprof view" in output
    assert "ResNet: no kernel with clocks ran" in output


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_with_clocks_puts_back_what_it_updates_and_may_fail(fails) -> None:
    cache, actual = torch.zeros(3), Comparison("a decoder", 1)

    def fake_timeline(_, inputs):
        inputs[1].add_(1)
        if fails:
            raise UserError("no clocks")
        return "a timeline"

    region = SimpleNamespace(name="decoder", timed=fake_timeline, mutated=(1,))
    compare._time_region(actual, region, "cuda", [torch.ones(3), cache])
    assert cache.eq(0).all()
    assert actual.timelines == ([] if fails else ["a timeline"])
    assert ("timeline of decoder" in actual.failures) == fails
