"""Losses pick the targets' entries."""

import pytest
import torch

from tests.unit.record.model.tiles.oracle import call_of, run_model
from tests.unit.record.model.tiles.reach import H200, assert_writes, by_tile, elements, positions
from tileprof.trace.footprint import READ, WRITE

ROWS, CLASSES = 700, 9


def coverage(kernel, operand, mode):
    return {e for tile in by_tile(kernel, operand, mode) for e in tile}


def picks(call, target, ignored):
    at = positions(call["self"])
    return {int(at[i, t]) for i, t in enumerate(target.tolist()) if t != ignored}


@pytest.mark.parametrize("reduction", [0, 1])
def test_negative_log_likelihood_reads_one_number_a_row(reduction):
    target = torch.randint(0, CLASSES, (ROWS,))
    call = call_of("aten::nll_loss_forward", torch.rand(ROWS, CLASSES), target, torch.rand(CLASSES), reduction, 4)
    *zeros, kernel = run_model(call, H200)
    assert kernel.footprint.tiles == (1 if reduction else 2)
    assert_writes(kernel if reduction else zeros[0], call.outputs[1])
    assert coverage(kernel, call["self"], READ) == picks(call, target, 4)
    assert coverage(kernel, call["weight"], READ) == set(target.tolist()) - {4}
    assert_writes(kernel, call.outputs[0])


def test_its_gradient_is_zero_but_for_one_number_a_row():
    target = torch.randint(0, CLASSES, (ROWS,))
    call = call_of(
        "aten::nll_loss_backward",
        torch.tensor(1.0),
        torch.rand(ROWS, CLASSES),
        target,
        None,
        1,
        -100,
        torch.tensor(1.0),
    )
    zeros, kernel = run_model(call, H200)
    assert_writes(zeros, call.outputs[0])
    assert coverage(kernel, call.outputs[0], WRITE) == picks(call, target, -100)


def test_images_of_targets_are_picked_pixel_by_pixel():
    target = torch.randint(0, 4, (2, 5, 6))
    call = call_of("aten::nll_loss2d_forward", torch.rand(2, 4, 5, 6), target, None, 1, -100)
    [kernel] = run_model(call, H200)
    expected = positions(call["self"]).gather(1, target[:, None])
    assert coverage(kernel, call["self"], READ) == set(expected.flatten().tolist())


def test_without_values_the_whole_input_is_read():
    call = call_of("aten::nll_loss_forward", torch.rand(8, 3), torch.zeros(8, dtype=torch.int64), None, 1, -100)
    call.value = lambda _: None
    [kernel] = run_model(call, H200)
    assert (kernel.coverage, len(elements(kernel, call["self"], 0))) == ("conservative", 24)


@pytest.mark.parametrize("op", ["mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"])
def test_element_wise_losses_end_in_a_reduction(op):
    call = call_of(f"aten::{op}", torch.rand(40, 50), torch.rand(40, 50))
    *_, last = run_model(call, H200)
    assert_writes(last, call.outputs[0])
