"""Sampling by a grid reads every element that changes the result, and no image that its places do not name."""

import pytest
import torch

from tests.unit.record.model.tiles.oracle import call_of, run_model
from tests.unit.record.model.tiles.reach import H200, assert_writes, by_tile, elements, positions
from tileprof.record.model.tiles.convolutions import grid_sample
from tileprof.trace.footprint import ATOMIC


def grids(places):
    """Coordinates inside and outside the image, and exactly on elements and between them."""
    torch.manual_seed(0)
    some = torch.rand(2, places, 3, 2) * 3 - 1.5
    some[0, 0, :, 0] = torch.tensor([-1.0, 0.0, 1.0])
    return some


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_reads_what_changes_the_result(mode, padding, align, monkeypatch):
    monkeypatch.setitem(grid_sample._THREADS, 2, 4)
    image, grid = torch.rand(2, 2, 5, 6, requires_grad=True), grids(5)
    call = call_of("aten::grid_sampler_2d", image.detach(), grid, mode, padding, align)
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    assert kernel.coverage == "exact"
    assert kernel.footprint.tiles == 8
    reads = [set(tile) for tile in by_tile(kernel, call["input"])]
    out = torch.grid_sampler_2d(image, grid, mode, padding, align)
    at, where = positions(image), positions(call.outputs[0])
    for tile in range(kernel.footprint.tiles):
        mine = torch.isin(where, torch.tensor(elements(kernel, call.outputs[0], tile, 1)))
        [gradient] = torch.autograd.grad(out[mine].sum(), image, retain_graph=True)
        assert set(at[gradient != 0].tolist()) <= reads[tile]
    if mode != 2:
        assert max(map(len, reads)) < image.numel() // 2


def test_gradients_go_where_the_result_came_from(monkeypatch):
    monkeypatch.setitem(grid_sample._THREADS, 2, 4)
    image, grid = torch.rand(2, 2, 5, 6), grids(5)
    forward = call_of("aten::grid_sampler_2d", image, grid, 0, 0, False)
    [sampling] = run_model(forward, H200)
    gradient = torch.rand(forward.outputs[0].shape)
    call = call_of("aten::grid_sampler_2d_backward", gradient, image, grid, 0, 0, False, [True, True])
    zeros, kernel = run_model(call, H200)
    assert_writes(zeros, call.outputs[0])
    assert_writes(kernel, call.outputs[1])
    assert by_tile(kernel, call.outputs[0], ATOMIC) == by_tile(sampling, forward["input"])
    assert by_tile(kernel, call["grad_output"]) == by_tile(sampling, forward.outputs[0], 1)


def test_without_values_a_place_takes_its_whole_image(monkeypatch):
    monkeypatch.setitem(grid_sample._THREADS, 2, 10)
    call = call_of("aten::grid_sampler_2d", torch.rand(2, 2, 5, 6), grids(5), 0, 0, False)
    call.value = lambda _: None
    [kernel] = run_model(call, H200)
    assert kernel.coverage == "conservative"
    assert [len(tile) for tile in by_tile(kernel, call["input"])] == [60, 120, 60]


def test_coordinates_of_16_bits_say_where_a_place_reads():
    image, grid = torch.rand(2, 2, 5, 6).bfloat16(), grids(5).bfloat16()
    [kernel] = run_model(call_of("aten::grid_sampler_2d", image, grid, 0, 0, False), H200)
    [wide] = run_model(call_of("aten::grid_sampler_2d", image.float(), grid.float(), 0, 0, False), H200)
    assert kernel.coverage == "exact"
    assert kernel.footprint.boxes.length.sum() * 2 == wide.footprint.boxes.length.sum()
