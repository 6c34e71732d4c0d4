"""Batch norm and group norm: statistics read exactly their elements, and results exactly their statistics."""

import pytest
import torch

from tests.unit.record.model.tiles.oracle import call_of, run_model
from tests.unit.record.model.tiles.reach import H200, assert_reads, assert_writes, positions
from tileprof.record.model.tile_model import Operand, Scratch
from tileprof.record.model.tiles.foundations.sketch import scratch
from tileprof.trace.footprint import ATOMIC, READ, WRITE

IMAGES, CHANNELS, SIZE = 5, 6, (7, 9)


def image(last):
    x = torch.rand(IMAGES, CHANNELS, *SIZE)
    return x.contiguous(memory_format=torch.channels_last) if last else x


def vectors(count):
    return [torch.rand(CHANNELS) + 0.5 for _ in range(count)]


def of_channels(source):
    """Return the positions of all elements of the channels in a mask of one number per channel, and the inverse."""
    at = positions(source)
    down = lambda mine: at[:, mine.reshape(-1)]  # noqa: E731 (a pair of maps)
    up = lambda mine: torch.arange(source.shape[1])[mine.movedim(1, 0).flatten(1).any(1)]  # noqa: E731
    return down, up


def touches(kernel, operand):
    return any(isinstance(o, Operand) and o.ref == operand.ref for o in kernel.operands)


@pytest.mark.parametrize("last", [False, True])
def test_training_takes_statistics_updates_averages_and_transforms(last):
    x = image(last)
    weight, bias, mean, var = vectors(4)
    call = call_of("aten::native_batch_norm", x, weight, bias, mean, var, True, 0.1, 1e-6)  # too small for cuDNN
    statistics, update, transform = run_model(call, H200)
    out, saved_mean, saved_invstd = call.outputs
    down, up = of_channels(x)
    for result in (saved_mean, saved_invstd):
        assert_writes(statistics, result)
        assert_reads(statistics, result, call["input"], down)
    for result in (call["running_mean"], call["running_var"], saved_invstd):
        assert_writes(update, result)
    for vector in (saved_mean, saved_invstd):
        assert touches(update, vector)
    assert_writes(transform, out)
    assert_reads(transform, out, call["input"], positions(call["input"]))
    for vector in (saved_mean, saved_invstd, call["weight"], call["bias"]):
        assert_reads(transform, out, vector, up)


def test_training_by_cudnn_is_a_block_per_channel():
    call = call_of("aten::native_batch_norm", image(last=False), *vectors(4), True, 0.1, 1e-5)
    [kernel] = run_model(call, H200)
    assert (kernel.grid, kernel.block) == ((CHANNELS, 1, 1), (512, 1, 1))
    out, *saved = call.outputs
    assert_writes(kernel, out)
    down, up = of_channels(torch.rand(call["input"].shape))
    assert_reads(kernel, out, call["input"], lambda mine: down(up(mine)))
    averages = [call["running_mean"], call["running_var"]]
    for result in (*saved, *averages):
        assert_writes(kernel, result)
        assert_reads(kernel, result, call["input"], down)
    for vector in (*averages, call["weight"], call["bias"]):
        assert_reads(kernel, out, vector, up)


def test_training_without_averages_inverts_the_variance_in_its_place():
    call = call_of("aten::native_batch_norm", image(last=False), *vectors(2), None, None, True, 0.1, 1e-5)
    statistics, inverse, transform = run_model(call, H200)
    variance = call.outputs[2]
    assert_writes(statistics, variance)
    assert_writes(inverse, variance)
    assert_reads(inverse, variance, variance, torch.arange(CHANNELS))
    assert touches(transform, variance)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((40, CHANNELS), torch.bfloat16), ((4, CHANNELS, 30), torch.bfloat16), ((4, CHANNELS, 3, 5), torch.bfloat16),
     ((40, CHANNELS), torch.float32)],
)  # fmt: skip
def test_evaluation_by_pytorch_reads_running_averages(shape, dtype):
    """CuDNN takes no bfloat16 and no matrices."""
    source = torch.rand(shape, dtype=dtype)
    call = call_of("aten::native_batch_norm", source, *vectors(4), False, 0.1, 1e-5)
    copied, inverted, transform = run_model(call, H200)
    assert_writes(transform, call.outputs[0])
    _, up = of_channels(torch.rand(shape))
    assert_reads(transform, call.outputs[0], call["input"], positions(call["input"]))
    for name in ("weight", "bias"):
        assert_reads(transform, call.outputs[0], call[name], up)
    for slot, (kernel, name) in enumerate(((copied, "running_mean"), (inverted, "running_var"))):
        result = scratch(slot, CHANNELS)
        assert_reads(kernel, result, call[name], torch.arange(CHANNELS))
        assert_reads(transform, call.outputs[0], result, up)


@pytest.mark.parametrize("shape", [(4, CHANNELS, 30), (2, CHANNELS, 3, 5)])
def test_evaluation_by_cudnn_is_a_block_per_image_and_channel(shape):
    call = call_of("aten::native_batch_norm", torch.rand(shape), *vectors(4), False, 0.1, 1e-5)
    [kernel] = run_model(call, H200)
    assert kernel.grid == (shape[0] * CHANNELS, 1, 1)
    assert_writes(kernel, call.outputs[0])
    _, up = of_channels(torch.rand(shape))
    assert_reads(kernel, call.outputs[0], call["input"], positions(call["input"]))
    for name in ("weight", "bias", "running_mean", "running_var"):
        assert_reads(kernel, call.outputs[0], call[name], up)


@pytest.mark.parametrize(("channels", "grid"), [(64, (2, 13)), (256, (8, 13)), (4, (1, 2))])
def test_channels_last_are_transformed_by_blocks_of_channels_as_recorded(channels, grid):
    """nn.BatchNorm2d in half precision, 4 images of 28 x 28; the first two are recorded on an H200 with PyTorch
    2.11.
    """
    x = torch.zeros(4, channels, 28, 28, dtype=torch.float16).to(memory_format=torch.channels_last)
    vector = torch.zeros(channels, dtype=torch.float16)
    call = call_of("aten::native_batch_norm", x, *[vector] * 4, False, 0.1, 1e-5)
    *small, transform = run_model(call, H200)
    assert [k.grid for k in small] == [(1, 1, 1)] * 2
    assert transform.grid == (*grid, 1)
    assert_writes(transform, call.outputs[0])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_the_gradient_of_batch_norm_reads_what_it_needs(last, train):
    x = image(last)
    call = call_of(
        "aten::native_batch_norm_backward", torch.rand_like(x), x, *vectors(5), train, 1e-5, [True, True, True]
    )
    kernels = run_model(call, H200)
    assert len(kernels) == (2 if last else 1)
    gradient, *by_channel = call.outputs
    down, _ = of_channels(x)
    for out in by_channel:
        assert_writes(kernels[0], out)
        for name in ("grad_out", "input"):
            assert_reads(kernels[0], out, call[name], down)
    assert_writes(kernels[-1], gradient)
    statistic = "save_mean" if train else "running_mean"
    assert touches(kernels[0], call[statistic])
    assert not touches(kernels[0], call["running_mean" if train else "save_mean"])


def group_call(op="native_group_norm", mask=None):
    x = torch.rand(3, 12, 5, 7)
    numbers = (3, 12, 35, 4)
    if op == "native_group_norm":
        return call_of(f"aten::{op}", x, torch.rand(12), torch.rand(12), *numbers, 1e-5)
    return call_of(
        f"aten::{op}", torch.rand_like(x), x, torch.rand(3, 4), torch.rand(3, 4), torch.rand(12), *numbers, mask
    )


def test_group_norm_is_moments_scale_and_transform():
    call = group_call()
    moments, scale, transform = run_model(call, H200)
    out, mean, rstd = call.outputs
    at = positions(out).reshape(3, 4, -1)
    for statistic in (mean, rstd):
        assert_writes(moments, statistic)
        assert_reads(moments, statistic, call["input"], lambda mine: at[mine])
    assert_writes(transform, out)
    assert_reads(transform, out, call["input"], positions(call["input"]))

    def workspaces(kernel):
        return [o for o in kernel.operands if isinstance(o, Scratch)]

    assert workspaces(scale) == workspaces(transform)


@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False], [False, True, True]])
def test_the_gradient_of_group_norm_launches_only_requested_gradients(mask):
    call = group_call("native_group_norm_backward", mask)
    kernels = run_model(call, H200)
    assert len(kernels) == 1 + 3 * mask[0] + mask[1]
    outputs = list(call.outputs)
    if mask[0]:
        assert_writes(kernels[3], outputs.pop(0))
    statistic = positions(call["mean"])

    def groups(mine):
        return statistic[:, mine.reshape(4, 3).any(1)]

    for out in outputs:
        assert_writes(kernels[-1], out)
        assert_reads(kernels[-1], out, call["mean"], groups)


def test_modes_are_what_the_tests_assume():
    assert (READ, WRITE, ATOMIC) == (0, 1, 2)
