"""Element-wise kernels write each output element once and read what it needs, whatever the layouts."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.counted_lines import counted_lines
from tests.unit.record.model.tiles.oracle import bytes_of, call_of, operand_of, run_model, slot_of
from tests.unit.record.model.tiles.reach import (
    H200,
    assert_reads,
    assert_writes,
    elements,
    positions,
    shapes,
    tensors,
    tile_count,
)
from tileprof.record.model.tile_model import Operand
from tileprof.record.model.tiles.elementwise import pointwise
from tileprof.trace.footprint import READ, WRITE


@st.composite
def launches(draw):
    """Draw one to three inputs that broadcast to the output's shape, in any layout, cut by any block size."""
    shape = draw(shapes(max_elements=1500))
    out = draw(tensors(shape))
    inputs = []
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(shape)))
        own = tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in shape[start:])
        inputs.append(draw(tensors(own, broadcast=True)))
    return out, inputs, draw(st.sampled_from([1, 4, 7, 32])), draw(st.sampled_from([1, 3, 8]))


@settings(max_examples=120, deadline=None)
@given(launches())
def test_any_layout_is_read_and_written_exactly(given_launch):
    out, inputs, threads, each = given_launch
    result = operand_of(out, 9)
    reads = [operand_of(t, i) for i, t in enumerate(inputs)]
    [kernel] = pointwise.elementwise("f", reads, [result], threads=threads, each=each)
    assert tile_count(kernel) == -(-out.numel() // (threads * each))
    assert_writes(kernel, result)
    for read, tensor in zip(reads, inputs, strict=True):
        assert_reads(kernel, result, read, positions(tensor).expand(result.shape))


@pytest.mark.parametrize(
    ("op", "tensors_given", "others"),
    [
        ("add.Tensor", [(3, 700), (700,)], []),
        ("mul.Tensor", [(60, 5, 4), (5, 1)], []),
        ("gelu", [(2500,)], []),
        ("tanh_backward", [(50, 50), (50, 50)], []),
        ("addcmul", [(40, 40), (40, 1), (40,)], []),
        ("where.self", [(9, 300), (9, 1), (300,)], []),
        ("lerp.Scalar", [(3000,), (3000,)], [0.5]),
        ("clamp", [(3000,)], [0.0, 1.0]),
        ("elu_backward", [(3000,)], [1.0, 1, 1, False, (3000,)]),
        ("hardswish", [(3000,)], []),
    ],
)
def test_operators_read_their_tensors_and_write_their_output(op, tensors_given, others):
    def tensor(shape):
        return (
            torch.rand(shape) > 0.5 if op.startswith(("where", "masked")) and shape == mask_shape else torch.rand(shape)
        )

    mask_shape = tensors_given[0] if op.startswith("where") else tensors_given[-1]
    arguments = [tensor(s) for s in tensors_given]
    arguments += [tensor(o) if isinstance(o, tuple) else o for o in others]
    call = call_of(f"aten::{op}", *arguments)
    [kernel] = run_model(call, H200)
    [out] = call.outputs
    assert_writes(kernel, out)
    for operand in call.tensors[:-1]:
        assert_reads(kernel, out, operand, positions(operand).expand(out.shape))


def test_an_in_place_operator_reads_and_writes_the_same_memory_through_two_slots():
    call = call_of("aten::add_.Tensor", torch.rand(30, 30).t(), torch.rand(30))
    [kernel] = run_model(call, H200)
    assert slot_of(kernel, call["self"]) != slot_of(kernel, call.outputs[0])
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["self"], positions(call["self"]))


@pytest.mark.parametrize("op", ["zero_", "fill_.Scalar", "copy_"])
def test_what_is_overwritten_is_not_read(op):
    arguments = {"zero_": [], "fill_.Scalar": [1.0], "copy_": [torch.rand(30, 1)]}[op]
    call = call_of(f"aten::{op}", torch.rand(30, 40), *arguments)
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    assert all(not isinstance(o, Operand) or o.ref != call["self"].ref for o in kernel.operands)


def test_a_transposing_copy_reads_columns():
    source = torch.rand(64, 80).t()
    call = call_of("aten::clone", source, memory_format=torch.contiguous_format)
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["self"], positions(source))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_glu_and_its_gradient_touch_both_halves(dim):
    x = torch.rand(6, 40, 10)
    call = call_of("aten::glu", x, dim)
    [kernel] = run_model(call, H200)
    [out] = call.outputs
    assert_writes(kernel, out)
    first, second = positions(x).chunk(2, dim)
    assert_reads(kernel, out, call["self"], lambda mine: torch.cat([first[mine], second[mine]]))
    back = call_of("aten::glu_backward", torch.rand(out.shape), x, dim)
    [kernel] = run_model(back, H200)
    assert_writes(kernel, back.outputs[0])
    both = torch.cat([positions(out)] * 2, dim)
    assert_reads(kernel, back.outputs[0], back["grad_output"], both)


def test_strided_operands_take_smaller_blocks_than_dense_ones():
    dense = run_model(call_of("aten::relu", torch.rand(64, 64)), H200)[0]
    strided = run_model(call_of("aten::add.Tensor", torch.rand(64, 64), torch.rand(64)), H200)[0]
    assert (dense.grid[0], strided.grid[0]) == (4, 16)


@pytest.mark.parametrize(
    ("arguments", "expected", "tiles"),
    [
        ("float32", "bfloat16", 4), ("float32", "float16", 4), ("bfloat16", "float8_e4m3fn", 4),
        ("bfloat16", "float32", 8),
        ("float64", "bfloat16", 8), ("float32", "int32", 8),
    ],
)  # fmt: skip
def test_casts_take_smaller_blocks_but_those_to_narrower_floats(arguments, expected, tiles):
    x = torch.zeros(64, 64, dtype=getattr(torch, arguments))
    [kernel] = run_model(call_of("aten::_to_copy", x, dtype=getattr(torch, expected)), H200)
    assert kernel.grid[0] == tiles


@pytest.mark.parametrize("op", ["empty_like", "detach"])
def test_allocation_and_views_launch_nothing(op):
    assert run_model(call_of(f"aten::{op}", torch.rand(3)), H200) == []


def test_no_elements_no_launch():
    assert run_model(call_of("aten::relu", torch.rand(0, 4)), H200) == []


def test_reading_a_scalar_is_a_copy_to_the_host():
    call = call_of("aten::_local_scalar_dense", torch.tensor(1.0))
    [kernel] = run_model(call, H200)
    assert elements(kernel, call["self"], 0, READ) == [0]


def test_the_identity_writes_only_its_diagonal_after_the_zeros():
    call = call_of("aten::eye", 5)
    zeros, diagonal = run_model(call, H200)
    assert_writes(zeros, call.outputs[0])
    assert sorted(elements(diagonal, call.outputs[0], 0, 1)) == [0, 6, 12, 18, 24]


def test_a_large_launch_is_modelled_quickly():
    rows = Operand((2048, 50_000), (50_000, 1), "float32", 4)
    out = Operand((2048, 50_000), (50_000, 1), "float32", 4, ref=1)
    [kernel], lines = counted_lines(lambda: pointwise.elementwise("relu", [rows], [out]))
    assert kernel.footprint.tiles == math.ceil(2048 * 50_000 / 1024)
    assert lines < kernel.footprint.tiles / 10


def test_ranges_take_a_number_a_thread_in_blocks_of_64_as_recorded():
    [kernel] = run_model(call_of("aten::arange", 130), H200)
    assert (kernel.name, kernel.grid, kernel.block) == ("elementwise_with_index<arange>", (3, 1, 1), (64, 1, 1))


def test_elements_that_no_vector_fits_are_unrolled():
    x = torch.zeros(129, dtype=torch.int64)
    aligned, not_aligned = (run_model(call_of("aten::sub.Tensor", x[a : a + 128], x[:128]), H200)[0] for a in (0, 1))
    assert (aligned.name, not_aligned.name) == ("vectorized_elementwise<sub>", "unrolled_elementwise<sub>")
    assert (aligned.footprint.tiles, not_aligned.footprint.tiles) == (1, 1)
    assert run_model(call_of("aten::sub.Tensor", x.repeat(9)[1:1025], x.repeat(8)[:1024]), H200)[0].grid == (2, 1, 1)


def test_a_number_that_is_a_base_becomes_a_tensor_first():
    call = call_of("aten::pow.Scalar", 10000, torch.zeros(600))
    fill, power = run_model(call, H200)
    assert bytes_of(fill.footprint, 0, 0, WRITE) == bytes_of(power.footprint, 0, 0) == set(range(8))
    assert fill.operands[0] == power.operands[0]
    assert_writes(power, call.outputs[0])
    (ones,) = run_model(call_of("aten::pow.Scalar", 1, torch.zeros(600)), H200)
    assert not (ones.footprint.boxes.mode == READ).any()


def test_a_masked_fill_copies_and_then_changes_the_copy():
    x, mask = torch.rand(20, 300), torch.rand(20, 1) > 0.5
    call = call_of("aten::masked_fill.Scalar", x, mask, 0.0)
    copied, filled = run_model(call, H200)
    assert copied.name == "memcpy<device to device>"
    for kernel in (copied, filled):
        assert_writes(kernel, call.outputs[0])
    assert_reads(filled, call.outputs[0], call["mask"], positions(mask).expand(x.shape))
