"""Upsampling and mirrored borders read what PyTorch reads, forward and backward."""

import pytest
import torch

from tests.unit.record.model.tiles.oracle import call_of, run_model
from tests.unit.record.model.tiles.reach import H200, assert_reads, assert_writes, elements, positions
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


@pytest.mark.parametrize(
    ("channels", "last", "tiles"), [(32, False, 3), (8, True, 3), (32, True, 147)], ids=["planes", "few", "elements"]
)
def test_a_thread_of_a_bilinear_image_has_its_place_in_all_planes(channels, last, tiles):
    x = torch.rand(2, channels, 12, 14)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    call = call_of("aten::upsample_bilinear2d", x, [48, 49], True)
    [kernel] = run_model(call, H200)
    assert kernel.footprint.tiles == tiles
    assert_writes(kernel, call.outputs[0])


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
