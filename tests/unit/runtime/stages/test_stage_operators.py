"""Each operator computes what PyTorch computes, and touches the bytes that it declares."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.runtime.chains import CHAINS, mlp
from tileprof.errors import UserError
from tileprof.policy.format import from_dict, to_dict
from tileprof.runtime.executor import randomly, reversed_, search, stream
from tileprof.runtime.executor.executable import Program
from tileprof.runtime.pipeline import Pipeline
from tileprof.runtime.stages import View, operator_of
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


@pytest.fixture(params=list(CHAINS))
def chain(request):
    return CHAINS[request.param]


def error(value, expected):
    return float((value.double() - expected.double()).norm() / expected.double().norm())


def test_tiles_in_any_order_give_what_pytorch_gives(chain) -> None:
    pipeline = Pipeline(chain.policy())
    inputs = pipeline.example(seed=3)
    expected = pipeline.reference(inputs)
    program = Program.of(pipeline.policy)
    first, _ = pipeline.run(inputs, stream(program), watch=True)
    for name in pipeline.outputs:
        assert error(first[name], expected[name]) < TOLERANCE[pipeline.outputs[name].dtype]
    for order in (reversed_(program), randomly(program, 1)):
        again, execution = pipeline.run(inputs, order, watch=True)
        assert execution.clean
        assert all(torch.equal(again[name], first[name]) for name in first)


def test_a_tile_reads_and_writes_its_regions_and_nothing_else(chain) -> None:
    for operator in chain.operators:
        whole = {
            role: torch.randn(view.elements)
            .to(getattr(torch, view.dtype))
            .as_strided(view.shape, view.strides, view.offset)
            for role, view in operator.views().items()
        }
        for tile in (0, operator.tiles // 2, operator.tiles - 1):
            nan_operands = {role: torch.full_like(t, float("nan")) for role, t in whole.items()}
            for region in operator.regions(*operator.place(tile)):
                part = tuple(slice(*span) for span in region.spans)
                nan_operands[region.role][part] = whole[region.role][part]
            out_spans = [r.spans for r in operator.regions(*operator.place(tile)) if r.role == "out"]
            keep_mask = torch.ones(operator.out.shape, dtype=torch.bool)
            for spans in out_spans:
                keep_mask[tuple(slice(*span) for span in spans)] = False
            before = nan_operands["out"].clone()
            operator.run_tile(*operator.place(tile), nan_operands)
            assert not nan_operands["out"][~keep_mask].isnan().any(), "read beyond its regions"
            assert torch.equal(nan_operands["out"][keep_mask].isnan(), before[keep_mask].isnan()), (
                "wrote beyond its regions"
            )


def test_the_tiles_of_an_operator_write_its_result_once(chain) -> None:
    for operator in chain.operators:
        count = torch.zeros(operator.out.shape, dtype=torch.int32)
        for tile in range(operator.tiles):
            for region in operator.regions(*operator.place(tile)):
                if region.role == "out":
                    count[tuple(slice(*span) for span in region.spans)] += 1
        assert (count == 1).all()


def test_boxes_are_the_bytes_of_their_regions(chain) -> None:
    for operator in chain.operators:
        for role, view in operator.views().items():
            number = torch.arange(view.elements).as_strided(view.shape, view.strides, view.offset)
            for region in operator.regions(*operator.place(operator.tiles - 1)):
                if region.role != role:
                    continue
                expected = {int(e) for e in number[tuple(slice(*s) for s in region.spans)].reshape(-1)}
                actual = {
                    (offset + i * s0 + j * s1 + b) // view.item_bytes
                    for offset, length, n0, s0, n1, s1 in view.boxes(region.spans)
                    for i in range(n0)
                    for j in range(n1)
                    for b in range(length)
                }
                assert actual == expected


def test_the_policy_of_a_chain_is_sound_and_survives_every_delay(chain) -> None:
    policy = from_dict(to_dict(chain.policy()))
    assert chain.verify(policy).sound
    assert search(policy, chain.memory(), delayed=10**6).clean


def test_an_operator_survives_the_policy_file(chain) -> None:
    for operator in chain.operators:
        assert operator_of(operator.describe()) == operator


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "magic"}, "there is no stage operator 'magic'"),
        ({"name": ["gemm"]}, r"there is no stage operator \['gemm'\]"),
        ({"parameters": {"tile": [0, 8]}}, r"a tile of \(0, 8\)"),
        ({"parameters": {"tile": 8}}, "wrong type|a tile of"),
        ({"parameters": {"speed": 9}}, "gemm has no parameter 'speed'"),
        ({"parameters": {"epilogue": "tanh"}}, "no epilogue 'tanh'"),
        ({"operands": {}}, "gemm lacks a, b, out"),
        ({"operands": {"a": [1]}}, "gemm lacks b, out|is not an operand"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        operator_of(mlp().operators[0].describe() | change)


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [((4, 6), (6, 1), False), ((4, 6), (8, 1), False), ((4, 6), (1, 4), False), ((1, 6), (0, 1), False),
     ((2, 3, 4), (4, 8, 1), False),
     ((4, 6), (0, 1), True), ((4, 6), (5, 1), True), ((4, 6), (1, 1), True), ((4, 6), (1, 3), True)],
)  # fmt: skip
def test_a_view_knows_whether_its_elements_overlap(shape, strides, expected) -> None:
    view = View("a", shape, strides, "float16")
    tensor = torch.arange(view.elements).as_strided(shape, strides)
    assert view.overlaps() == expected == (len(set(tensor.reshape(-1).tolist())) < tensor.numel())


def test_strides_beyond_all_memory_are_refused() -> None:
    with pytest.raises(UserError, match=r"at most 1,?099"):
        View("a", (1, 8), (10**19, 1), "float16")


def test_shapes_that_do_not_fit_are_refused_with_both() -> None:
    a, b = View.contiguous("a", (4, 6), "float16"), View.contiguous("b", (5, 8), "float16")
    with pytest.raises(UserError, match=r"a is \(4, 6\) and b is \(5, 8\)"):
        Gemm(a, b, View.contiguous("c", (4, 8), "float16"))


def test_a_convolution_normalises_by_running_averages_and_says_what_it_lacks() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 16, 9, 9), torch.randn(32, 16, 3, 3) / 12
    norm = torch.nn.BatchNorm2d(32).eval()
    for vector in (norm.running_mean, norm.weight.data, norm.bias.data):
        vector.normal_()
    norm.running_var.uniform_(0.5, 2)
    views = {
        "x": View.contiguous("x", (2, 9, 9, 16), "float32"),
        "weight": View.contiguous("w", (32, 3, 3, 16), "float32"),
        "out": View.contiguous("y", (2, 9, 9, 32), "float32"),
    } | {role: View.contiguous(role, (32,), "float32") for role in ("bias", "mean", "var", "scale", "shift")}
    operator = Conv2d(**views, padding=1, tile=(30, 16), epilogue="relu", epsilon=norm.eps)
    bias = torch.randn(32)
    tensors = {
        "x": x.permute(0, 2, 3, 1).contiguous(), "weight": weight.permute(0, 2, 3, 1).contiguous(), "bias": bias,
        "mean": norm.running_mean, "var": norm.running_var, "scale": norm.weight.data, "shift": norm.bias.data,
        "out": torch.full((2, 9, 9, 32), float("nan")),
    }  # fmt: skip
    expected = torch.relu(norm(torch.conv2d(x, weight, bias, padding=1))).permute(0, 2, 3, 1).detach()
    for tile in range(operator.tiles):
        operator.run_tile(*operator.place(tile), tensors)
    torch.testing.assert_close(tensors["out"], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(operator.reference(tensors), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match="given together"):
        replace(operator, var=None)
    with pytest.raises(UserError, match=r"epsilon is 0\.0"):
        replace(operator, epsilon=0.0)
    with pytest.raises(UserError, match="combined by add or multiply, not by 'divide'"):
        replace(operator, combine="divide")
