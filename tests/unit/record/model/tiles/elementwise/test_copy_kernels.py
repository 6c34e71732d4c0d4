"""Kernels that move data, compared with PyTorch moving positions instead of values."""

from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.model.tiles.oracle import call_of, run_model
from tests.unit.record.model.tiles.reach import (
    H200,
    assert_reads,
    assert_writes,
    by_tile,
    elements,
    positions,
    shapes,
    tensors,
)
from tileprof.record.model.tiles.elementwise.copies import rearranged
from tileprof.record.model.tiles.foundations.sketch import scratch
from tileprof.trace.footprint import READ, WRITE


def copy_call(op, source, *arguments):
    """Return the output's elements as positions in the source, by running the operator itself."""
    name, _, overload = op.partition(".")
    return getattr(getattr(torch.ops.aten, name), overload or "default")(positions(source), *arguments)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_flips_of_any_layout(data):
    source = data.draw(shapes(max_elements=2500).flatmap(tensors))
    dims = data.draw(st.lists(st.integers(0, source.dim() - 1), unique=True, max_size=source.dim()))
    call = call_of("aten::flip", source, dims)
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["self"], copy_call("flip", source, dims))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_roll_is_a_kernel_per_dimension_after_a_copy_of_what_is_not_contiguous(data):
    source = data.draw(shapes(max_elements=2500).flatmap(tensors))
    dims = data.draw(st.lists(st.integers(0, source.dim() - 1), unique=True, max_size=source.dim()))
    count = max(len(dims), 1)
    shifts = data.draw(st.lists(st.integers(-7, 7), min_size=count, max_size=count))
    call = call_of("aten::roll", source, shifts, dims)
    kernels = run_model(call, H200)
    out, before, dense = call.outputs[0], call["self"], torch.empty(source.shape)
    if not source.is_contiguous():
        before = scratch(0, *source.shape)
        assert_reads(kernels.pop(0), before, call["self"], positions(source))
    for number, (shift, dim) in enumerate(zip(shifts, dims or [None], strict=True), 1):
        kernel = kernels.pop(0)
        after = scratch(number, *source.shape) if kernels else out
        assert kernel.block == (512, 1, 1)
        assert_writes(kernel, after)
        assert_reads(kernel, after, before, torch.roll(positions(dense), shift, dim))
        before = after
    assert not kernels


@pytest.mark.parametrize(
    ("op", "shape", "arguments"),
    [
        ("repeat", (5, 7), ([2, 3, 4],)),
        ("repeat", (50,), ([31],)),
        ("pixel_shuffle", (2, 8, 6, 5), (2,)),
        ("pixel_unshuffle", (2, 2, 6, 10), (2,)),
        ("channel_shuffle", (2, 12, 5, 9), (3,)),
    ],
)
def test_shuffles_and_repetitions_read_where_the_output_came_from(op, shape, arguments):
    source = torch.rand(shape)
    call = call_of(f"aten::{op}", source, *arguments)
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["self"], copy_call(op, source, *arguments))


@pytest.mark.parametrize("op", ["tril", "triu"])
@pytest.mark.parametrize("diagonal", [-3, 0, 2])
def test_triangles_read_only_what_they_keep(op, diagonal):
    source = torch.rand(2, 30, 41)
    call = call_of(f"aten::{op}", source, diagonal)
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    selection = getattr(positions(source) + 1, op)(diagonal) - 1
    assert_reads(kernel, call.outputs[0], call["self"], selection)


@pytest.mark.parametrize(("dtype", "shape", "tiles"), [("bool", (64, 64), 4), ("float32", (300, 299), 352)])
def test_a_thread_takes_eight_bytes_of_a_triangles_row_as_recorded(dtype, shape, tiles):
    [kernel] = run_model(call_of("aten::triu", torch.zeros(shape, dtype=getattr(torch, dtype)), 0), H200)
    assert kernel.grid == (tiles, 1, 1)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_concatenation_of_any_layouts(data):
    shape = data.draw(shapes(max_elements=900))
    dim = data.draw(st.integers(0, len(shape) - 1))
    stacked = data.draw(st.booleans())
    sources = []
    for _ in range(data.draw(st.integers(1, 4))):
        size = shape[dim] if stacked else data.draw(st.integers(0, 5))
        sources.append(data.draw(tensors((*shape[:dim], size, *shape[dim + 1 :]))))
    call = call_of("aten::stack" if stacked else "aten::cat", sources, dim)
    out = call.outputs[0]
    if out.numel == 0:
        assert run_model(call, H200) == []
        return
    kernels = run_model(call, H200)
    joins_in_place = stacked and dim < len(shape)  # `stack` joins along that dimension and splits the result
    if len(out.shape) - joins_in_place > 4:
        assert len(kernels) == sum(s.numel() > 0 for s in sources)
        return
    [kernel] = kernels
    assert_writes(kernel, out)
    join = torch.stack if stacked else torch.cat
    for i in range(len(sources)):
        own = [positions(s) if i == j else torch.full(s.shape, -1) for j, s in enumerate(sources)]
        assert_reads(kernel, out, call["tensors"][i], join(own, dim))


@pytest.mark.parametrize("pad", [(0, 0), (-1, 0, 0, -2)])
def test_padding_that_adds_nothing_is_a_copy(pad):
    source = torch.rand(6, 9, 20)
    call = call_of("aten::constant_pad_nd", source, list(pad), 0.0)
    [copy] = run_model(call, H200)
    assert_writes(copy, call.outputs[0])
    assert_reads(copy, call.outputs[0], call["self"], torch.constant_pad_nd(positions(source), pad, 0))


@pytest.mark.parametrize("pad", [(1, 2), (0, 3, 2, 0), (-1, 2, 3, -2, 1, 1)])
def test_padding_fills_then_copies_the_middle(pad):
    source = torch.rand(6, 9, 20)
    call = call_of("aten::constant_pad_nd", source, list(pad), 0.0)
    fill, copy = run_model(call, H200)
    out = call.outputs[0]
    assert_writes(fill, out)
    origin = torch.constant_pad_nd(positions(source) + 1, pad, 0) - 1
    written = sorted(e for t in range(copy.footprint.tiles) for e in elements(copy, out, t, WRITE))
    assert written == sorted(positions(out)[origin >= 0].tolist())
    assert_reads(copy, out, call["self"], origin)


@pytest.mark.parametrize(
    ("op", "arguments", "view"),
    [
        ("slice_backward", [[9, 40], 1, 3, 30, 2], lambda x: x[:, 3:30:2]),
        ("select_backward", [[9, 40], 0, -2], lambda x: x[-2]),
        ("diagonal_backward", [[9, 40], 2, 0, 1], lambda x: x.diagonal(2)),
    ],
)
def test_the_gradient_of_a_view_goes_where_the_view_was(op, arguments, view):
    view_result = view(torch.zeros(arguments[0]))
    call = call_of(f"aten::{op}", torch.rand(view_result.shape), *arguments)
    zeros, copy = run_model(call, H200)
    out = call.outputs[0]
    assert_writes(zeros, out)
    origin = torch.full(out.shape, -1)
    view(origin).copy_(positions(call["grad_output"]))
    assert_reads(copy, out, call["grad_output"], origin)


def test_diagonals_are_embedded_in_zeros():
    call = call_of("aten::diag_embed", torch.rand(3, 5))
    zeros, copy = run_model(call, H200)
    assert_writes(zeros, call.outputs[0])
    origin = torch.diag_embed(positions(call["self"]) + 1) - 1
    assert_reads(copy, call.outputs[0], call["self"], origin)


def test_of_inputs_of_other_types_those_that_need_no_conversion_are_copied_by_the_driver():
    call = call_of("aten::cat", [torch.rand(1, 64).half(), torch.rand(576, 64)], 0)
    converted, copied = run_model(call, H200)
    assert (converted.name, copied.name) == ("unrolled_elementwise<cat>", "memcpy<device to device>")
    assert elements(copied, call["tensors"][1], 0) == list(range(576 * 64))
    assert elements(copied, call.outputs[0], 0, WRITE) == list(range(64, 577 * 64))


def test_many_inputs_take_several_concatenation_kernels():
    call = call_of("aten::cat", [torch.rand(2) for _ in range(130)], 0)
    assert [k.grid[1] for k in run_model(call, H200)] == [128, 2]


def test_nothing_is_rearranged_for_no_elements():
    call = call_of("aten::flip", torch.rand(0, 3), [1])
    assert rearranged("flip", call["self"], call.outputs[0], lambda a, b: [(a, b)]) == []


def test_a_single_number_is_flipped_by_a_copy():
    call = call_of("aten::flip", torch.tensor(2.0), [0])
    [kernel] = run_model(call, H200)
    assert elements(kernel, call["self"], 0, READ) == elements(kernel, call.outputs[0], 0, WRITE) == [0]


def test_inputs_of_more_than_four_dimensions_are_copied_one_by_one():
    call = call_of("aten::cat", [torch.rand(2, 3, 1, 2, 4) for _ in range(3)], 4)
    kernels = run_model(call, H200)
    assert len(kernels) == 3
    written = [e for k in kernels for t in range(k.footprint.tiles) for e in elements(k, call.outputs[0], t, WRITE)]
    assert sorted(written) == sorted(positions(torch.empty(2, 3, 1, 2, 12)).flatten().tolist())
    for kernel, source in zip(kernels, call["tensors"], strict=True):
        read = [e for t in range(kernel.footprint.tiles) for e in elements(kernel, source, t, READ)]
        assert len(set(read)) == source.numel
    call = call_of("aten::cat", [torch.rand(2, 3, 2, 4) for _ in range(3)], 3)
    assert len(run_model(call, H200)) == 1


def channels_last(*shape):
    return torch.zeros(shape, dtype=torch.float16).to(memory_format=torch.channels_last)


def halves(*shape):
    return torch.zeros(shape, dtype=torch.bfloat16)


def longs(*shape):
    return torch.zeros(shape, dtype=torch.int64)


@pytest.mark.parametrize(
    ("op", "sources", "dim", "grids"),
    [
        ("stack", [halves(2, 64, 56, 56)] * 2, 1, [(392, 2, 1)]),
        ("stack", [halves(2, 300)] * 4, -1, [(2, 4, 1)]),
        ("stack", [halves(8, 64, 300, 4)] * 3, -2, [(1200, 3, 1)]),
        ("stack", [torch.zeros(2, 28, 28, 16)] * 2, -1, [(98, 1, 1)] * 2),
        ("stack", [longs(3595)] * 2, 0, [(15, 2, 1)]),
        ("cat", [longs(2, 7191)[1]] * 2, 0, [(264, 2, 1)]),
        ("cat", [torch.zeros(7191, 1), torch.zeros(3595, 1)], 0, [(15, 2, 1)]),
        ("cat", [channels_last(2, 80, 28, 28), channels_last(2, 160, 28, 28)[:, :80]], 1, [(245, 1, 1)] * 2),
    ],
)
def test_concatenations_have_the_grids_of_recordings(op, sources, dim, grids):
    """On an H200 with PyTorch 2.11."""
    call = call_of(f"aten::{op}", sources, dim)
    kernels = run_model(call, H200)
    assert [k.grid for k in kernels] == grids
    written = sorted(at for k in kernels for tile in by_tile(k, call.outputs[0], WRITE) for at in tile)
    assert written == sorted(positions(call.outputs[0]).flatten().tolist())
    for source in call["tensors"]:
        read = {
            at for k in kernels if any(o.ref == source.ref for o in k.operands) for at in chain(*by_tile(k, source))
        }
        assert read == set(positions(source).flatten().tolist())
