"""Windows of pooling, exactly: strides, paddings, dilations, ceil mode, both memory layouts."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.model.tiles.oracle import call_of, run_model
from tests.unit.record.model.tiles.reach import H200, assert_reads, assert_writes, positions

AXIS = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2), st.integers(1, 3))


def windows(source, out_shape, kernel, stride, padding, dilation):
    """Return for each output position the set of input positions of its window."""
    at = positions(source)
    matches = {}
    for index in itertools.product(*(range(n) for n in out_shape)):
        taps = []
        for d in (2, 3):
            k, s, p, e = (v[d - 2] for v in (kernel, stride, padding, dilation))
            places = [index[d] * s - p + t * e for t in range(k)]
            taps.append([i for i in places if 0 <= i < source.shape[d]])
        matches[index] = [int(at[index[0], index[1], i, j]) for i in taps[0] for j in taps[1]]
    return matches


def reads_of(observed_value, inverse=None):
    """Return a function that maps a mask of the output to the positions in all its windows."""
    return lambda mine: torch.tensor(
        sorted({e for index in mine.nonzero().tolist() for e in observed_value[tuple(index)]}), dtype=torch.int64
    )


def image(shape, last):
    x = torch.rand(shape)
    return x.contiguous(memory_format=torch.channels_last) if last else x


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_max_pooling_reads_its_windows(data):
    axes = [data.draw(AXIS), data.draw(AXIS)]
    kernel, stride, padding, dilation = ([a[i] for a in axes] for i in range(4))
    padding = [min(p, k // 2) for p, k in zip(padding, kernel, strict=True)]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    sizes = [data.draw(st.integers(max(r - 2 * p, 1), 22)) for r, p in zip(reach, padding, strict=True)]
    x = image((2, 3, *sizes), data.draw(st.booleans()))
    ceil = data.draw(st.booleans())
    call = call_of("aten::max_pool2d_with_indices", x, kernel, stride, padding, dilation, ceil)
    [launch] = run_model(call, H200)
    for out in call.outputs:
        assert_writes(launch, out)
    actual = windows(x, call.outputs[0].shape, kernel, stride, padding, dilation)
    assert_reads(launch, call.outputs[0], call["self"], reads_of(actual))


@pytest.mark.parametrize("last", [False, True])
def test_average_pooling_reads_its_windows(last):
    x = image((2, 3, 40, 41), last)
    call = call_of("aten::avg_pool2d", x, [3, 2], [2, 3], [1, 1])
    [launch] = run_model(call, H200)
    assert_writes(launch, call.outputs[0])
    actual = windows(x, call.outputs[0].shape, [3, 2], [2, 3], [1, 1], [1, 1])
    assert_reads(launch, call.outputs[0], call["self"], reads_of(actual))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (2, 3, 0), (3, 1, 1)])
def test_the_gradient_of_pooling_reads_the_windows_that_hold_an_element(kernel, stride, padding, last):
    x = image((2, 3, 20, 23), last)
    forward = call_of("aten::max_pool2d_with_indices", x, [kernel] * 2, [stride] * 2, [padding] * 2)
    shape = forward.outputs[0].shape
    gradient, places = image(shape, last), forward.value(forward.outputs[1])
    call = call_of(
        "aten::max_pool2d_with_indices_backward",
        gradient, x, [kernel] * 2, [stride] * 2, [padding] * 2, [1, 1], False, places,
    )  # fmt: skip
    fill, launch = run_model(call, H200)
    out = call.outputs[0]
    assert launch.grid == ((6 * 20 * 23 + 255) // 256 if last else 2, *((1, 1) if last else (2, 3)))
    for one in (fill, launch):
        assert_writes(one, out)
    actual = windows(x, shape, [kernel] * 2, [stride] * 2, [padding] * 2, [1, 1])
    at, holders = positions(x), {}
    number = positions(gradient)
    for index, inside in actual.items():
        for e in inside:
            holders.setdefault(e, []).append(int(number[index]))

    def needs_of(mine):
        return torch.tensor(sorted({h for e in at[mine].tolist() for h in holders.get(e, [])}), dtype=torch.int64)

    for name in ("grad_output", "indices"):
        assert_reads(launch, out, call[name], needs_of)


def test_adaptive_pooling_takes_a_plane_a_tile():
    x = torch.rand(2, 3, 10, 11)
    call = call_of("aten::adaptive_max_pool2d", x, [3, 4])
    [launch] = run_model(call, H200)
    assert launch.footprint.tiles == 6
    assert_writes(launch, call.outputs[0])
    at = positions(x)
    assert_reads(launch, call.outputs[0], call["self"], lambda mine: at[mine.flatten(2).any(2)])


@pytest.mark.parametrize(
    ("channels", "size", "rows", "blocks"), [(2, 28, 7, 8), (2, 40, 37, 8), (20, 28, 7, 1), (20, 28, 19, 1)]
)
def test_adaptive_averages_of_few_channels_take_several_blocks_per_plane(channels, size, rows, blocks):
    """Images of two channels, from 28 to 7 rows: 4 by 8 blocks, as recorded on an H200."""
    x = torch.rand(2, channels, size, 11)
    call = call_of("aten::_adaptive_avg_pool2d", x, [rows, 4])
    [launch] = run_model(call, H200)
    assert launch.grid == (2 * channels, blocks, 1)
    assert_writes(launch, call.outputs[0])
    at = positions(x)
    block = torch.arange(rows) // 8 % blocks

    def needs(mine):
        """The rows of inputs under the rows of outputs of a block."""
        assert len(block[mine.any((0, 1, 3))].unique()) <= 1
        under = [
            at[n, c, i * size // rows : -(-(i + 1) * size // rows)].flatten()
            for n, c, i in mine.any(3).nonzero().tolist()
        ]
        return torch.cat([at[:0].flatten(), *under]).unique()

    assert_reads(launch, call.outputs[0], call["self"], needs)


def test_adaptive_pooling_to_one_number_is_a_mean():
    call = call_of("aten::_adaptive_avg_pool2d", torch.rand(2, 3, 10, 11), [1, 1])
    [launch] = run_model(call, H200)
    assert launch.name == "reduce<mean>"
    assert_writes(launch, call.outputs[0])


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [((3, 2), (1, 1), (1, 1)), ((2, 2), (3, 2), (2, 1))])
def test_im2col_lays_out_windows(kernel, stride, dilation):
    x = torch.rand(2, 3, 14, 15)
    call = call_of("aten::im2col", x, list(kernel), list(dilation), [1, 0], list(stride))
    launches = run_model(call, H200)
    assert len(launches) == 2
    out = call.outputs[0]
    padded = torch.nn.functional.pad(positions(x) + 1, (0, 0, 1, 1)).double()
    origin = torch.nn.functional.unfold(padded, kernel, dilation, 0, stride).long() - 1
    written = set()
    for launch in launches:
        assert_reads(launch, out, call["self"], origin)
        from tests.unit.record.model.tiles.reach import elements

        for tile in range(launch.footprint.tiles):
            written |= set(elements(launch, out, tile, 1))
    assert written == set(range(out.numel))
