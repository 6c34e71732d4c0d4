"""Reductions: every output once, from exactly the elements that it sums up; split reductions go through staging."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.model.tiles.oracle import call_of, operand_of, run_model
from tests.unit.record.model.tiles.reach import (
    H200,
    assert_reads,
    assert_writes,
    by_tile,
    elements,
    positions,
    shapes,
    tensors,
    tile_count,
)
from tileprof.record.model.tile_model import Operand, Scratch
from tileprof.record.model.tiles.reductions import reduce
from tileprof.trace.footprint import ATOMIC, WRITE


def needs_of(source, dims, shape):
    """Return a function that maps a mask of the output to the positions of the elements it was reduced from."""
    at = positions(source)

    def of(mine):
        keep = [1 if d in dims else n for d, n in enumerate(source.shape)]
        return at[mine.reshape(keep).expand(at.shape)] if shape is not None else at.flatten()

    return of


@st.composite
def reductions(draw):
    shape = draw(shapes(max_elements=3000))
    source = draw(tensors(shape))
    dims = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    return source, sorted(dims), draw(st.booleans())


@settings(max_examples=100, deadline=None)
@given(reductions())
def test_every_output_is_reduced_from_its_own_elements(case):
    source, dims, keepdim = case
    call = call_of("aten::sum.dim_IntList", source, dims, keepdim)
    [kernel] = run_model(call, H200)
    [out] = call.outputs
    tile_count(kernel)
    assert_writes(kernel, out)
    assert_reads(kernel, out, call["self"], needs_of(source, dims, out.shape))


@pytest.mark.parametrize(
    ("shape", "order", "dims"),
    [
        ((300_000,), (0,), [0]),
        ((40_000, 12), (0, 1), [0]),
        ((3, 300_004), (0, 1), [1]),
        ((200, 300, 7), (0, 1, 2), [0, 1]),
        ((600, 7, 300), (0, 1, 2), [0, 2]),
    ],
)
def test_split_reductions_share_the_work_exactly(shape, order, dims):
    source = torch.zeros(shape).permute(order)
    call = call_of("aten::sum.dim_IntList", source, dims)
    cleared, kernel = run_model(call, H200)
    assert kernel.grid[1] > 1
    [out] = call.outputs
    workspaces = [o for o in kernel.operands if isinstance(o, Scratch)]
    staging = [o for o in workspaces if o not in cleared.operands]
    assert len(workspaces) == 2
    assert len(staging) == 1
    updates, reads = by_tile(kernel, out, ATOMIC), by_tile(kernel, call["self"])
    for x in range(kernel.grid[0]):
        group = [x + y * kernel.grid[0] for y in range(kernel.grid[1])]
        written = [sorted(updates[t]) for t in group]
        assert all(w == written[0] for w in written)
        read = [e for t in group for e in reads[t]]
        mine = torch.isin(positions(out), torch.tensor(written[0]))
        assert len(read) == len(set(read))
        assert set(read) == set(needs_of(source, dims, out.shape)(mine).tolist())


@pytest.mark.parametrize(
    ("op", "arguments", "dims"),
    [
        ("mean.dim", [[-1]], [1]),
        ("amax", [[0]], [0]),
        ("argmax", [1], [1]),
        ("max.dim", [1], [1]),
        ("max", [], [0, 1]),
        ("any", [], [0, 1]),
        ("all.dim", [0], [0]),
        ("prod.dim_int", [1], [1]),
        ("var.correction", [[1]], [1]),
        ("linalg_vector_norm", [2, [1]], [1]),
        ("sum", [], [0, 1]),
    ],
)
def test_operators_reduce_the_dimensions_they_are_given(op, arguments, dims):
    x = torch.rand(30, 50)
    call = call_of(f"aten::{op}", x, *arguments)
    [kernel] = run_model(call, H200)
    for out in call.outputs:
        assert_writes(kernel, out)
        assert_reads(kernel, out, call["self"], needs_of(x, dims, out.shape))


@pytest.mark.parametrize("keepdim", [False, True])
def test_logsumexp_is_two_reductions_and_seven_element_wise_launches(keepdim):
    source = torch.rand(30, 50, dtype=torch.float16)
    call = call_of("aten::logsumexp", source, [1], keepdim)
    kernels = run_model(call, H200)
    names = [kernel.name.partition("<")[2].strip(">") for kernel in kernels]
    assert names == ["max", "abs", "eq", "masked_fill_", "sub", "exp_", "sum", "log_", "add_"]
    for kernel in kernels[-3:]:
        assert_writes(kernel, call.outputs[0])
    for kernel in (kernels[0], kernels[4]):
        assert any(isinstance(o, Operand) and o.ref == call["self"].ref for o in kernel.operands)


def test_the_sum_of_nothing_is_only_written():
    call = call_of("aten::sum.dim_IntList", torch.rand(3, 0), [1])
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])


def test_a_row_sum_packs_rows_and_a_column_sum_takes_strips():
    rows = reduce.plan(4096, 64, H200, row_wise=True, dense=True, itemsize=4)
    columns = reduce.plan(8192, 2048, H200, row_wise=False, dense=True, itemsize=4)
    assert (rows.outputs_per_block, rows.splits) == (16, 1)
    assert (columns.outputs_per_block, columns.splits) == (128, 32)


def test_reducing_one_number_gives_one_tile():
    call = call_of("aten::sum", torch.tensor(2.0))
    [kernel] = run_model(call, H200)
    assert kernel.footprint.tiles == 1
    assert elements(kernel, operand_of(torch.tensor(1.0), 1), 0, WRITE) == [0]


def test_all_of_one_element_is_a_copy_as_recorded():
    [kernel] = run_model(call_of("aten::all", torch.ones(1, dtype=torch.bool)), H200)
    assert (kernel.name, kernel.footprint.tiles) == ("memcpy<device to device>", 1)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "grid", "block"),
    [
        ("mean.dim", (2, 512, 14, 14), torch.bfloat16, (32, 1, 1), (16, 32, 1)),
        ("mean.dim", (2, 120, 28, 28), torch.bfloat16, (15, 1, 1), (32, 16, 1)),
        ("mean.dim", (2, 512, 14, 14), torch.float32, (64, 1, 1), (32, 16, 1)),
        ("sum.dim_IntList", (2, 128, 14, 14), torch.bfloat16, (8, 1, 1), (16, 32, 1)),
        ("mean.dim", (2, 1024, 7, 7), torch.bfloat16, (128, 1, 1), (32, 16, 1)),
    ],
)
def test_rows_are_loaded_as_vectors_as_recorded(name, shape, dtype, grid, block):
    """On an H200 with PyTorch 2.11."""
    call = call_of(f"aten::{name}", torch.zeros(shape, dtype=dtype), [2, 3])
    [kernel] = run_model(call, H200)
    assert (kernel.grid, kernel.block) == (grid, block)
    assert_writes(kernel, call.outputs[0])


@pytest.mark.parametrize("length", [1 << 18, (1 << 18) + 1])
def test_blocks_that_share_rows_between_vectors_take_them_whole(length):
    call = call_of("aten::sum.dim_IntList", torch.zeros(2, length), [1])
    kernel = run_model(call, H200)[-1]
    reads = by_tile(kernel, call["self"])
    assert kernel.grid[1] > 1
    assert len(reads[0]) == (length if length % 4 else -(-length // 4096 // kernel.grid[1]) * 4096)


def test_blocks_own_results_that_lie_side_by_side():
    """A reduction of a transposed tensor, as recorded on an H200: results decide the order, not what is read."""
    call = call_of("aten::sum.dim_IntList", torch.zeros(2, 64, 3, 32).transpose(1, 2), [3])
    [kernel] = run_model(call, H200)
    assert by_tile(kernel, call.outputs[0], WRITE) == [list(range(first, first + 16)) for first in range(0, 384, 16)]
