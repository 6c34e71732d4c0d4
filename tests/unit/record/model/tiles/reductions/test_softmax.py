"""Softmax tiles own whole rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.model.tiles.oracle import call_of, run_model
from tests.unit.record.model.tiles.reach import H200, assert_reads, assert_writes, positions, shapes, tensors


def rows_of(operand, dim):
    at = positions(operand)
    return lambda mine: at[mine.any(dim, keepdim=True).expand(at.shape)]


@st.composite
def softmaxes(draw):
    shape = draw(shapes(max_elements=3000))
    return draw(tensors(shape)), draw(st.integers(-len(shape), len(shape) - 1))


@settings(max_examples=80, deadline=None)
@given(softmaxes())
def test_every_row_comes_from_its_own_row(case):
    source, dim = case
    call = call_of("aten::_softmax", source, dim, False)
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["self"], rows_of(source, dim))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_the_gradient_reads_the_rows_of_output_and_its_gradient(dim):
    x = torch.rand(7, 65, 20)
    call = call_of("aten::_log_softmax_backward_data", x, x.clone(), dim, torch.float32)
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    for name in ("grad_output", "output"):
        assert_reads(kernel, call.outputs[0], call[name], rows_of(x, dim))


@pytest.mark.parametrize(("size", "rows_a_tile"), [(128, 8), (1000, 4), (1025, 1), (3, 64)])
def test_short_rows_share_a_thread_block(size, rows_a_tile):
    call = call_of("aten::_softmax", torch.rand(640, size), -1, False)
    [kernel] = run_model(call, H200)
    assert kernel.footprint.tiles == 640 // rows_a_tile
