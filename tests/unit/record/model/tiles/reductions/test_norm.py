"""Layer norm: rows in the forward pass and for the input's gradient, columns for the weight's."""

import pytest
import torch

from tests.unit.record.model.tiles.oracle import call_of, run_model, slot_of
from tests.unit.record.model.tiles.reach import H200, assert_reads, assert_writes, positions, tile_count
from tileprof.record.model.tiles.foundations.sketch import scratch

BATCH, ROWS, COLUMNS = 3, 5, 72


def rows_of(source):
    at = positions(source)
    return lambda mine: at[mine.any(-1, keepdim=True).expand(at.shape)]


@pytest.mark.parametrize("transposed", [False, True])
def test_forward_reads_a_row_and_the_whole_weight(transposed):
    x = torch.rand(ROWS, BATCH, COLUMNS).transpose(0, 1) if transposed else torch.rand(BATCH, ROWS, COLUMNS)
    call = call_of("aten::native_layer_norm", x, [COLUMNS], torch.rand(COLUMNS), torch.rand(COLUMNS), 1e-5)
    *copies, kernel = run_model(call, H200)
    assert tile_count(kernel) == BATCH * ROWS
    for out in call.outputs:
        assert_writes(kernel, out)
    out, source = call.outputs[0], call["input"]
    if transposed:  # the kernel takes only dense rows
        source = scratch(0, *x.shape)
        assert_reads(copies[0], source, call["input"], positions(x))
    assert_reads(kernel, out, source, rows_of(x.contiguous()))
    assert len(copies) == transposed
    for name in ("weight", "bias"):
        assert_reads(kernel, out, call[name], lambda _: torch.arange(COLUMNS))


def without_vectors(kind):
    """Return rows that cannot be loaded four elements at a time: too short, not aligned, in double precision."""
    if kind == "odd length":
        return torch.rand(BATCH, ROWS, 70), torch.rand(70)
    if kind == "double":
        return torch.rand(BATCH, ROWS, 72).double(), torch.rand(72).double()
    rows, weight = torch.rand(BATCH * ROWS * 72 + 1), torch.rand(73)
    return rows[kind == "rows" :][: BATCH * ROWS * 72].view(BATCH, ROWS, 72), weight[kind == "weight" :][:72]


@pytest.mark.parametrize("op", ["aten::native_layer_norm", "aten::_fused_rms_norm"])
@pytest.mark.parametrize("kind", ["odd length", "double", "rows", "weight"])
def test_rows_that_cannot_be_loaded_as_vectors_take_two_kernels(kind, op):
    x, weight = without_vectors(kind)
    bias = [] if "rms" in op else [None]
    call = call_of(op, x, [x.shape[-1]], weight, *bias, 1e-5)
    moments, scaled = run_model(call, H200)
    assert (moments.block, scaled.block) == ((512, 1, 1), (256, 1, 1))
    assert tile_count(moments) == tile_count(scaled) == BATCH * ROWS
    out, *statistics = call.outputs
    assert_writes(scaled, out)
    assert_reads(scaled, out, call["input"], rows_of(call["input"]))
    for statistic in statistics:
        assert_writes(moments, statistic)
        assert_reads(moments, statistic, call["input"], lambda mine: positions(call["input"])[mine.any(-1)])
        assert_reads(scaled, out, statistic, lambda mine, s=statistic: positions(s)[mine.any(-1)])


def test_several_normalised_dimensions_are_one_row():
    x = torch.rand(4, 6, 8)
    call = call_of("aten::native_layer_norm", x, [6, 8], torch.rand(6, 8), None, 1e-5)
    [kernel] = run_model(call, H200)
    assert kernel.footprint.tiles == 4
    at = positions(x)
    assert_reads(kernel, call.outputs[0], call["input"], lambda mine: at[mine.any((1, 2))])


def gradients(mask):
    x = torch.rand(BATCH, ROWS, COLUMNS)
    mean, rstd, weight, bias = (
        torch.rand(BATCH, ROWS, 1),
        torch.rand(BATCH, ROWS, 1),
        torch.rand(COLUMNS),
        torch.rand(COLUMNS),
    )
    return call_of("aten::native_layer_norm_backward", x.clone(), x, [COLUMNS], mean, rstd, weight, bias, mask)


def test_backward_is_a_row_kernel_and_a_column_kernel():
    call = gradients([True, True, True])
    by_row, by_column = run_model(call, H200)
    inputs = positions(call["input"])
    assert_writes(by_row, call.outputs[0])
    statistic = positions(call["mean"])
    for name in ("grad_out", "input"):
        assert_reads(by_row, call.outputs[0], call[name], rows_of(call["input"]))
        assert_reads(by_column, call.outputs[1], call[name], lambda mine: inputs[:, :, mine])
    for name in ("mean", "rstd"):
        assert_reads(by_row, call.outputs[0], call[name], lambda mine: statistic[mine.any(-1)])
        assert_reads(by_column, call.outputs[1], call[name], lambda _: statistic)
    for out in call.outputs[1:]:
        assert_writes(by_column, out)


def test_backward_reads_copies_of_what_is_not_dense():
    x, gradient = (torch.rand(ROWS, BATCH, COLUMNS).transpose(0, 1) for _ in range(2))
    mean, weight = torch.rand(BATCH, ROWS, 1), torch.rand(COLUMNS)
    mask = [True, True, True]
    call = call_of("aten::native_layer_norm_backward", gradient, x, [COLUMNS], mean, mean.clone(), weight, weight, mask)
    *copies, by_row, by_column = run_model(call, H200)
    assert len(copies) == 2
    for number, (copy, name) in enumerate(zip(copies, ("grad_out", "input"), strict=True)):
        source = scratch(number, *x.shape)
        assert_reads(copy, source, call[name], positions(x))
        assert_reads(by_row, call.outputs[0], source, rows_of(x.contiguous()))
        assert slot_of(by_column, source) >= 0


def test_only_the_gradients_asked_for_are_launched():
    call = gradients([False, True, False])
    [kernel] = run_model(call, H200)
    assert len(call.outputs) == 1
    assert_writes(kernel, call.outputs[0])
    assert slot_of(kernel, call["grad_out"]) >= 0


def test_the_fused_rms_norm_has_the_same_tiles():
    call = call_of("aten::_fused_rms_norm", torch.rand(6, 64), [64], torch.rand(64), 1e-5)
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["input"], rows_of(torch.rand(6, 64)))
