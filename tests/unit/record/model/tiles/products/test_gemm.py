"""Matrix products: every tile reads what its results need and nothing else, and writes each result once."""

import itertools
import math
import re

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
from tileprof.devices import get, occupancy
from tileprof.errors import UserError
from tileprof.record.model.tile_model import Operand, Scratch
from tileprof.record.model.tiles.foundations import overrides
from tileprof.record.model.tiles.products import gemm_kernel_choice, gemm_tile_rule
from tileprof.record.model.tiles.products.gemm_kernels import Product, kernels
from tileprof.trace.footprint import ATOMIC, READ, WRITE
from tileprof.trace.sources import ShapeSource

H200 = get("H200")
SIZES = st.integers(1, 9)


@st.composite
def matrices(draw, *shape):
    """Return a tensor of the shape: plain, transposed in storage, sliced out of a larger one, or broadcast."""
    kind = draw(st.sampled_from(["plain", "transposed", "sliced", "strided", "broadcast"]))
    if kind == "transposed":
        return torch.zeros(*shape[:-2], *shape[:-3:-1]).transpose(-1, -2) if len(shape) > 1 else torch.zeros(shape)
    if kind == "sliced":
        return torch.zeros([n + 2 for n in shape])[tuple(slice(1, n + 1) for n in shape)]
    if kind == "strided":
        return torch.zeros([2 * n for n in shape])[(slice(None, None, 2),) * len(shape)]
    if kind == "broadcast":
        lead = draw(st.integers(0, len(shape) - 1))
        return torch.zeros([1 if d == lead else n for d, n in enumerate(shape)]).expand(shape)
    return torch.zeros(shape)


tiles = st.builds(
    "gemm={}x{}x{},split={}".format, st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3)
)


def splits_of(depth, step, split):
    """Return where the slices of k begin and end: whole iterations of the main loop, as even as possible."""
    iterations = math.ceil(depth / step)
    split = max(1, min(split, iterations))
    edges = [min(s * iterations // split * step, depth) for s in range(split + 1)]
    return list(itertools.pairwise(edges))


def check(launches, tile, a, b, d, c=None):
    """Compare the kernels with index arithmetic; ``a`` is ``[batch, m, k]``, ``b``, ``d`` and ``c`` alike."""
    launches, a, b, c = behind_copies(launches, a, b, d, c)
    tile_m, tile_n, tile_k, split = tile
    (batch, m, n), k = d.shape, a.shape[2]
    slices = splits_of(k, tile_k, split)
    main = launches[0]
    grid = (math.ceil(m / tile_m), math.ceil(n / tile_n), batch * len(slices))
    assert main.grid == grid
    assert sorted(map(tuple, main.footprint.block.tolist())) == sorted(np.ndindex(*grid))
    in_pieces = main.rate in {"fp32", "fp64"}
    partial = Operand((len(slices), *d.shape), (batch * m * n, m * n, n, 1), "float32", 4)
    results = partial if len(slices) > 1 else None
    sums = {}
    for t, (x, y, z) in enumerate(main.footprint.block.tolist()):
        s, g = divmod(z, batch)
        rows = range(x * tile_m, min((x + 1) * tile_m, m))
        columns = range(y * tile_n, min((y + 1) * tile_n, n))
        depth = depth_of(s, slices, k, tile_k, main.rate)
        assert bytes_of(main.footprint, t, 0) == element_bytes(a, ((g, i, j) for i in rows for j in depth))
        assert bytes_of(main.footprint, t, 1) == element_bytes(b, ((g, i, j) for i in depth for j in columns))
        own = [(g, i, j) for i in rows for j in columns]
        if results is None:
            assert bytes_of(main.footprint, t, 2, WRITE) == element_bytes(d, own)
            assert bytes_of(main.footprint, t, 3) == (element_bytes(c, own) if c else set())
        elif in_pieces:
            sums |= {(s, *i): bytes_of(main.footprint, t, 2, WRITE) for i in own}
        else:
            sums |= {(s, *i): element_bytes(results, [(s, *i)]) for i in own}
            assert bytes_of(main.footprint, t, 2, WRITE) == element_bytes(results, ((s, *i) for i in own))
    if results is None:
        assert len(launches) == 1
        assert_each_byte_written_once(main, 2, d, WRITE)
    else:
        assert len(sums) == results.numel
        if in_pieces:
            written = [b for t in range(main.footprint.tiles) for b in bytes_of(main.footprint, t, 2, WRITE)]
            assert len(written) == len(set(written)) >= 4 * results.numel
            assert main.operands[2] == Scratch(0, max(written) + 1, "cublas")
        else:
            assert main.operands[2] == Scratch(0, results.numel * 4, "cublas")
            assert_each_byte_written_once(main, 2, results, WRITE)
        check_reduction(launches[1], sums, len(slices), d, c)


def behind_copies(launches, a, b, d, c):
    """Return the launches of the product itself and its operands, after a check of the copies before it."""
    copies = list(itertools.takewhile(lambda kernel: re.search("contiguous|copy_|memcpy", kernel.name), launches))
    launches = launches[len(copies) :]
    operands = [o for kernel in launches for o in kernel.operands]
    if c is not None and any(isinstance(o, Operand) and o.ref == c.ref for k in copies for o in k.operands):
        check_copy(copies.pop(0), c, d, d)
        c = d
    sides = []
    for place, side in enumerate((a, b)):
        workspace = Scratch(5 - place, side.numel * side.itemsize)
        dense = Operand(side.shape, torch.empty(side.shape).stride(), side.dtype, side.itemsize)
        if workspace in operands:
            check_copy(next(k for k in copies if workspace in k.operands), side, dense, workspace)
        sides.append(dense if workspace in operands else side)
    assert len(copies) == sum(isinstance(o, Scratch) and o.slot >= 4 for o in launches[0].operands)
    return launches, *sides, c


def check_copy(kernel, source, target, place):
    """Check that a launch copies a whole operand."""
    for operand, slot, mode in ((source, 0, READ), (target, 1, WRITE)):
        touched = [bytes_of(kernel.footprint, t, slot, mode) for t in range(kernel.footprint.tiles)]
        assert set().union(*touched) == all_bytes(operand)
    assert kernel.operands[1] == place or kernel.operands[1].ref == place.ref


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize(
    ("shape", "strides", "copied"),
    [((49, 2), (3, 147), True), ((2, 49), (147, 3), True), ((2, 49), (147, 1), False), ((49, 2), (1, 60), False),
     ((49, 2), (0, 1), True), ((1, 49), (98, 2), True), ((49, 1), (2, 98), True), ((49, 1), (1, 7), False)],
)  # fmt: skip
def test_what_cublas_cannot_read_is_copied_first(shape, strides, copied, slot):
    side = torch.zeros(10_000, dtype=torch.bfloat16).as_strided(shape, strides)
    other = torch.zeros((shape[1], 5) if slot == 0 else (5, shape[0]), dtype=torch.bfloat16)
    launches = run_model(call_of("aten::mm", *((side, other) if slot == 0 else (other, side))), H200)
    assert (launches[0].name == "elementwise<contiguous>") == copied
    assert isinstance(launches[copied].operands[slot], Scratch) == copied


@pytest.mark.parametrize(
    ("bias", "sizes", "options", "copy"),
    [
        ((8,), (4, 8, 6), {}, None), ((8,), (4, 8, 1), {}, "elementwise"), ((1,), (4, 1, 6), {}, "elementwise"),
        ((8,), (4, 8, 6), {"beta": 2}, "elementwise"), ((4, 1), (4, 8, 6), {}, "elementwise"),
        ((4, 8), (4, 8, 6), {}, "memcpy"), ((4, 8), (4, 8, 6), {"beta": 0}, None),
    ],
)  # fmt: skip
def test_an_addend_that_is_no_bias_is_copied_to_the_results(bias, sizes, options, copy):
    m, n, k = sizes
    call = call_of("aten::addmm", torch.zeros(bias), torch.zeros(m, k), torch.zeros(n, k).t(), **options)
    launches = run_model(call, H200)
    assert launches[0].name.partition("<")[0] == copy or (copy is None and "gemm" in launches[0].name)
    added = call["self"] if copy is None else call.outputs[0]
    reads = [k.operands[i].ref for k in launches for i in k.footprint.boxes.operand[k.footprint.boxes.mode == READ]]
    assert (added.ref in reads) == (options != {"beta": 0})


def test_sums_of_kernels_without_tensor_cores_lie_in_pieces_of_all_tiles_by_turns():
    with overrides.override("gemm=32x32x8,split=4"):
        main, reduction = run_model(call_of("aten::mm", torch.rand(256, 256), torch.rand(256, 256)), H200)
    assert (main.grid, reduction.grid, main.block) == ((8, 8, 4), (8, 8, 1), (64, 1, 1))
    for tile, (x, y, part) in enumerate(main.footprint.block.tolist()):
        pieces = [128 + 1024 * (64 * (4 * part + piece) + x + 8 * y) for piece in range(4)]
        expected = {byte for begin in pieces for byte in range(begin, begin + 1024)}
        assert bytes_of(main.footprint, tile, 2, WRITE) == expected


def test_a_thread_adds_16_results_so_that_larger_tiles_are_added_by_several_blocks():
    with overrides.override("gemm=64x64x8,split=4"):
        main, reduction = run_model(call_of("aten::mm", torch.rand(128, 192), torch.rand(192, 64)), H200)
    shares = 64 * 64 // (16 * main.block[0])
    assert (main.grid, reduction.grid, reduction.coverage) == ((2, 1, 4), (2, 1, shares), "inferred")
    for x in range(2):
        read = [bytes_of(reduction.footprint, x + 2 * share, 0) for share in range(shares)]
        stored = [bytes_of(main.footprint, x + 2 * part, 2, WRITE) for part in range(4)]
        assert set().union(*read) == set().union(*stored)
        assert sum(map(len, read)) == sum(map(len, stored))
        results = [(0, i, j) for i in range(64 * x, 64 * x + 64) for j in range(64)]
        for share in range(shares):
            written = bytes_of(reduction.footprint, x + 2 * share, 1, WRITE)
            assert written == element_bytes(batched(reduction.operands[1]), results)


def depth_of(s, slices, k, tile_k, rate):
    """Return where slice ``s`` lies in k: in one piece, or, without tensor cores, in turns if those are whole."""
    if rate in {"fp32", "fp64"} and len(slices) > 1 and k % (len(slices) * tile_k) == 0:
        return [j for j in range(k) if j // tile_k % len(slices) == s]
    return range(*slices[s])


def check_reduction(kernel, sums, slices, d, c):
    """Check that each result is written by the tile that reads all of its partial sums, and its addend; ``sums`` says
    which bytes of the workspace hold those of a slice.
    """
    assert_each_byte_written_once(kernel, 1, d, WRITE)
    elements = list(np.ndindex(*d.shape))
    for t in range(kernel.footprint.tiles):
        written = bytes_of(kernel.footprint, t, 1, WRITE)
        own = [i for i in elements if element_bytes(d, [i]) <= written]
        needs = set().union(*(sums[s, *i] for s in range(slices) for i in own))
        assert bytes_of(kernel.footprint, t, 0) == needs
        assert bytes_of(kernel.footprint, t, 2) == (element_bytes(c, own) if c else set())


def batched(operand, *, column=False, row=False):
    """Return a vector or matrix of the call as ``[batch, rows, columns]``."""
    shape, strides = operand.shape, operand.strides
    if column:
        shape, strides = (*shape, 1), (*strides, 0)
    if row:
        shape, strides = (1, *shape), (0, *strides)
    lead = 3 - len(shape)
    return Operand((1,) * lead + shape, (0,) * lead + strides, operand.dtype, operand.itemsize, ref=operand.ref)


def spread(operand, shape):
    """Return ``operand`` broadcast to ``shape`` by torch itself."""
    view = torch.empty(10_000).as_strided(operand.shape, operand.strides).expand(shape)
    return batched(Operand(tuple(view.shape), view.stride(), operand.dtype, operand.itemsize))


def parse(word):
    actual = overrides.parse(word)
    return (*actual.tile, actual.split)


@settings(max_examples=60, deadline=None)
@given(st.data(), tiles, SIZES, SIZES, SIZES)
def test_mm_of_any_layout(data, word, m, n, k):
    call = call_of("aten::mm", data.draw(matrices(m, k)), data.draw(matrices(k, n)))
    with overrides.override(word):
        launches = run_model(call, H200)
    check(launches, parse(word), batched(call["self"]), batched(call["mat2"]), batched(call.outputs[0]))


@settings(max_examples=40, deadline=None)
@given(
    st.data(),
    tiles,
    SIZES,
    SIZES,
    SIZES,
    st.sampled_from([0, 1, 2.5]),
    st.sampled_from(["vector", "row", "column", "whole"]),
)
def test_addmm_reads_self_unless_beta_is_zero(data, word, m, n, k, beta, kind):
    shape = {"vector": (n,), "row": (1, n), "column": (m, 1), "whole": (m, n)}[kind]
    a, b = data.draw(matrices(m, k)), data.draw(matrices(k, n))
    call = call_of("aten::addmm", torch.zeros(shape), a, b, beta=beta)
    with overrides.override(word):
        launches = run_model(call, H200)
    d = call.outputs[0]
    c = spread(call["self"], d.shape) if beta else None
    check(launches, parse(word), batched(call["mat1"]), batched(call["mat2"]), batched(d), c)


@settings(max_examples=40, deadline=None)
@given(st.data(), tiles, st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_bmm_and_baddbmm_with_broadcast_batches(data, word, batch, m, n, k):
    a, b = data.draw(matrices(batch, m, k)), data.draw(matrices(batch, k, n))
    plain, with_addend = call_of("aten::bmm", a, b), call_of("aten::baddbmm", torch.zeros(m, n), a, b)
    with overrides.override(word):
        check(run_model(plain, H200), parse(word), plain["self"], plain["mat2"], plain.outputs[0])
        c = spread(with_addend["self"], with_addend.outputs[0].shape)
        check(
            run_model(with_addend, H200),
            parse(word),
            with_addend["batch1"],
            with_addend["batch2"],
            with_addend.outputs[0],
            c,
        )


@settings(max_examples=30, deadline=None)
@given(st.data(), tiles, SIZES, SIZES)
def test_products_with_vectors(data, word, m, k):
    matrix, vector = data.draw(matrices(m, k)), data.draw(matrices(k))
    with overrides.override(word):
        call = call_of("aten::mv", matrix, vector)
        check(
            run_model(call, H200),
            parse(word),
            batched(call["self"]),
            batched(call["vec"], column=True),
            batched(call.outputs[0], column=True),
        )
        call = call_of("aten::addmv", torch.zeros(1), matrix, vector)
        c = spread(batched(call["self"], column=True), (1, m, 1))
        check(
            run_model(call, H200),
            parse(word),
            batched(call["mat"]),
            batched(call["vec"], column=True),
            batched(call.outputs[0], column=True),
            c,
        )
        call = call_of("aten::addr", torch.zeros(m, k), torch.zeros(m), vector)
        check(
            run_model(call, H200),
            parse(word),
            batched(call["vec1"], column=True),
            batched(call["vec2"], row=True),
            batched(call.outputs[0]),
            batched(call["self"]),
        )


def test_addmv_does_not_read_self_when_beta_is_zero():
    call = call_of("aten::addmv", torch.zeros(4), torch.zeros(4, 3), torch.zeros(3), beta=0)
    assert len(run_model(call, H200)[0].operands) == 3


def test_out_and_in_place_variants_write_the_returned_tensor():
    a, b, c = torch.zeros(6, 4), torch.zeros(4, 5), torch.zeros(6, 5)
    call = call_of("aten::addmm_", c, a, b)
    with overrides.override("gemm=4x4x4"):
        launches = run_model(call, H200)
    assert launches[0].operands[2] is not call["self"]
    check(
        launches,
        (4, 4, 4, 1),
        batched(call["mat1"]),
        batched(call["mat2"]),
        batched(call.outputs[0]),
        batched(call["self"]),
    )
    call = call_of("aten::mm.out", a, b, out=torch.zeros(6, 5))
    with overrides.override("gemm=4x4x4"):
        check(
            run_model(call, H200), (4, 4, 4, 1), batched(call["self"]), batched(call["mat2"]), batched(call.outputs[0])
        )


def test_addbmm_adds_batch_by_batch_and_reads_its_own_result():
    call = call_of("aten::addbmm", torch.zeros(5), torch.zeros(3, 4, 6), torch.zeros(3, 6, 5))
    launches = run_model(call, H200)
    a, b, d = call["batch1"], call["batch2"], call.outputs[0]
    assert len(launches) == 3
    for i, kernel in enumerate(launches):
        assert kernel.footprint.tiles == 1
        assert bytes_of(kernel.footprint, 0, 0) == element_bytes(a, ((i, *j) for j in np.ndindex(4, 6)))
        assert bytes_of(kernel.footprint, 0, 1) == element_bytes(b, ((i, *j) for j in np.ndindex(6, 5)))
        assert bytes_of(kernel.footprint, 0, 2, WRITE) == all_bytes(d)
        assert bytes_of(kernel.footprint, 0, 3) == (all_bytes(call["self"]) if i == 0 else all_bytes(d))


@pytest.mark.parametrize("length", [0, 7, 5000])
def test_dot_products_add_partial_sums_of_runs(length):
    call = call_of("aten::dot", torch.zeros(2 * length)[::2], torch.zeros(length))
    launches = run_model(call, H200)
    a, b = call["self"], call["tensor"]
    first = launches[0].footprint
    for slot, operand in ((0, a), (1, b)):
        reads = [bytes_of(first, t, slot) for t in range(first.tiles)]
        assert set().union(*reads) == all_bytes(operand)
        assert sum(map(len, reads)) == len(all_bytes(operand))
    assert bytes_of(launches[-1].footprint, 0, len(launches[-1].operands) - 1, WRITE) == set(range(4))
    if length == 5000:
        assert [bytes_of(first, t, 2, WRITE) for t in range(5)] == [set(range(4 * t, 4 * t + 4)) for t in range(5)]
        assert bytes_of(launches[1].footprint, 0, 0) == set(range(20))


def test_empty_products_launch_nothing_and_an_empty_sum_still_writes():
    assert run_model(call_of("aten::mm", torch.zeros(0, 4), torch.zeros(4, 5)), H200) == []
    call = call_of("aten::mm", torch.zeros(3, 0), torch.zeros(0, 5))
    check(run_model(call, H200), (256, 256, 64, 1), *map(batched, (call["self"], call["mat2"], call.outputs[0])))


def test_fp8_products_read_their_scales():
    fp8 = Operand((64, 32), (32, 1), "float8_e4m3fn", 1), Operand((32, 48), (1, 32), "float8_e4m3fn", 1)
    d = Operand((64, 48), (48, 1), "bfloat16", 2)
    call = call_of("aten::mm", torch.zeros(64, 32), torch.zeros(32, 48))
    row = Operand((64, 1), (1, 1), "float32", 4)
    whole = Operand((), (), "float32", 4)
    call.op, call.outputs = "aten::_scaled_mm", (d,)
    call.arguments = {
        "self": fp8[0],
        "mat2": fp8[1],
        "scale_a": row,
        "scale_b": whole,
        "scale_result": None,
        "bias": None,
    }
    with overrides.override("gemm=32x48x32"):
        kernel = run_model(call, H200)[0]
    for t, (x, _, _) in enumerate(kernel.footprint.block.tolist()):
        assert bytes_of(kernel.footprint, t, 3) == set(range(128 * x, 128 * x + 128))
        assert bytes_of(kernel.footprint, t, 4) == set(range(4))
    assert kernel.rate == "fp8"


def plain(m, n, k, dtype="float16", itemsize=2):
    return Product(
        Operand((1, m, k), (m * k, k, 1), dtype, itemsize),
        Operand((1, k, n), (k * n, n, 1), dtype, itemsize),
        Operand((1, m, n), (m * n, n, 1), dtype, itemsize),
    )


def test_the_main_loop_reads_in_order_and_the_epilogue_writes_at_the_end():
    with overrides.override("gemm=128x128x64,split=1"):
        kernel = kernels(plain(256, 256, 4096), H200)[0]
    boxes = kernel.footprint.boxes
    own = boxes.tile == 3
    a = own & (boxes.operand == 0)
    assert a.sum() == 8
    assert (np.diff(boxes.offset[a]) > 0).all()
    assert boxes.first[a][1:].tolist() == boxes.last[a][:-1].tolist()
    writes = own & (boxes.mode == WRITE)
    assert boxes.first[writes] == boxes.last[a][-1]
    assert boxes.last[writes] == 1
    share = 128 * 128 / (256 * 4096 + 128 * 128)
    assert boxes.first[writes] == pytest.approx(1 - share, abs=1e-6)


def test_large_grids_are_modelled_with_few_boxes():
    with overrides.override("gemm=16x16x64,split=1"):
        footprint = kernels(plain(4096, 6400, 4096), H200)[0].footprint
    assert footprint.tiles == 102_400
    assert len(footprint.boxes) < 1_200_000
    assert (footprint.boxes.mode == READ).sum() % footprint.tiles == 0


@pytest.mark.parametrize("gpu", ["V100", "A100-80GB", "H200", "L4", "RTX4090"])
@pytest.mark.parametrize("sizes", [(1, 4096, 4096), (128, 768, 768), (4096, 4096, 4096), (64, 64, 64)])
@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2), ("float64", 8)])
def test_the_rule_gives_kernels_that_fit_their_gpu(gpu, sizes, dtype, itemsize):
    device = get(gpu)
    for kernel in kernels(plain(*sizes, dtype, itemsize), device):
        assert kernel.shared_bytes <= device.shared_bytes_per_block
        assert occupancy(device, kernel.block[0], kernel.registers, kernel.shared_bytes).blocks_per_sm >= 1


def test_the_rule_prefers_large_tiles_for_large_products_and_fills_the_gpu_with_small_ones():
    large, small = kernels(plain(8192, 8192, 8192), H200), kernels(plain(128, 768, 768), H200)
    assert large[0].grid in {(32, 64, 1), (64, 32, 1)}
    assert len(large) == 1
    assert np.prod(small[0].grid) > H200.sms / 2
    assert kernels(plain(16, 6144, 12288), H200)[0].grid[2] > 1


@pytest.mark.parametrize(
    ("m", "first", "first_grid", "second", "second_grid", "blocks_per_sm"),
    [
        (64, "64x256x32,split=4", (1, 24, 4), "64x256x32,split=3", (1, 48, 3), 2),
        (128, "128x256x32,split=3", (1, 24, 3), "128x256x32,split=3", (1, 48, 3), 2),
        (256, "256x128x32,split=4", (1, 48, 4), "256x128x32,split=2", (1, 96, 2), 2),
        (512, "256x256x32,split=2", (2, 24, 2), "256x256x32,split=1", (2, 48, 1), 1),
        (1024, "256x256x32,split=2", (4, 24, 2), "256x256x32,split=1", (4, 48, 1), 1),
        (2048, "256x256x32,split=1", (8, 24, 1), "256x256x32,split=1", (8, 48, 1), 1),
    ],
)
def test_grids_of_the_cusync_paper_follow_from_its_tiles(m, first, first_grid, second, second_grid, blocks_per_sm):
    """Table IV, GPT-3 MLP on a V100, with the tiles, stages and warps of its repository (four warps per block)."""
    device = get("V100")
    words = (f"gemm@*x6144x12288={first},stages=2,threads=128", f"gemm@*x12288x6144={second},stages=2,threads=128")
    with overrides.override(*words):
        up, down = kernels(plain(m, 6144, 12288), device)[0], kernels(plain(m, 12288, 6144), device)[0]
    assert (up.grid, down.grid) == (first_grid, second_grid)
    for kernel in (up, down):
        resident = occupancy(device, kernel.block[0], kernel.registers, kernel.shared_bytes).blocks_per_sm
        assert resident == blocks_per_sm


def test_the_most_specific_override_wins_then_the_last():
    words = ("gemm@*x8x4=1x1x1", "gemm=2x2x2", "gemm=3x3x3")
    with overrides.override(*words):
        assert overrides.dictated("gemm", (16, 8, 4)).tile == (1, 1, 1)
        assert overrides.dictated("gemm", (16, 8, 5)).tile == (3, 3, 3)
        assert overrides.dictated("conv", (16, 8, 5)) is None
    assert overrides.dictated("gemm", (16, 8, 4)) is None


@pytest.mark.parametrize(
    "word", ["gemm", "gemm=128", "gem=1x1x1", "gemm=0x1x1", "gemm=1x1x1,speed=9", "gemm=1x1x1,stages=0"]
)
def test_an_unreadable_tile_is_the_users_error(word):
    with pytest.raises(UserError):
        overrides.parse(word)


def test_a_tile_that_no_library_has_is_noted_with_the_others():
    assert overrides.note(["gemm=128x256x64", "attention=64x32"]).endswith("--tile: gemm=128x256x64 attention=64x32.")
    for word in ("gemm=7x13x5", "gemm@*x8x4=64x64x20,split=2", "attention=64x30"):
        note = overrides.note(["gemm=128x256x64", word])
        assert f"no library is known to have {word}, so" in note


def test_products_with_columns_of_both_take_the_tiles_of_rows_and_columns():
    """The table of the H200 has none in float32 (recorded in a Mamba: 64x64, 16 and 8 slices, a sum by blocks)."""
    for columns, slices, sums in ((48, 16, (2, 2, 1)), (256, 8, (8, 2, 1))):
        call = call_of("aten::mm", torch.zeros(512, 20).t(), torch.zeros(columns, 512).t())
        main, added = run_model(call, H200)
        assert main.grid == (-(-columns // 64), 1, slices)
        assert (added.grid, added.block) == (sums, (32, 16, 1))
        assert main.shape_source in (ShapeSource.LEARNED, ShapeSource.NEIGHBOUR)


def test_a_product_with_an_epilogue_of_its_own_adds_to_zeros(monkeypatch):
    tile = gemm_tile_rule.Tile(30, 31, 64, 4, 1, 256, 32, 0)
    choice = gemm_kernel_choice.Choice(tile, ShapeSource.TABLE, cleared=True, post="epilogue", kind="other")
    monkeypatch.setattr(gemm_kernel_choice, "choose", lambda *_, **__: choice)
    call = call_of("aten::addmm", torch.zeros(364), torch.zeros(150, 1024), torch.zeros(1024, 364))
    clear, zero, main, epilogue = run_model(call, H200)
    assert [clear.name, zero.name, epilogue.name] == ["memset", "gemm_zero", "gemm_epilogue"]
    assert [zero.grid, main.grid, epilogue.grid] == [(6, 5, 1), (5, 12, 4), (46, 5, 1)]
    out = call.outputs[0]
    for kernel in (zero, epilogue):
        assert_each_byte_written_once(kernel, slot_of(kernel, out), out, WRITE)
    added = main.footprint.boxes.take(main.footprint.boxes.mode == ATOMIC)
    assert out.ref in {o.ref for o in (main.operands[slot] for slot in added.operand) if isinstance(o, Operand)}
    assert slot_of(epilogue, call["self"]) is not None
