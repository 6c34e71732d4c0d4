"""Convolutions: the halo of every tile, byte for byte, compared with index arithmetic tap by tap."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.model.tiles.oracle import (
    all_bytes,
    assert_each_byte_written_once,
    bytes_of,
    call_of,
    element_bytes,
    run_model,
    slot_of,
)
from tileprof.devices import get
from tileprof.record.model.tile_model import Operand, Scratch
from tileprof.record.model.tiles.foundations import overrides
from tileprof.trace.footprint import READ, WRITE

H200 = get("H200")
H100 = get("H100")
"""A GPU without tables, for which only rules apply."""


@st.composite
def layouts(draw, shape):
    """Return a tensor of the shape: contiguous, channels last, sliced, or with holes."""
    kind = draw(st.sampled_from(["plain", "channels last", "sliced", "strided"]))
    if kind == "channels last":
        return torch.zeros(shape[0], *shape[2:], shape[1]).movedim(-1, 1)
    if kind == "sliced":
        return torch.zeros([n + 1 for n in shape])[tuple(slice(1, None) for _ in shape)]
    if kind == "strided":
        return torch.zeros([*shape[:-1], 2 * shape[-1]])[..., ::2]
    return torch.zeros(shape)


@st.composite
def convolutions(draw, max_rank=2):
    """Draw arguments of aten::convolution whose output is not empty."""
    rank = draw(st.integers(1, max_rank))
    each = lambda low, high: [draw(st.integers(low, high)) for _ in range(rank)]  # noqa: E731 - a short word for a draw
    transposed = draw(st.booleans())
    groups = draw(st.integers(1, 3))
    taps, stride, dilation = each(1, 3), each(1, 3), each(1, 2)
    padding = [draw(st.integers(0, t)) for t in taps]
    extra = [draw(st.integers(0, max(s, d) - 1)) if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    size = []
    for t, s, p, d, e in zip(taps, stride, padding, dilation, extra, strict=True):
        reach = d * (t - 1) + 1
        least = max(1, math.ceil((2 * p - reach - e + 1) / s) + 1) if transposed else max(1, reach - 2 * p)
        size.append(draw(st.integers(least, least + 4)))
    images, ins, outs = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    source = draw(layouts((images, groups * ins, *size)))
    weight = draw(layouts((groups * ins, outs, *taps) if transposed else (groups * outs, ins, *taps)))
    bias = torch.zeros(groups * outs) if draw(st.booleans()) else None
    return source, weight, bias, stride, padding, dilation, transposed, extra, groups


tiles = st.builds(
    "conv={}x{}x{},split={}".format, st.integers(1, 7), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3)
)


class Geometry:
    """One convolution, by the definition: ``h = p * stride - padding + tap * dilation``."""

    def __init__(self, call):
        self.call, self.groups, self.transposed = call, call["groups"], call["transposed"]
        self.weight = call["weight"]
        self.taps = list(np.ndindex(*self.weight.shape[2:]))

    def sources_of(self, position, size, tap):
        """Return the position in a source of ``size`` that a result of the forward direction reads at one tap, if
        any.
        """
        matches = []
        for p, n, r, s, pad, d in zip(
            position, size, tap, self.call["stride"], self.call["padding"], self.call["dilation"], strict=True
        ):
            at = p * s - pad + r * d
            if not 0 <= at < n:
                return None
            matches.append(at)
        return tuple(matches)

    def results_of(self, position, size, tap):
        """Return the inverse: the ``p`` whose tap touches ``position``, if there is one within ``size``."""
        matches = []
        for h, n, r, s, pad, d in zip(
            position, size, tap, self.call["stride"], self.call["padding"], self.call["dilation"], strict=True
        ):
            at, rest = divmod(h + pad - r * d, s)
            if rest or not 0 <= at < n:
                return None
            matches.append(at)
        return tuple(matches)

    def gather(self, pixel, size, *, transposed):
        """Yield everything that a result at ``pixel`` reads from a source with spatial ``size``."""
        find = self.results_of if transposed else self.sources_of
        return {at for tap in self.taps if (at := find(pixel, size, tap)) is not None}


def slices_of(depth, step, split):
    iterations = math.ceil(depth / step)
    split = max(1, min(split, iterations))
    return list(itertools.pairwise(min(s * iterations // split * step, depth) for s in range(split + 1)))


def check_gather(launches, tile, geometry, out, source, *, transposed, bias=None):
    """Check a forward pass or an input's gradient: reads and writes of every tile."""
    tile_m, tile_n, tile_k, split = tile
    groups, weight = geometry.groups, geometry.weight
    results, sources = out.shape[1] // groups, source.shape[1] // groups
    pixels = [(n, *p) for n in range(out.shape[0]) for p in np.ndindex(*out.shape[2:])]
    slices = slices_of(sources, tile_k, split)
    partial, rank = partial_sums(out, len(slices))
    main = launches[0]
    grid = (math.ceil(len(pixels) / tile_m), math.ceil(results / tile_n), groups * len(slices))
    assert main.grid == grid
    assert sorted(map(tuple, main.footprint.block.tolist())) == sorted(np.ndindex(*grid))
    for t, (x, y, z) in enumerate(main.footprint.block.tolist()):
        s, group = divmod(z, groups)
        own = pixels[x * tile_m : (x + 1) * tile_m]
        channels = range(y * tile_n, min((y + 1) * tile_n, results))
        depth = range(*slices[s])
        halo = {(n, *at) for n, *p in own for at in geometry.gather(p, source.shape[2:], transposed=transposed)}
        needs = ((n, group * sources + c, *at) for n, *at in halo for c in depth)
        assert bytes_of(main.footprint, t, 0) == element_bytes(source, needs)
        pairs = [(group * sources + c, k) if transposed else (group * results + k, c) for c in depth for k in channels]
        assert bytes_of(main.footprint, t, 1) == element_bytes(weight, ((*i, *r) for i in pairs for r in geometry.taps))
        cells = [(n, group * results + k, *p) for n, *p in own for k in channels]
        if len(slices) == 1:
            assert bytes_of(main.footprint, t, 2, WRITE) == element_bytes(out, cells)
            if bias is not None:
                assert bytes_of(main.footprint, t, 3) == element_bytes(bias, {(c[1],) for c in cells})
        else:
            assert bytes_of(main.footprint, t, 2, WRITE) == element_bytes(partial, ((s, rank[cell]) for cell in cells))
    if len(slices) == 1:
        assert len(launches) == 1
        assert_each_byte_written_once(main, 2, out, WRITE)
    else:
        assert_each_byte_written_once(main, 2, partial, WRITE)
        check_reduction(launches[1], out, partial, rank, bias)


def partial_sums(out, splits):
    """Return the workspace ``[splits, results]`` and each result's place in it, in order of their addresses."""
    cells = sorted(np.ndindex(*out.shape), key=lambda i: sum(a * b for a, b in zip(i, out.strides, strict=True)))
    return Operand((splits, out.numel), (out.numel, 1), "float32", 4), {cell: i for i, cell in enumerate(cells)}


def check_reduction(kernel, out, partial, rank, bias=None):
    """Check that each result is written once, by the tile that reads its partial sums of all slices."""
    assert_each_byte_written_once(kernel, 1, out, WRITE)
    for t in range(kernel.footprint.tiles):
        results = bytes_of(kernel.footprint, t, 1, WRITE)
        own = [i for i in rank if element_bytes(out, [i]) <= results]
        needs = ((s, rank[i]) for s in range(partial.shape[0]) for i in own)
        assert bytes_of(kernel.footprint, t, 0) == element_bytes(partial, needs)
        if bias is not None:
            assert bytes_of(kernel.footprint, t, 2) == element_bytes(bias, {(i[1],) for i in own})


def check_depthwise(kernel, geometry, out, source, *, transposed, bias=None):
    """Check that a block writes 256 results and reads what they need."""
    assert_each_byte_written_once(kernel, 2, out, WRITE)
    groups, weight = geometry.groups, geometry.weight
    results, sources = out.shape[1] // groups, source.shape[1] // groups
    cells = list(np.ndindex(*out.shape))
    for t in range(kernel.footprint.tiles):
        written = bytes_of(kernel.footprint, t, 2, WRITE)
        own = [i for i in cells if element_bytes(out, [i]) <= written]
        assert len(own) <= 256
        needs, weights = set(), set()
        for n, c, *p in own:
            group = c // results
            for b in range(group * sources, (group + 1) * sources):
                needs |= {(n, b, *at) for at in geometry.gather(p, source.shape[2:], transposed=transposed)}
                weights |= {((b, c % results) if transposed else (c, b % sources)) + tap for tap in geometry.taps}
        # A block's results are rectangles: pixels that one of its channels needs are needed by each channel of a
        # rectangle.
        assert bytes_of(kernel.footprint, t, 0) == element_bytes(source, needs)
        assert bytes_of(kernel.footprint, t, 1) == element_bytes(weight, weights)
        if bias is not None:
            assert bytes_of(kernel.footprint, t, 3) == element_bytes(bias, {(i[1],) for i in own})


def check_gather_or_depthwise(launches, tile, geometry, out, source, *, transposed, bias=None):
    per_group = (out if transposed else source).shape[1] // geometry.groups
    if geometry.groups > 1 and per_group == 1:
        assert "depthwise" in launches[0].name
        check_depthwise(launches[0], geometry, out, source, transposed=transposed, bias=bias)
    else:
        check_gather(launches, tile, geometry, out, source, transposed=transposed, bias=bias)


def parse(word):
    actual = overrides.parse(word)
    return (*actual.tile, actual.split)


@settings(max_examples=120, deadline=None)
@given(convolutions(), tiles)
def test_forward_tiles_read_exactly_their_halo(arguments, word):
    call = call_of("aten::convolution", *arguments)
    with overrides.override(word):
        launches = run_model(call, H200)
    check_gather_or_depthwise(
        launches,
        parse(word),
        Geometry(call),
        call.outputs[0],
        call["input"],
        transposed=call["transposed"],
        bias=call["bias"],
    )


@pytest.mark.parametrize(
    ("size", "batch", "channels", "tile", "grid"),
    [
        (56, 1, 64, "64x64x32,split=2", (49, 1, 2)),
        (28, 16, 128, "64x256x32,split=3", (196, 1, 3)),
        (14, 4, 256, "64x64x32,split=4", (13, 4, 4)),
        (7, 1, 512, "64x64x32,split=8", (1, 8, 8)),
    ],
)
def test_tiles_of_the_cusync_authors_give_their_grids(size, batch, channels, tile, grid):
    """ResNet-38 convolutions of the cuSync repository: pixels / m x channels / n x split-k."""
    source = torch.zeros(1, channels, size, size).expand(batch, channels, size, size)
    weight = torch.zeros(1).expand(channels, channels, 3, 3)
    out = Operand((batch, channels, size, size), (channels * size * size, size * size, size, 1), "float16", 2)
    call = call_of("aten::convolution", source[:, :, :1, :1], weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    call.arguments["input"], call.outputs = out, (out,)
    with overrides.override(f"conv={tile},stages=2,threads=128"):
        assert run_model(call, get("V100"))[0].grid == grid


def test_three_dimensions_work_like_two():
    source, weight = torch.zeros(2, 2, 4, 5, 3), torch.zeros(3, 2, 3, 2, 1)
    call = call_of("aten::convolution", source, weight, None, [2, 1, 1], [1, 0, 1], [1, 2, 1], False, [0, 0, 0], 1)
    with overrides.override("conv=7x2x1,split=1"):
        launches = run_model(call, H200)
    check_gather(launches, (7, 2, 1, 1), Geometry(call), call.outputs[0], call["input"], transposed=False)


@settings(max_examples=100, deadline=None)
@given(convolutions(), tiles)
def test_backward_tiles_read_what_their_gradients_need(arguments, word):
    source, weight, bias, *settings_ = arguments
    forward = torch.ops.aten.convolution(*arguments)
    gradient = torch.zeros_like(forward)
    sizes = None if bias is None else list(bias.shape)
    call = call_of(
        "aten::convolution_backward", gradient, source, weight, sizes, *settings_, [True, True, bias is not None]
    )
    geometry, transposed = Geometry(call), call["transposed"]
    with overrides.override(word):
        launches = run_model(call, H200)
    refs = [[o.ref for o in kernel.operands if isinstance(o, Operand)] for kernel in launches]
    cut = 1 + next(i for i, operand_refs in enumerate(refs) if call.outputs[0].ref in operand_refs)
    check_gather_or_depthwise(
        launches[:cut], parse(word), geometry, call.outputs[0], call["grad_output"], transposed=not transposed
    )
    rest = launches[cut:]
    if bias is not None:
        check_bias_gradient(rest.pop(), call)
    small, large = (call["input"], call["grad_output"]) if transposed else (call["grad_output"], call["input"])
    check_weight_gradient(rest, parse(word), geometry, call.outputs[1], small, large)


def check_weight_gradient(launches, tile, geometry, weight, small, large):
    tile_m, tile_n, _, split = tile
    groups = geometry.groups
    lines = list(np.ndindex(small.shape[0], small.shape[2]))
    rows = weight.shape[0] // groups
    columns = list(np.ndindex(*weight.shape[1:]))
    split = min(split, len(lines))
    partial, rank = partial_sums(weight, split)
    main = launches[0]
    assert main.grid == (math.ceil(rows / tile_m), math.ceil(len(columns) / tile_n), groups * split)
    for t, (x, y, z) in enumerate(main.footprint.block.tolist()):
        s, group = divmod(z, groups)
        own_rows = [group * rows + i for i in range(x * tile_m, min((x + 1) * tile_m, rows))]
        own_columns = columns[y * tile_n : (y + 1) * tile_n]
        depth = lines[s * len(lines) // split : (s + 1) * len(lines) // split]
        pixels = [(n, p, *rest) for n, p in depth for rest in np.ndindex(*small.shape[3:])]
        assert bytes_of(main.footprint, t, 0) == element_bytes(
            small, ((n, i, *p) for n, *p in pixels for i in own_rows)
        )
        touched_bytes = {
            (n, group * weight.shape[1] + j, *at)
            for j, *tap in own_columns
            for n, *p in pixels
            if (at := geometry.sources_of(p, large.shape[2:], tap)) is not None
        }
        assert bytes_of(main.footprint, t, 1) == element_bytes(large, touched_bytes)
        cells = [(i, *j) for i in own_rows for j in own_columns]
        target, places = (weight, cells) if split == 1 else (partial, [(s, rank[c]) for c in cells])
        assert bytes_of(main.footprint, t, 2, WRITE) == element_bytes(target, places)
    assert_each_byte_written_once(main, 2, weight if split == 1 else partial, WRITE)
    assert len(launches) == (1 if split == 1 else 2)
    if split > 1:
        check_reduction(launches[1], weight, partial, rank)


def check_bias_gradient(kernel, call):
    gradient, bias = call["grad_output"], call.outputs[2]
    assert_each_byte_written_once(kernel, slot_of(kernel, bias), bias, WRITE)
    for t in range(kernel.footprint.tiles):
        channels = {b // 4 for b in bytes_of(kernel.footprint, t, slot_of(kernel, bias), WRITE)}
        needs = (i for i in np.ndindex(*gradient.shape) if i[1] in channels)
        assert bytes_of(kernel.footprint, t, slot_of(kernel, gradient)) == element_bytes(gradient, needs)


def test_only_the_gradients_asked_for_are_launched():
    arguments = (torch.zeros(2, 4, 5, 5), torch.zeros(3, 4, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    gradient = torch.zeros_like(torch.ops.aten.convolution(*arguments))
    source, weight, _, *rest = arguments
    call = call_of("aten::convolution_backward", gradient, source, weight, None, *rest, [False, True, False])
    launches = run_model(call, H100)
    assert [k.name.split("_")[2] for k in launches] == ["wgrad"]
    assert call.outputs[0] in launches[-1].operands


def test_a_strided_pointwise_convolution_skips_the_pixels_between():
    call = convolution_of(torch.zeros(1, 2, 8, 8), torch.zeros(4, 2, 1, 1), stride=2, padding=0)
    launches = run_model(call, H200)
    read = set().union(*(bytes_of(launches[0].footprint, t, 0) for t in range(launches[0].footprint.tiles)))
    even = ((0, c, h, w) for c in range(2) for h in range(0, 8, 2) for w in range(0, 8, 2))
    assert read == element_bytes(call["input"], even)


def convolution_of(source, weight, *, stride=1, padding=1):
    """Return a two-dimensional convolution of one group without bias."""
    return call_of("aten::convolution", source, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)


def test_channels_are_read_in_the_order_of_the_main_loop():
    call = convolution_of(torch.zeros(1, 64, 8, 8), torch.zeros(32, 64, 3, 3))
    with overrides.override("conv=64x32x8,split=1"):
        kernel = run_model(call, H200)[0]
    boxes = kernel.footprint.boxes
    weights = boxes.operand == 1
    assert np.unique(boxes.first[weights]).size == 8
    assert (boxes.last[boxes.mode == READ] <= boxes.first[boxes.mode == WRITE].min()).all()


@pytest.mark.parametrize("batch", [1, 32])
def test_a_large_convolution_is_modelled_whole(batch):
    shape, weight = (batch, 64, 56, 56), (64, 64, 3, 3)
    call = convolution_of(torch.zeros(1, 64, 56, 56), torch.zeros(weight))
    image = Operand(shape, (64 * 56 * 56, 56 * 56, 56, 1), "float32", 4)
    call.arguments["input"], call.outputs = image, (image,)
    kernel = run_model(call, H100)[0]
    assert kernel.rate == "tf32"
    assert kernel.flops == 2 * batch * 64 * 56 * 56 * 64 * 9
    assert len(kernel.footprint.boxes) < 200_000


def test_every_byte_of_a_dense_input_is_read_by_some_tile():
    call = convolution_of(torch.zeros(2, 3, 9, 9), torch.zeros(4, 3, 3, 3))
    with overrides.override("conv=16x4x4"):
        footprint = run_model(call, H200)[0].footprint
    assert set().union(*(bytes_of(footprint, t, 0) for t in range(footprint.tiles))) == all_bytes(call["input"])


def test_each_gradient_has_a_workspace_of_its_own():
    source, gradient = torch.zeros(2, 64, 14, 14).half(), torch.zeros(2, 32, 14, 14).half()
    window = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    def slots(mask):
        call = call_of(
            "aten::convolution_backward", gradient, source, torch.zeros(32, 64, 3, 3).half(), [32], *window, mask
        )
        return [{o.slot for o in k.operands if isinstance(o, Scratch)} for k in run_model(call, H200)]

    of_input, of_weight = slots([True, False, False]), slots([False, True, False])
    both = slots([True, True, False])
    assert set().union(*of_input)
    assert set().union(*of_weight)
    assert both == of_input + of_weight
    assert not set().union(*of_input) & set().union(*of_weight)


def test_gradients_of_a_convolution_share_the_copy_of_the_output_s_gradient():
    """PyTorch makes what it hands to cuDNN dense before it asks for either gradient."""
    x, weight = torch.rand(2, 64, 28, 28, dtype=torch.float16), torch.rand(64, 64, 1, 1, dtype=torch.float16)
    gradient = torch.rand(2, 28, 28, 64, dtype=torch.float16).permute(0, 3, 2, 1)
    source = x.transpose(2, 3)
    settings = [None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]]
    call = call_of("aten::convolution_backward", gradient, source, weight, *settings)
    kernels = run_model(call, H200)
    copied = [k.operands[0].ref for k in kernels if k.name.endswith("<contiguous>")]
    assert copied == [call["input"].ref, call["grad_output"].ref]
    assert [k.name.endswith("<contiguous>") for k in kernels[:2]] == [True, True]


def test_depthwise_gradients_begin_with_the_weight():
    x, weight = torch.rand(2, 24, 56, 56, dtype=torch.bfloat16), torch.rand(24, 1, 3, 3, dtype=torch.bfloat16)
    settings = [None, [2, 2], [1, 1], [1, 1], False, [0, 0], 24, [True, True, False]]
    gradient = torch.rand(2, 24, 28, 28, dtype=torch.bfloat16)
    first, second = run_model(call_of("aten::convolution_backward", gradient, x, weight, *settings), H200)
    assert "conv_depthwise2d_grad_weight_kernel" in first.name
    assert "conv_depthwise2d_backward_kernel" in second.name
