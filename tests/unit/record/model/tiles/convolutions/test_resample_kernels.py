"""Upsampling and mirrored borders read what PyTorch reads, forward and backward."""

import pytest
import torch

from tests.unit.record.model.tiles.oracle import call_of, run_model
from tests.unit.record.model.tiles.reach import H200, assert_reads, assert_writes, by_tile, elements, positions
from tileprof.record.model import duration
from tileprof.trace.footprint import ATOMIC


@pytest.mark.parametrize("size", [(20, 30), (7, 50), (11, 13), (5, 4)])
def test_nearest_reads_one_element_an_output(size):
    x = torch.rand(2, 3, 10, 15)
    call = call_of("aten::upsample_nearest2d", x, list(size))
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    origin = torch.nn.functional.interpolate(positions(x).double(), size).long()
    assert_reads(kernel, call.outputs[0], call["self"], origin)
    back = call_of("aten::upsample_nearest2d_backward", torch.rand(call.outputs[0].shape), list(size), [2, 3, 10, 15])
    [kernel] = run_model(back, H200)
    out = back.outputs[0]
    assert_writes(kernel, out)
    number = positions(back["grad_output"])
    at = positions(out)
    assert_reads(kernel, out, back["grad_output"], lambda mine: number[torch.isin(origin, at[mine])])


def corners(x, size, *, align):
    """Return the input positions that contribute to each output, from PyTorch itself: the gradient of an output
    element.
    """
    matches = {}
    shape = (*x.shape[:2], *size)
    for i in range(size[0]):
        for j in range(size[1]):
            probe = torch.zeros(1, 1, *x.shape[2:], dtype=torch.float64, requires_grad=True)
            torch.nn.functional.interpolate(probe, size, mode="bilinear", align_corners=align)[0, 0, i, j].backward()
            matches[i, j] = probe.grad[0, 0].nonzero().tolist()
    return shape, matches


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(8, 9), (3, 4)])
def test_bilinear_reads_the_neighbours_of_each_output(align, size):
    x = torch.rand(1, 2, 5, 6)
    call = call_of("aten::upsample_bilinear2d", x, list(size), align)
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    shape, parts = corners(x, size, align=align)
    at = positions(x)
    read = set(elements(kernel, call["self"], 0))
    needs = {int(at[0, c, i, j]) for c in range(2) for near in parts.values() for i, j in near}
    assert shape == call.outputs[0].shape
    assert needs <= read <= set(at.flatten().tolist())
    back = call_of("aten::upsample_bilinear2d_backward", torch.rand(shape), list(size), list(x.shape), align)
    zeros, add = run_model(back, H200)
    assert_writes(zeros, back.outputs[0])
    assert set(elements(add, back.outputs[0], 0, ATOMIC)) == read


@pytest.mark.parametrize(("op", "pad"), [("reflection_pad2d", [3, 2, 1, 4]), ("replication_pad2d", [3, 2, 1, 4])])
def test_borders_read_the_inside_again(op, pad):
    x = torch.rand(2, 3, 6, 7)
    call = call_of(f"aten::{op}", x, pad)
    [kernel] = run_model(call, H200)
    out = call.outputs[0]
    assert_writes(kernel, out)
    origin = getattr(torch.ops.aten, op)(positions(x).double(), pad).long()
    assert_reads(kernel, out, call["self"], origin)
    back = call_of(f"aten::{op}_backward", torch.rand(out.shape), x, pad)
    zeros, add = run_model(back, H200)
    assert_writes(zeros, back.outputs[0])
    at = positions(back["grad_output"])
    for tile in range(add.footprint.tiles):
        mine = torch.isin(at, torch.tensor(elements(add, back["grad_output"], tile)))
        assert set(elements(add, back.outputs[0], tile, ATOMIC)) == set(origin[mine].tolist())


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(8, 9), (3, 4)])
def test_cubic_reads_what_changes_the_result(align, size):
    x = torch.rand(1, 2, 5, 6, requires_grad=True)
    call = call_of("aten::upsample_bicubic2d", x.detach(), list(size), align)
    zeros, kernel = run_model(call, H200)
    for one in (zeros, kernel):
        assert_writes(one, call.outputs[0])
    out = torch.nn.functional.interpolate(x, size, mode="bicubic", align_corners=align)
    [gradient] = torch.autograd.grad(out.sum(), x)
    read = set(elements(kernel, call["self"], 0))
    assert set(positions(x)[gradient != 0].tolist()) <= read
    back = call_of("aten::upsample_bicubic2d_backward", torch.rand(out.shape), list(size), list(x.shape), align)
    zeros, add = run_model(back, H200)
    assert_writes(zeros, back.outputs[0])
    assert set(elements(add, back.outputs[0], 0, ATOMIC)) == read


@pytest.mark.parametrize(
    ("op", "channels", "last", "grid", "block"),
    [
        ("upsample_nearest2d", 24, False, (1, 3, 12), (64, 8, 1)),
        ("upsample_nearest2d", 24, True, (60,), (1024,)),
        ("upsample_nearest2d", 3, True, (1, 3, 2), (64, 8, 1)),
        ("upsample_bilinear2d", 24, False, (2,), (1024,)),
        ("upsample_bilinear2d", 24, True, (60,), (1024,)),
        ("upsample_bicubic2d", 24, True, (2,), (1024,)),
    ],
)
def test_the_grid_follows_the_layout(op, channels, last, grid, block):
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.rand(2, channels, 10, 32).to(memory_format=layout)
    call = call_of(f"aten::{op}", x, [20, 64], *([] if "nearest" in op else [False]))
    [kernel] = [k for k in run_model(call, H200) if k.name == op]
    assert (kernel.grid, kernel.block) == tuple((*n, 1, 1)[:3] for n in (grid, block))
    kernels = run_model(call, H200)
    if channels == 3:
        assert ["elementwise" in k.name for k in kernels] == [True, False, True]  # to dense images and back
    assert_writes(kernels[-1], call.outputs[0])
    read = next(k for k in kernels if any(o.ref == 0 for o in k.operands if hasattr(o, "ref")))
    assert set().union(*by_tile(read, call["self"])) == set(positions(call["self"]).flatten().tolist())


@pytest.mark.parametrize("size", [(20, 64), (5, 16), (23, 71)])
def test_planes_read_the_nearest_element(size):
    x = torch.rand(3, 7, 10, 32)
    call = call_of("aten::upsample_nearest2d", x, list(size))
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    origin = torch.nn.functional.interpolate(positions(x).double(), size).long()
    assert_reads(kernel, call.outputs[0], call["self"], origin)


@pytest.mark.parametrize(
    ("planes", "side", "dtype", "measured_us"),
    [
        ((2, 1024), 7, torch.float32, 375.7), ((2, 64), 7, torch.bfloat16, 22.8), ((2, 64), 14, torch.bfloat16, 28.9),
        ((2, 64), 28, torch.bfloat16, 29.2), ((2, 128), 14, torch.bfloat16, 54.6),
    ],
)  # fmt: skip
def test_a_few_blocks_take_as_long_as_their_threads_need_for_all_planes(planes, side, dtype, measured_us):
    x = torch.empty(*planes, side, side, dtype=dtype)
    [kernel] = run_model(call_of("aten::upsample_bilinear2d", x, [2 * side, 2 * side], False), H200)
    lives = duration.model(kernel, H200)
    assert lives.launch_ns == pytest.approx(1000 * measured_us, rel=0.09)
