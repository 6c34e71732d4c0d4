"""A policy as a callable: its results, when it falls back, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.runtime.chains import attention, gated, mlp, rows
from tileprof.errors import UserError
from tileprof.policy.format import Policy, Stage
from tileprof.runtime import Pipeline
from tileprof.runtime.chain import Chain
from tileprof.runtime.pipeline import FellBackWarning
from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.view import View


@pytest.fixture
def pipeline(tmp_path) -> Pipeline:
    mlp().policy().save(tmp_path / "mlp.json")
    return Pipeline.from_policy(tmp_path / "mlp.json")


def plain(x, w1, b1, w2):
    return torch.nn.functional.gelu(x @ w1 + b1) @ w2 + x


def close(value, expected) -> bool:
    return bool((value.double() - expected.double()).norm() < 3e-3 * expected.double().norm())


def test_a_policy_file_becomes_a_function(pipeline: Pipeline) -> None:
    inputs = pipeline.example()
    assert list(inputs) == ["x", "w1", "b1", "w2"]
    expected = plain(*inputs.values())
    assert close(pipeline(*inputs.values()), expected)
    assert close(pipeline(inputs["x"], w2=inputs["w2"], b1=inputs["b1"], w1=inputs["w1"]), expected)


def test_inputs_may_lie_anywhere_in_their_storage(pipeline: Pipeline) -> None:
    inputs = pipeline.example()
    misaligned = torch.cat([torch.full((5, 48), float("nan"), dtype=torch.float16), inputs["x"]])[5:]
    assert torch.equal(pipeline(**(inputs | {"x": misaligned})), pipeline(**inputs))


def test_other_strides_run_in_stream_order_and_say_so(pipeline: Pipeline) -> None:
    inputs = pipeline.example()
    inputs["w1"] = inputs["w1"].contiguous()
    with pytest.warns(FellBackWarning, match=r"input w1 has strides \(80, 1\); the policy is for \(1, 48\)"):
        assert close(pipeline(**inputs), plain(**inputs))


def test_another_number_of_tokens_runs_in_stream_order_and_says_so(pipeline: Pipeline) -> None:
    inputs = pipeline.example()
    inputs["x"] = torch.randn(7, 48).half()
    with pytest.warns(FellBackWarning, match=r"input x has shape \(7, 48\); the policy is for \(40, 48\)"):
        assert close(pipeline(**inputs), plain(**inputs))


def test_an_unsound_policy_runs_in_stream_order_and_says_so() -> None:
    policy = replace(mlp().policy(), edges=())
    pipeline = Pipeline(policy)
    with pytest.warns(FellBackWarning, match="the policy leaves 30 dependencies uncovered"):
        assert close(pipeline(**pipeline.example()), plain(**pipeline.example()))


def test_shapes_that_no_product_has_are_refused(pipeline: Pipeline) -> None:
    inputs = pipeline.example() | {"x": torch.randn(7, 47).half()}
    with (
        pytest.warns(FellBackWarning),
        pytest.raises(UserError, match=r"stage up cannot compute a \(7, 47\), b \(48, 80\)"),
    ):
        pipeline(**inputs)


def test_a_part_of_a_tensor_of_another_shape_is_refused() -> None:
    pipeline = Pipeline(gated().policy())
    inputs = pipeline.example()
    inputs["x"] = inputs["x"][:9]
    with pytest.warns(FellBackWarning), pytest.raises(UserError, match="a stage takes a part of it"):
        pipeline(**inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, "input x is a NoneType, not a tensor"),
        ({"q": torch.zeros(1)}, "'q' is not an input; the inputs are x, w1, b1, w2"),
        ({"x": torch.zeros(1, device="meta")}, "input x is on meta; this pipeline runs on cpu"),
    ],
)
def test_invalid_inputs_are_refused(pipeline: Pipeline, change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        pipeline(**(pipeline.example() | change))


def test_a_missing_input_is_named(pipeline: Pipeline) -> None:
    with pytest.raises(UserError, match="the pipeline lacks b1, w2"):
        pipeline(*list(pipeline.example().values())[:2])


def test_a_tensor_that_stages_write_again_keeps_its_last_value() -> None:
    pipeline = Pipeline(attention().policy())
    q, k, v = pipeline.example().values()
    expected = torch.softmax((q @ k) * 8**-0.5, dim=-1) @ v
    assert list(pipeline.outputs) == ["y"]
    assert close(pipeline(q, k, v), expected)


def without_check(policy: Policy, stage: int, role: str, **changes: object) -> Policy:
    """Return the policy with another layout of one operand of one stage."""
    operator_text = policy.stages[stage].operator
    operands = operator_text["operands"] | {role: operator_text["operands"][role] | changes}
    other = replace(policy.stages[stage], operator=operator_text | {"operands": operands})
    return replace(policy, stages=(*policy.stages[:stage], other, *policy.stages[stage + 1 :]))


def test_a_result_whose_elements_lie_upon_each_other_is_refused() -> None:
    with pytest.raises(UserError, match=r"stage up writes h as .* with strides \[?\(?0, 1"):
        Pipeline(without_check(mlp().policy(), 0, "out", strides=[0, 1]))


def test_reading_more_of_a_tensor_than_is_written_is_refused() -> None:
    policy = rows().policy()
    name = policy.stages[1].operator["operands"]["x"]["tensor"]
    assert name == policy.stages[0].operator["operands"]["out"]["tensor"]
    pipeline = Pipeline(without_check(policy, 1, "x", strides=[999, 1]))
    with pytest.raises(UserError, match=f"tensor {name} is written as .* and read as .*, which is more"):
        pipeline.reference(pipeline.example())


def test_tensors_that_no_memory_holds_are_named_with_their_size() -> None:
    pipeline = Pipeline(without_check(mlp().policy(), 0, "b", strides=[10**10, 1]))
    with pytest.raises(UserError, match=r"no memory for tensor w1 .* spans 470,000,000,0"):
        pipeline.example()


def test_a_stage_without_an_operator_is_named() -> None:
    with pytest.raises(UserError, match=r"stage 0 \(up\) names no operator"):
        Pipeline(Policy((Stage("up", (1, 1, 1)),), (), ()))


def test_a_kernel_of_the_programs_own_is_one_for_the_synchroniser_and_the_two_lines_are_shown() -> None:
    stage = Stage("scale 0", (1, 1, 1), kernel="scale", reason="the trace does not say how scale was called")
    with pytest.raises(UserError, match="is a kernel of the program's own, scale: ") as message:
        Pipeline(Policy((stage,), (), ()))
    for line in ("tile = enter(sync, tl.program_id(0))", "leave(sync, tile)", "Synchroniser.from_policy"):
        assert line in str(message.value)
    with pytest.raises(UserError, match=r"stage 0 \(up\) names no operator"):
        Pipeline(Policy((Stage("up", (1, 1, 1), kernel="sort", op="aten::sort"),), (), ()))


def test_an_operator_of_another_grid_is_refused() -> None:
    policy = rows().policy()
    stage = replace(policy.stages[0], grid=(6, 1, 1))
    with pytest.raises(UserError, match=r"the operator has a grid of \(7, 1, 1\) tiles, the stage \(6, 1, 1\)"):
        Pipeline(Policy((stage, *policy.stages[1:]), (), ()))


def test_views_of_one_input_that_none_of_them_holds_are_taken_from_it_flat() -> None:
    heads, tokens, d = 2, 5, 16
    width = 3 * heads * d
    q, k, v = (View("qkv", (heads, tokens, d), (d, width, 1), "float32", at * heads * d) for at in range(3))
    out = View.contiguous("o", (heads, tokens, d), "float32")
    pipeline = Pipeline(Chain(("attend",), (Attention(q, k, v, out, rows=2, causal=True),)).policy())
    assert {name: view.shape for name, view in pipeline.inputs.items()} == {"qkv": (tokens * width,)}
    inputs = pipeline.example()
    parts = inputs["qkv"].view(tokens, 3, heads, d).permute(1, 2, 0, 3)
    expected = torch.nn.functional.scaled_dot_product_attention(*parts[:, None], is_causal=True)[0]
    assert torch.allclose(pipeline(**inputs), expected, atol=1e-5)
    assert torch.allclose(pipeline.reference(inputs)["o"], expected, atol=1e-5)
