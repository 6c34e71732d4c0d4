"""Scans, sorts and searches own whole lines, or read everything that they compare with."""

import numpy as np
import pytest
import torch

from tests.unit.record.model.tiles.oracle import call_of, run_model
from tests.unit.record.model.tiles.reach import H200, assert_reads, assert_writes, by_tile, positions
from tileprof.record.model.tiles.foundations.sketch import ATOMIC, READ, WRITE, scratch


def coverage(kernel, operand, mode):
    return {e for tile in by_tile(kernel, operand, mode) for e in tile}


def lines(source, dim):
    at = positions(source)
    return lambda mine: at[mine.any(dim, keepdim=True).expand(at.shape)]


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("op", ["cumsum", "cumprod"])
def test_lines_come_from_themselves(op, dim):
    x = torch.rand(20, 7, 33)
    call = call_of(f"aten::{op}", x, dim)
    [kernel] = run_model(call, H200)
    for out in call.outputs:
        assert_writes(kernel, out)
        assert_reads(kernel, out, call["self"], lines(x, dim))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_lines_are_copied_and_sorted_in_place(dim):
    x = torch.rand(20, 7, 33)
    call = call_of("aten::sort", x, dim)
    copied, numbered, placed, again, sort = run_model(call, H200)
    values, places = call.outputs
    for kernel in (copied, again):
        assert_writes(kernel, values)
        assert coverage(kernel, call["self"], READ) == set(range(x.numel()))
    assert numbered.name == "elementwise_with_index<arange>"
    assert_writes(placed, places)
    for out in (values, places):
        assert_writes(sort, out)
        assert_reads(sort, out, out, lines(x, dim))
    assert sort.footprint.tiles == x.numel() // x.shape[dim]


@pytest.mark.parametrize("shape", [(5000,), (3, 5000)])
def test_long_lines_are_sorted_at_once(shape):
    call = call_of("aten::sort", torch.rand(shape), -1)
    kernels = run_model(call, H200)
    assert sum(k.name == "radix_sort_onesweep" for k in kernels) == (4 if len(shape) == 1 else 5)
    assert coverage(kernels[-1], call.outputs[0], WRITE if len(shape) == 1 else ATOMIC) == set(range(np.prod(shape)))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("dim", [0, -1])
def test_the_largest_of_a_line_come_from_the_line(dim, ordered):
    x = torch.rand(20, 33)
    call = call_of("aten::topk", x, 5, dim, True, ordered)
    kernel, *sorts = run_model(call, H200)
    for out in call.outputs:
        assert_writes(kernel, out)
        assert_reads(kernel, out, call["self"], lines(x, dim))
        for sort in sorts:
            assert_writes(sort, out)
            assert_reads(sort, out, out, lines(torch.rand(out.shape), dim))
    assert len(sorts) == ordered


def test_a_scan_of_what_is_not_dense_copies_it_first():
    x = torch.rand(6, 40)[:, :20]
    call = call_of("aten::cumsum", x, 1)
    copied, kernel = run_model(call, H200)
    assert_reads(copied, scratch(0, 6, 20), call["self"], positions(x))
    assert_reads(kernel, call.outputs[0], scratch(0, 6, 20), lines(x.contiguous(), 1))


def test_the_median_of_a_line_has_lost_the_dimension():
    x = torch.rand(20, 33)
    call = call_of("aten::median.dim", x, 1)
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["self"], lambda mine: positions(x)[mine])


def test_a_scan_over_one_line_is_one_pass_with_look_back():
    call = call_of("aten::cumsum", torch.rand(10_000), 0)
    prepare, kernel = run_model(call, H200)
    assert prepare.name == "scan_init"
    assert kernel.footprint.tiles == 5
    assert "waits inside" in kernel.note
    assert_writes(kernel, call.outputs[0])


def test_a_scan_of_another_type_casts_first_and_alone_needs_no_look_back():
    call = call_of("aten::cumsum", torch.rand(100) > 0.5, 0)
    cast, prepare, kernel = run_model(call, H200)
    assert [k.name for k in (cast, prepare, kernel)] == ["unrolled_elementwise<copy_>", "scan_init", "scan<cumsum>"]
    assert cast.operands[1] == kernel.operands[0]
    assert len(kernel.operands) == 2, "one block looks at no other's state"


def test_lines_of_another_type_are_cast_first():
    call = call_of("aten::cumsum", torch.ones(3, 5, dtype=torch.int32), 1)
    cast, scan = run_model(call, H200)
    numbers = scratch(1, 3, 5, itemsize=8)
    assert_reads(cast, numbers, call["self"], positions(call["self"]))
    assert_reads(scan, call.outputs[0], numbers, lines(torch.ones(3, 5), 1))
    assert_writes(scan, call.outputs[0])


def test_searching_reads_all_boundaries():
    call = call_of("aten::bucketize.Tensor", torch.rand(2000), torch.rand(30).sort().values)
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["self"], positions(call["self"]))
    assert_reads(kernel, call.outputs[0], call["boundaries"], lambda _: torch.arange(30))


def test_membership_reads_all_candidates():
    call = call_of("aten::isin.Tensor_Tensor", torch.arange(3000), torch.arange(7))
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["test_elements"], lambda _: torch.arange(7))
