"""Which cases are measured, what each row is compared with, and the predicted times of the persistent kernel."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from itertools import groupby, pairwise
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from tileprof.errors import UserError
from tileprof.runtime.kernels.triton_launch import TIMEOUT_NS, kernel_of
from tileprof.runtime.measuring import measure
from tileprof.runtime.measuring.baselines import COMPILED
from tileprof.runtime.measuring.cases import BATCHES, TOKENS, cases, convolution_pair, copy_pair, gated_mlp, gelu_mlp
from tileprof.runtime.persistent import run
from tileprof.runtime.persistent.cost import SIGNAL_US, clusters_on
from tileprof.runtime.persistent.predict import BOUNDARY_US, predicted_us
from tileprof.runtime.persistent.source import Options, header
from tileprof.runtime.persistent.supported import stage_plans
from tileprof.runtime.persistent.task_lists import plan_of, plans_by_stage, without_waits
from tileprof.runtime.schedulers import scheduler
from tileprof.runtime.stages.conv import Conv2d

GAP_US = 1.0


@pytest.fixture(scope="module")
def every_case():
    return list(cases())


def test_every_size_of_the_field_is_a_case_and_every_chain_fits_its_kernels(every_case) -> None:
    names = [case.name for case in every_case]
    assert len(set(names)) == len(names)
    for mlp in ("GPT-3 MLP TP8", "LLaMA-65B MLP TP8", "LLaMA-7B MLP"):
        assert [f"{mlp}, {tokens} tokens" in names for tokens in TOKENS] == [True] * 8
    for batch in BATCHES:
        sizes = {c.chain.operators[0].x.shape[1:] for c in every_case if c.name.endswith(f", batch {batch}")}
        assert len(sizes) == 9
    for case in every_case:
        for operator in case.chain.operators:
            kernel_of(operator)
        if case.persistent and case.thorough:
            stage_plans(case.wide)
            same = [[replace(o, tile=(8, 8)) for o in chain.operators] for chain in (case.chain, case.wide)]
            assert same[0] == same[1]


def test_convolutions_take_whole_rows_or_parts_of_them(every_case) -> None:
    convolutions = [c for c in every_case if c.persistent and isinstance(c.chain.operators[0], Conv2d)]
    wide = [c.wide.operators[0] for c in convolutions if c.name.endswith("batch 1")]
    assert {o.tile[0] for o in wide if o.out.shape[2] == 224} == {112}
    assert all(o.tile[0] * 2 > 49 for o in wide)


def test_a_chain_is_measured_under_the_schedulers_that_take_its_tiles(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    both, narrow, wide = gelu_mlp(64, (64, 64), (64, 128)), copy_pair(4), gelu_mlp(64, (64, 48), (64, 96))
    assert measure.runnable(both) == measure.TRITON_ROWS + measure.PERSISTENT_ROWS
    assert measure.runnable(narrow) == measure.TRITON_ROWS
    assert measure.runnable(wide) == measure.PERSISTENT_ROWS
    with pytest.raises(UserError, match="powers of two"):
        measure.runnable(gelu_mlp(64, (64, 44), (64, 96)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert measure.runnable(both) == measure.TRITON_ROWS


def test_a_row_gains_over_its_own_kernels_in_stream_order() -> None:
    times = {"PyTorch in a graph": 100.0, "graph": 90.0, "cusync": 45.0, "persistent-stages": 80.0, "persistent": 60.0}
    rows = {r["row"]: r for r in measure.with_gains([{"row": name, "us": us} for name, us in times.items()])}
    assert (rows["cusync"]["gain"], rows["cusync"]["gain_over"]) == (0.5, "graph")
    assert (rows["persistent"]["gain"], rows["persistent"]["gain_over"]) == (0.25, "persistent-stages")
    assert rows["persistent"]["of_torch"] == 0.6
    alone = measure.with_gains([{"row": "PyTorch eager", "us": 5.0}, {"row": "persistent-stages", "us": 4.0}])
    assert alone[0]["gain_over"] == "persistent-stages"
    assert "gain" not in measure.with_gains([{"row": "PyTorch eager", "us": 5.0}])[0]


@pytest.fixture
def fake_gpu(monkeypatch, tmp_path, every_case):
    """Provide a GPU on which nothing is compiled and every job takes no time.

    Return the compiled kernels, and the clock.
    """
    compiled, clock = [], [0.0]
    for place, name, value in (
        (measure, "cases", lambda: iter(every_case)),
        (torch.cuda, "get_device_name", lambda: "H200"),
        (torch.cuda, "empty_cache", lambda: None),
        (torch.cuda, "get_device_capability", lambda: (9, 0)),
        (measure, "measured_on", lambda *_: {"device": "H200"}),
        (measure, "_clusters_here", lambda: clusters_on(132)),
        (measure.time, "monotonic", lambda: clock[0]),
        (measure, "compile_for", lambda policy, chain, chosen, clusters: compiled.append(chain)),
    ):
        monkeypatch.setattr(place, name, value)

    def work(job, limit_s):
        clock[0] += 10.0
        return [{"row": job.row, "us": 1.0, "over_roof": 1.0}]

    monkeypatch.setattr(measure.Job, "run", work)
    return compiled, tmp_path / "o.json"


def chains_in(path):
    return [r["chain"] for r in json.loads(path.read_text())["rows"]]


def test_the_budget_ends_the_run_and_a_later_call_continues(fake_gpu, capsys) -> None:
    compiled, out = fake_gpu
    gpt = ["GPT-3 MLP TP8, 1 tokens", "GPT-3 MLP TP8, 16 tokens"]
    measure.main([str(out), "--only", "GPT-3 MLP", "--budget", "15"])
    assert chains_in(out) == gpt
    assert "15 s are over; left: 'GPT-3 MLP TP8, 64 tokens (persistent)', " in capsys.readouterr().err
    measure.main([str(out), "--only", "GPT-3 MLP TP8, 16 tokens", "--only", "MLP TP8, 64"])
    assert list(dict.fromkeys(chains_in(out))) == [
        *gpt,
        "GPT-3 MLP TP8, 64 tokens",
        "LLaMA-65B MLP TP8, 64 tokens",
    ]
    assert len(compiled) >= 3
    with pytest.raises(SystemExit):
        measure.main([])


def test_only_missing_rows_are_measured(fake_gpu, monkeypatch, capsys) -> None:
    _, out = fake_gpu
    measure.main([str(out), "--only", "GPT-3 MLP TP8, 1 tokens", "--budget", "15"])  # all but torch.compile
    before = json.loads(out.read_text())["rows"]
    assert [row["row"] for row in before] == ["persistent", "graph"]
    capsys.readouterr()
    measure.main([str(out), "--only", "GPT-3 MLP TP8, 1 tokens", "--missing"])
    assert [row["row"] for row in json.loads(out.read_text())["rows"]] == ["persistent", "graph", COMPILED]
    output = capsys.readouterr().err
    assert COMPILED in output
    assert "persistent" not in output

    def fail(job, limit_s):
        raise UserError("no kernel takes it\nat all")

    monkeypatch.setattr(measure.Job, "run", fail)
    measure.main([str(out), "--only", "GPT-3 MLP TP8, 1 tokens"])
    assert "GPT-3 MLP TP8, 1 tokens (persistent) is left out: no kernel takes it\n" in capsys.readouterr().err
    assert len(json.loads(out.read_text())["rows"]) == 3


@pytest.mark.parametrize("text", ["not json", "[1]", "{}"])
def test_a_file_that_holds_no_rows_is_neither_joined_nor_overwritten(fake_gpu, text) -> None:
    _, out = fake_gpu
    out.write_text(text)
    with pytest.raises(UserError, match=r"holds no measured rows, and is not overwritten"):
        measure.main([str(out), "--only", "GPT-3 MLP TP8, 1 tokens"])
    assert out.read_text() == text


def test_the_persistent_kernel_comes_first_then_what_it_does_not_take_then_what_takes_long(every_case) -> None:
    options = Namespace(triton=False, compile=False)
    actual = measure.jobs(every_case, (9, 0), options)
    kinds = [(kind, len(list(group))) for kind, group in groupby(job.kind + " alone" * job.alone for job in actual)]
    thorough = [case for case in every_case if case.thorough]
    wide = [case for case in every_case if case.persistent]
    assert kinds == [
        ("persistent alone", len(wide)), ("triton alone", len(every_case) - len(wide)),
        ("triton", sum(case.persistent for case in thorough)), ("compiled", len(thorough)),
    ]  # fmt: skip
    assert sum("MLP" in case.name for case in thorough) == 9
    assert sum("convolutions" in case.name for case in thorough) == 3
    assert len({job.name for job in actual}) == len(actual)
    jobs = measure.jobs(every_case, (9, 0), Namespace(triton=True, compile=True))
    assert [sum(job.kind == kind for job in jobs) for kind in ("persistent", "triton", "compiled")] == [
        len(wide), len(every_case), len(every_case),
    ]  # fmt: skip
    elsewhere = measure.jobs(every_case, (8, 0), options)
    assert {(job.kind, job.alone) for job in elsewhere} == {("triton", True), ("compiled", False)}


def test_rows_of_a_later_job_gain_over_what_was_measured_before() -> None:
    rows = [{"chain": "c", "row": "graph", "us": 10.0}, {"chain": "d", "row": "graph", "us": 1.0}]
    job = measure.Job(SimpleNamespace(name="c"), "compiled")
    late = measure._with_rows_of_job(rows, job, [{"row": COMPILED, "us": 8.0}])
    assert [(row["chain"], row["row"], row.get("gain")) for row in late] == [
        ("c", "graph", 0.0), ("c", COMPILED, pytest.approx(0.2)), ("d", "graph", None),
    ]  # fmt: skip
    failure_rows = measure._with_rows_of_job(late, job, [{"row": COMPILED, "said": "not compiled in 9 s"}])
    assert [row.get("said") for row in failure_rows] == [None, "not compiled in 9 s", None]
    assert "gain" not in failure_rows[1]
    assert [
        row["chain"]
        for row in measure._with_rows_of_job(
            failure_rows, measure.Job(SimpleNamespace(name="e"), "triton"), [{"row": "graph", "us": 1.0}]
        )
    ] == ["c", "c", "d", "e"]
    assert measure._with_rows_of_job(rows, job, []) == rows


def test_the_kernels_that_are_prepared_are_those_that_are_launched(monkeypatch) -> None:
    """Compare headers: those that are compiled for a plan in advance, and those that a launcher asks for."""
    chain = gelu_mlp(64, (64, 48), (64, 96), 1024, 512)
    result = []
    monkeypatch.setattr(run, "compiled", lambda plan, options: result.append(header(plan, options)))
    run.compile_for(chain.policy(), chain, map(scheduler, measure.PERSISTENT_ROWS), clusters_on(132))
    plan = plan_of(chain.policy(), chain, clusters=clusters_on(132))
    request = {
        header(part, replace(Options(programmatic=chosen.overlapped), timeout_ns=TIMEOUT_NS))
        for chosen in map(scheduler, measure.PERSISTENT_ROWS)
        for part in run._plans(plan, chosen, clusters_on(132)(plan.split))
    }
    assert set(result) == request
    assert len(result) == len(request)


def test_stages_without_waits_overlap_and_one_launch_costs_once() -> None:
    """Four tiles on eight clusters, then four more: 10 us each alone, of which a launch is 2.5."""
    chain = gelu_mlp(64, (64, 64), (64, 64), 128, 256)
    chain = replace(chain, operators=(chain.operators[0], replace(chain.operators[1], tile=(64, 32))))
    plan = plan_of(chain.policy(), chain, clusters=8, split=1)
    fixed = GAP_US + BOUNDARY_US
    assert predicted_us(without_waits(plan), [10.0, 10.0], GAP_US) == pytest.approx(10.0)
    serial = fixed + 2 * (10.0 - fixed) + SIGNAL_US
    assert serial - (10.0 - fixed) <= predicted_us(plan, [10.0, 10.0], GAP_US) <= serial
    for stage in plans_by_stage(plan, 8):
        assert predicted_us(stage, [10.0, 10.0], GAP_US) == pytest.approx(10.0)


def test_a_task_that_waits_has_some_of_its_weights_when_it_goes_on() -> None:
    """One cluster each: the ring holds little of a long k, and all of a short one."""
    ends = []
    for inner in (64, 64 * 64):
        chain = gelu_mlp(64, (64, 256), (64, 256), 256, inner)
        plan = plan_of(chain.policy(), chain, clusters=99, split=1)
        ends.append(predicted_us(plan, [50.0, 50.0], GAP_US))
    all_loaded, nearly_nothing = ends
    fixed = GAP_US + BOUNDARY_US
    assert 50.0 + SIGNAL_US < all_loaded < 50.0 + SIGNAL_US + 4  # activations are loaded and multiplied after the wait
    assert nearly_nothing == pytest.approx(fixed + 2 * (50.0 - fixed) + SIGNAL_US, rel=0.1)


@pytest.mark.parametrize(
    "chain", [gated_mlp(64, (64, 88), (64, 256)), convolution_pair(8, 28, 128, (112, 64))], ids=["mlp", "pair"]
)
def test_more_waits_never_take_less_and_the_sum_of_stages_bounds_it(chain) -> None:
    plan = plan_of(chain.policy(), chain, clusters=32, split=4)
    alone = [30.0, 20.0]
    free, with_waits_us = predicted_us(without_waits(plan), alone, GAP_US), predicted_us(plan, alone, GAP_US)
    assert max(alone) - 3 <= free <= with_waits_us <= sum(alone) + SIGNAL_US
    assert all(a <= b for a, b in pairwise([predicted_us(plan, [us, 20.0], GAP_US) for us in (10.0, 20.0, 40.0)]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_missing_gpu_or_chain_is_reported_in_one_sentence(tmp_path) -> None:
    with pytest.raises(SystemExit, match=r"no GPU here .*; --prepare compiles without one"):
        measure.main([str(tmp_path / "o.json")])
    with pytest.raises(SystemExit, match="no chain's name contains 'nothing of the kind'"):
        measure.main(["--prepare", "--only", "nothing of the kind"])
