"""A policy made from a trace runs: its stages compute what the recorded program computed, tile by tile as recorded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.policies.recorded_modules import MODULES, GeluMlp, record, recorded_module
from tileprof.cli.entry import main
from tileprof.errors import UserError
from tileprof.policy.format import from_dict, to_dict
from tileprof.policy.format.tile_numbers import tile_numbers
from tileprof.policy.synthesis.epilogue_fusion import fuse
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.verification.overtaken import overtaken_launches
from tileprof.runtime import Pipeline
from tileprof.runtime.chain import Chain
from tileprof.runtime.executor import randomly
from tileprof.runtime.executor.executable import Program
from tileprof.trace.distinct import bytes_by_tile
from tileprof.trace.footprint import READ, WRITE, Boxes


@pytest.fixture(params=list(MODULES))
def program(request, tmp_path):
    return recorded_module(request.param, tmp_path / "t.tileprof")


def inputs_of(pipeline: Pipeline, module: torch.nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return operands as the stages see them: parameters by name; everything else is the input."""
    reference = dict(module.named_parameters())
    return {
        name: reference.get(name, x).detach().as_strided(view.shape, view.strides)
        for name, view in pipeline.inputs.items()
    }


def result_of(pipeline: Pipeline, results: dict[str, torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    (name,) = pipeline.outputs
    return results[name].as_strided(like.shape, like.stride())


def test_the_stages_compute_what_the_module_computes(program) -> None:
    module, x, graph = program
    policy = synthesise(graph, range(len(graph.launches)))
    assert [stage.reason for stage in policy.stages] == [""] * len(policy.stages)
    pipeline = Pipeline(from_dict(to_dict(policy)))
    assert pipeline.verdict.sound
    results, execution = pipeline.run(inputs_of(pipeline, module, x), randomly(Program.of(policy), 3), watch=True)
    assert execution.clean
    expected = module(x).detach()
    relative, absolute = (1e-2, 1e-3) if expected.dtype == torch.float16 else (1e-4, 1e-5)
    torch.testing.assert_close(result_of(pipeline, results, expected), expected, rtol=relative, atol=absolute)


def test_the_stages_touch_what_the_launches_touched(program) -> None:
    """Compare the bytes of every tile, exactly."""
    _, _, graph = program
    policy = synthesise(graph, range(len(graph.launches)))
    for stage, operator in zip(policy.stages, Chain.of_policy(policy).operators, strict=True):
        tensors = {view.tensor: n for n, view in enumerate(operator.views().values())}
        access = operator.touches(tensors)
        footprint = graph.footprint(int(graph.launches["footprint"].iloc[stage.launch]))
        number = tile_numbers(graph, stage.launch)
        read, written = (np.zeros(stage.tiles, np.int64) for _ in range(2))
        read[number], written[number] = bytes_by_tile(footprint.boxes.tile, footprint.boxes, footprint.tiles)
        boxes = Boxes.of(
            tile=access.tile, operand=access.buffer, mode=access.mode, offset=access.offset, length=access.length,
            count_0=access.count_0, stride_0=access.stride_0, count_1=access.count_1, stride_1=access.stride_1,
        )  # fmt: skip
        assert (boxes.mode <= WRITE).all()
        assert (boxes.mode >= READ).all()
        ours = bytes_by_tile(boxes.tile, boxes, stage.tiles)
        np.testing.assert_array_equal(ours[0], read, err_msg=stage.op)
        statistics = 8 if "norm" in stage.op else 0  # mean and deviation, which no later stage reads
        np.testing.assert_array_equal(ours[1] + statistics, written, err_msg=stage.op)


@pytest.mark.parametrize(
    ("name", "epilogues"), [("gpt3_mlp", ["gelu_tanh", "none"]), ("resnet_pair", ["relu", "none"])]
)
def test_launches_taken_as_epilogues_are_epilogues(name, epilogues, tmp_path) -> None:
    module, x, graph = recorded_module(name, tmp_path / "t.tileprof")
    products = [n for n, k in enumerate(graph.launches["kernel"]) if "elementwise" not in k]
    folded_launches = overtaken_launches(graph, products)
    assert folded_launches
    policy = synthesise(fuse(graph, products), products, folded=folded_launches)
    assert [s.operator["parameters"].get("epilogue", "none") for s in policy.stages] == epilogues
    pipeline = Pipeline(policy)
    assert pipeline.verdict.sound
    results, _ = pipeline.run(inputs_of(pipeline, module, x), randomly(Program.of(policy), 1), watch=True)
    expected = module(x).detach()
    if name == "gpt3_mlp":
        torch.testing.assert_close(result_of(pipeline, results, expected), expected, rtol=1e-4, atol=1e-5)
    else:
        hidden = torch.relu(module.conv1(x))
        torch.testing.assert_close(
            result_of(pipeline, results, expected), module.conv2(hidden).detach(), rtol=1e-4, atol=1e-5
        )


def test_record_export_and_run_work_on_the_command_line(tmp_path, capsys) -> None:
    recorded_module("gpt3_mlp", tmp_path / "t.tileprof")
    assert main(["export", str(tmp_path / "t.tileprof"), "--format", "json", "--pair", "0:2", "-o", str(tmp_path)]) == 0
    assert main(["run", str(tmp_path / "policy.json")]) == 0
    assert "agrees with PyTorch" in capsys.readouterr().out


UNKNOWN = {
    "no stage operator computes cumsum": lambda x: torch.cumsum(x @ x, 0) @ x,
    "adds a tensor": lambda x: torch.addmm(x[:, :1], x, x) @ x,
    "addmm with alpha 2": lambda x: torch.addmm(x[0], x, x, alpha=2) @ x,
    "float64; stages compute in float16": lambda x: (x.double() @ x.double()) @ x.double(),
    "native_dropout uses random numbers of PyTorch's generator, which stages cannot reproduce": lambda x: (
        torch.dropout(x @ x, 0.5, True) @ x
    ),
    "; stages of attention are for chains built in Python": lambda x: (
        torch.nn.functional.scaled_dot_product_attention(*[(x @ x)[None, None]] * 3)[0, 0] @ x
    ),
    "softmax over dimension 0": lambda x: torch.softmax(x @ x, 0) @ x,
}


@pytest.mark.parametrize("reason", list(UNKNOWN))
def test_what_no_operator_says_has_a_reason_that_the_user_sees(reason, tmp_path) -> None:
    x = torch.randn(64, 64)
    graph = record(lambda: UNKNOWN[reason](x), tmp_path / "t.tileprof")
    policy = from_dict(to_dict(synthesise(graph, range(len(graph.launches)))))
    messages = [stage.reason for stage in policy.stages if not stage.operator]
    assert any(reason in text for text in messages), messages
    with pytest.raises(UserError, match=reason):
        Pipeline(policy)


def test_a_trace_of_a_gpu_says_that_it_does_not_know_the_calls() -> None:
    import tileprof
    from tileprof.analysis import build_graph

    golden = Path(__file__).parents[3] / "golden" / "gemm_pair.tileprof"
    graph = build_graph(tileprof.load(golden))
    policy = synthesise(graph, range(len(graph.launches)))
    assert all("does not say how" in stage.reason and not stage.operator for stage in policy.stages)
    assert all("tileprof record --recorder model" in stage.reason for stage in policy.stages)


def test_products_in_clusters_name_the_option_that_makes_a_grid_of_them(tmp_path) -> None:
    """Record the MLP by the rules for an H200; its layers are numbered."""
    net = torch.nn.Sequential(torch.nn.Linear(256, 1024, bias=False), torch.nn.Linear(1024, 256, bias=False)).half()
    x = torch.randn(128, 256, dtype=torch.float16)
    by_rule = synthesise(record(lambda: net(x), tmp_path / "rule.tileprof"), range(2))
    reasons = [stage.reason for stage in by_rule.stages if stage.reason]
    assert reasons
    assert all("tileprof record --tile gemm=" in reason for reason in reasons)
    assert [stage.name for stage in by_rule.stages] == ["0 aten::mm", "1 aten::mm"]


def test_calls_are_kept_in_the_trace_as_documented(tmp_path) -> None:
    module = GeluMlp()
    graph = record(lambda: module(torch.randn(40, 192)), tmp_path / "t.tileprof")
    call = json.loads(graph.launches["call"].iloc[-1])
    assert call["operands"][1] == {"argument": "mat2", "shape": [96, 192], "strides": [1, 96], "dtype": "float32"}
    assert set(call) == {"operands", "arguments"}


def test_functions_of_a_tensor_without_dimensions_are_stages(tmp_path) -> None:
    x = torch.randn(64, 64)
    graph = record(lambda: (x @ x).sum() * 0.5 + x[0, 0], tmp_path / "t.tileprof")
    stages = synthesise(graph, range(len(graph.launches))).stages
    (halved,) = [stage for stage in stages if "mul" in stage.name]
    assert halved.operator["name"] == "elementwise"
    assert (halved.operator["operands"]["out"]["shape"], halved.grid) == ([1], (1, 1, 1))
