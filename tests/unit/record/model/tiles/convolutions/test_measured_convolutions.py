"""Convolutions with launches as measured on a GPU: every result depends on all of its sources, through all launches."""

import itertools

import numpy as np
import pytest

from tests.unit.record.model.tiles.oracle import all_bytes, element_bytes, runs_of
from tileprof.devices import get
from tileprof.record.model.tile_model import Operand, Scratch
from tileprof.record.model.tiles.convolutions import convolution_table, measured_launches
from tileprof.record.model.tiles.convolutions.conv_kernels import Window
from tileprof.record.model.tiles.convolutions.conv_weight_kernels import WeightGradient
from tileprof.record.model.tiles.convolutions.convolution_key import Dtype, Layout, Pass
from tileprof.record.model.tiles.convolutions.convolution_table import Entry
from tileprof.record.model.tiles.convolutions.library_kernels import Role, parse_name
from tileprof.record.model.tiles.convolutions.measured_times import scaled_ns
from tileprof.record.model.tiles.convolutions.problem import (
    MeasuredLaunch,
    Problem,
    channels_last,
    key_of,
    operand_sizes,
)
from tileprof.record.model.tiles.convolutions.windows import Axis
from tileprof.record.model.tiles.products import dispatch
from tileprof.trace.footprint import ATOMIC, READ, WRITE
from tileprof.trace.sources import ShapeSource, TimeSource

H200 = get("H200")
TO_NHWC = "cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half>"
TO_NCHW = "cudnn::engines_precompiled::nhwcToNchwKernel<__half, __half>"
GATHER = "cutlass_tensorop_f16_s16816fprop_optimized_f16_8x4_32x5_nhwc_align8"
BESIDE = "cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_8x4_32x5_nn_align8>"
SEGMENTS = "sm90_xmma_fprop_implicit_gemm_f16_nhwckrsc_nhwc_tilesize8x4x32_g1_execute_segment_k_on_kernel"
NVJET = "nvjet_sm90_hsh_8x4_64x16_1x2_h_bz_NNT"
PERSISTENT = "sm90_xmma_fprop_implicit_gemm_f16_nhwckrsc_nhwc_tilesize8x4x32_warpgroupsize1x1x1"
STRIDED = "sm90_xmma_dgrad_implicit_gemm_indexed_f16_nhwckrsc_nhwc_tilesize8x4x32_g1_strided_execute_kernel"
WEIGHTS = "sm80_xmma_wgrad_implicit_gemm_indexed_f16_nhwckrsc_nhwc_tilesize8x16x32_stage4"


def launch(name, *grid):
    return MeasuredLaunch(name, grid or (0, 0, 0), (128, 1, 1), (1, 1, 1), 32, 0, 2000.0)


def key(what=Pass.FORWARD, *, layout=Layout.CONTIGUOUS, images=2, inside=5, outside=6, groups=1, size=(6, 7), taps=3):
    """A convolution with a stride of 2 down and 1 across, padded by one."""
    window = (1, taps, taps, 1, 2, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0)
    return (int(what), int(Dtype.FP16), int(layout), 2, 0, groups, images, inside, outside, 1, *size, *window)


def dense_key(what, groups, inside, outside, size=(9, 18)):
    """A convolution of 3 x 3 without a stride, padded by one."""
    window = (1, 3, 3, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0)
    return (int(what), int(Dtype.TF32), int(Layout.CONTIGUOUS), 2, 0, groups, 1, inside, outside, 1, *size, *window)


def winograd(data, delta, product, output):
    """The launches of a weight's gradient, with these grids along x and y."""
    return [launch(f"cudnn::winograd_nonfused::winogradWgrad{stage}4x4<float, float>", *grid, 1)
            for stage, grid in (("Data", data), ("Delta", delta))] + [
        launch("sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize4x2x8_stage3_warpsize1x2x1", *product, 36),
        launch("cudnn::winograd_nonfused::winogradWgradOutput4x4<float, float>", *output, 1)]  # fmt: skip


def problem_of(of):
    """Return the call of a key, with dense operands."""
    operands = []
    for ref, sizes in enumerate(operand_sizes(of)):
        shape = (*sizes[:2], *sizes[3:])
        order = (0, 2, 3, 1) if of[2] == Layout.CHANNELS_LAST else (0, 1, 2, 3)
        strides, run = [0] * 4, 1
        for dim in reversed(order):
            strides[dim], run = run, run * shape[dim]
        operands.append(Operand(shape, tuple(strides), "float16", 2, ref=ref))
    first, second, out = operands
    gather_operand = second if of[0] == Pass.WEIGHT_GRADIENT else first
    taps = (out if of[0] == Pass.WEIGHT_GRADIENT else second).shape[2:]
    back = () if of[0] == Pass.WEIGHT_GRADIENT else (of[0] == Pass.INPUT_GRADIENT,)
    axes = tuple(
        Axis(*some, *back) for some in zip(gather_operand.shape[2:], taps, of[16:18], of[19:21], of[22:24], strict=True)
    )
    if of[0] == Pass.WEIGHT_GRADIENT:
        return Problem(of, WeightGradient(out, first, second, axes, of[5]), (first, second), out)
    return Problem(of, Window(out, first, second, axes, of[5], transposed=back[0]), (first, second), out)


def multiplied(of):
    """Yield triples of indices of the two inputs and of the result that belong together, by the definition."""
    what, groups, images, inside, outside = of[0], *of[5:9]
    (h, w), (r, s), (down, across), (top, left) = of[10:12], of[13:15], of[16:18], of[19:21]
    high, wide = (h + 2 * top - r) // down + 1, (w + 2 * left - s) // across + 1
    each_in, each_out = inside // groups, outside // groups
    for n, g, k, c, p, q, i, j in itertools.product(*map(range, (images, groups, each_out, each_in, high, wide, r, s))):
        y, x = p * down - top + i, q * across - left + j
        if 0 <= y < h and 0 <= x < w:
            source, weight = (n, g * each_in + c, y, x), (g * each_out + k, c, i, j)
            result = (n, g * each_out + k, p, q)
            yield {
                Pass.FORWARD: (source, weight, result),
                Pass.INPUT_GRADIENT: (result, weight, source),
                Pass.WEIGHT_GRADIENT: (result, source, weight),
            }[Pass(what)]


class Flow:
    """Return the bytes of the inputs on which every byte that a call writes may depend, launch by launch.

    A set is an integer with a bit for each byte, those of the second input after those of the first.
    """

    def __init__(self, problem, kernel_list):
        self.sources = {}
        self.second_from = 1 + max(all_bytes(problem.inputs[0]))
        for kernel in kernel_list:
            stores = {}
            for tile in range(kernel.footprint.tiles):
                reads, writes = 0, set()
                for slot, operand in enumerate(kernel.operands):
                    place = ("scratch", operand.slot) if isinstance(operand, Scratch) else operand.ref
                    read, write, both = (
                        {b for run in runs_of(kernel.footprint, tile, slot, mode) for b in run}
                        for mode in (READ, WRITE, ATOMIC)
                    )
                    for byte in both:
                        reads |= self.sources.get((place, byte), 0) | stores.get((place, byte), 0)
                    if isinstance(operand, Operand) and operand.ref in (0, 1):
                        reads |= self.bits(operand.ref, read)
                    else:
                        for byte in read:
                            reads |= self.sources.get((place, byte), 0)
                    writes |= {(place, b) for b in write | both}
                    if isinstance(operand, Scratch) and read:
                        assert read <= {b for at, b in self.sources if at == place}, "scratch that was not written"
                for place in writes:
                    stores[place] = stores.get(place, 0) | reads
            self.sources |= stores

    def bits(self, ref, some):
        """Return the set of ``some`` bytes of the first or of the second input."""
        bits = 0
        for byte in some:
            bits |= 1 << (byte + ref * self.second_from)
        return bits


CALLS = {
    "copies around an implicit product": (
        key(), [launch(TO_NHWC, 2, 1, 2), launch(TO_NHWC, 1, 1, 6), launch("memset"), launch(GATHER, 6, 2, 1),
                launch(TO_NCHW, 1, 1, 2)],
    ),
    "channels last, one kernel": (key(layout=Layout.CHANNELS_LAST), [launch(GATHER, 6, 2, 1)]),
    "rows of tiles beside each other, with idle blocks": (key(), [launch(BESIDE, 8, 1, 2)]),
    "slices and a reduction": (
        key(layout=Layout.CHANNELS_LAST, inside=34),
        [launch(GATHER, 6, 2, 2), launch("cublasLt::splitKreduce_kernel<32, 16, int>", 3, 1, 1)],
    ),
    "a gradient of the input": (
        key(Pass.INPUT_GRADIENT), [launch(TO_NHWC, 1, 1, 6), launch(TO_NHWC, 1, 1, 2),
                                   launch(GATHER.replace("fprop", "dgrad"), 11, 2, 1), launch(TO_NCHW, 2, 1, 2)],
    ),
    "two segments of the depth in one launch": (
        key(layout=Layout.CHANNELS_LAST, inside=34),
        [launch("init_device_workspace_kernel"), launch(SEGMENTS, 24, 1, 1)],
    ),
    "a gradient of the input by remainders of the stride": (
        key(Pass.INPUT_GRADIENT, layout=Layout.CHANNELS_LAST), [launch(STRIDED, 2, 12, 1)],
    ),
    "a gradient of the weight": (key(Pass.WEIGHT_GRADIENT, layout=Layout.CHANNELS_LAST), [launch(WEIGHTS, 3, 1, 1)]),
    "a gradient of the weight in slices": (
        key(Pass.WEIGHT_GRADIENT, layout=Layout.CHANNELS_LAST),
        [launch("memset"), launch(WEIGHTS, 3, 1, 2), launch("cudnn::cnn::reduce_wgrad_nchw_helper<float>", 3, 1, 1)],
    ),
    "depthwise by ATen": (
        key(inside=6, groups=6), [launch("at::native::conv_depthwise2d_forward_kernel<3, c10::Half, int>", 1, 1, 1)],
    ),
    "depthwise by cuDNN, of which the grid is known": (
        key(inside=6, groups=6, layout=Layout.CHANNELS_LAST), [launch("conv2d_c1_k1_nhwc_specialized", 9, 1, 1)],
    ),
    "depthwise by cuDNN, tiles of images in shared memory": (
        key(inside=20, groups=20, outside=20, size=(22, 7)), [launch("conv2d_c1_k1_nchw_shmem_tiling", 1, 6, 2)],
    ),
    "a depthwise gradient by cuDNN, tiles of images in shared memory": (
        key(Pass.INPUT_GRADIENT, inside=6, groups=6), [launch("dgrad2d_c1_k1_nchw_shmem_tiling", 1, 1, 2)],
    ),
    "depthwise by cuDNN, in squares": (
        key(inside=6, groups=6, layout=Layout.CHANNELS_LAST), [launch("conv2d_c1_k1_nhwc", 1, 1, 1)],
    ),
    "a depthwise gradient by cuDNN, in squares": (
        key(Pass.INPUT_GRADIENT, inside=6, groups=6, layout=Layout.CHANNELS_LAST),
        [launch("dgrad2d_c1_k1_nhwc_specialized", 1, 2, 1)],
    ),
    "a persistent kernel of three clusters": (
        key(layout=Layout.CHANNELS_LAST),
        [MeasuredLaunch(PERSISTENT, (3, 2, 1), (384, 1, 1), (1, 2, 1), 168, 0, 2000.0)],
    ),
    "clusters of nvjet, images apart": (
        key(taps=1, outside=20), [MeasuredLaunch(NVJET, (2, 30, 1), (384, 1, 1), (2, 1, 1), 168, 0, 2000.0)],
    ),
    "clusters across channels": (
        key(layout=Layout.CHANNELS_LAST, outside=12),
        [MeasuredLaunch(PERSISTENT, (24, 1, 1), (384, 1, 1), (2, 1, 1), 168, 0, 2000.0)],
    ),
    "clusters down pixels": (
        key(layout=Layout.CHANNELS_LAST, outside=12),
        [MeasuredLaunch(PERSISTENT, (9, 2, 1), (384, 1, 1), (1, 2, 1), 168, 0, 2000.0)],
    ),
    "groups": (key(inside=6, groups=2), [launch("implicit_convolve_sgemmIffLi128ELi3ELi2ELi3E", 6, 1, 1)]),
    "an unknown kernel between copies": (
        key(), [launch(TO_NHWC, 2, 1, 2), launch("nhwcAddPaddingKernel", 9, 1, 1), launch("strange", 7, 1, 1),
                launch(TO_NCHW, 1, 1, 2)],
    ),
    "an element of the weight's gradient per block": (
        key(Pass.WEIGHT_GRADIENT, inside=6, groups=6), [launch("conv_depthwise2d_grad_weight_kernel", 54, 1, 1)]),
    "eight elements of the weight's gradient per block": (
        key(Pass.WEIGHT_GRADIENT, inside=6, groups=2), [launch("wgrad2d_grouped_direct_kernel<false>", 21, 1, 1)]),
    "a filter of the weight's gradient per block": (
        key(Pass.WEIGHT_GRADIENT, inside=6, groups=2), [launch("wgrad2d_shmem_tiling", 3, 2, 1)]),
    "a gradient of the weight by Winograd": (
        dense_key(Pass.WEIGHT_GRADIENT, 1, 3, 9), winograd((4, 1), (4, 1), (3, 2), (1, 2)),
    ),
    "a gradient of the weight by Winograd, group by group": (
        dense_key(Pass.WEIGHT_GRADIENT, 2, 6, 10), winograd((4, 1), (4, 1), (2, 2), (1, 1)) * 2,
    ),
    "a gradient of the input that is added up": (
        key(Pass.INPUT_GRADIENT, outside=20),
        [launch("cudnn::engines_precompiled::scalePackedTensor_kernel<float>", 2, 1, 1),
         launch("cudnn::detail::dgrad_engine<__half, 512, 4, 3, 3, 3, 3, false>", 3, 3, 2)],
    ),
    "a gradient of the weight that is added up": (
        key(Pass.WEIGHT_GRADIENT),
        [launch("memset"), launch("wgrad_alg0_engine<__half, 128, 5, 2, 3, 3, 3, false, 512>", 2, 2, 2)],
    ),
    "groups that take turns, with copies": (
        key(inside=6, groups=2),
        [launch(TO_NHWC, 2, 1, 2), launch(TO_NHWC, 1, 1, 3), launch(GATHER, 6, 1, 1), launch(TO_NCHW, 1, 1, 2)] * 2,
    ),
    "Winograd": (key(), [launch(f"cudnn::winograd_nonfused::part{n}", 9, 1, 1) for n in range(4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_whatever_a_result_needs_reaches_it_through_all_launches(name):
    of, launches = CALLS[name]
    problem = problem_of(of)
    kernel_list = measured_launches.kernels(problem, Entry(tuple(launches), ShapeSource.TABLE), H200)
    assert [kernel.name for kernel in kernel_list] == [one.name for one in launches]
    assert all(kernel.note or kernel.coverage == "exact" for kernel in kernel_list)
    flow = Flow(problem, kernel_list)
    first, second, out = *problem.inputs, problem.out
    assert all_bytes(out) <= {byte for place, byte in flow.sources if place == out.ref}
    for left, right, result in multiplied(of):
        byte = min(element_bytes(out, [result]))
        came_from = flow.sources[out.ref, byte]
        for operand, index in ((first, left), (second, right)):
            needed_bits = flow.bits(operand.ref, element_bytes(operand, [index]))
            assert needed_bits & came_from == needed_bits, (result, index)


def test_blocks_of_winograd_read_the_inputs_around_their_results():
    problem = problem_of(dense_key(Pass.WEIGHT_GRADIENT, 1, 3, 3))
    launches = winograd((4, 1), (4, 1), (1, 2), (1, 1))
    data, delta, *_ = measured_launches.kernels(problem, Entry(tuple(launches), ShapeSource.TABLE), H200)
    gradient, source = problem.inputs
    around = {}
    for result, read, _ in multiplied(problem.key):
        for byte in element_bytes(gradient, [result]):
            around.setdefault(byte, set()).update(element_bytes(source, [read]))
    for tile in range(4):
        results, reads = ({b for run in runs_of(one.footprint, tile, 0, READ) for b in run} for one in (delta, data))
        assert reads == set().union(*(around[byte] for byte in results))


@pytest.mark.parametrize("name", CALLS)
def test_tiles_of_known_kernels_share_no_result(name):
    of, launches = CALLS[name]
    problem = problem_of(of)
    for kernel in measured_launches.kernels(problem, Entry(tuple(launches), ShapeSource.TABLE), H200):
        if kernel.coverage == "conservative" or kernel.name == "memset" or "segment_k_on" in kernel.name:
            continue
        for slot in range(len(kernel.operands)):
            written = [b for t in range(kernel.footprint.tiles) for run in runs_of(kernel.footprint, t, slot, WRITE)
                       for b in run]  # fmt: skip
            assert len(written) == len(set(written))


def test_images_of_one_pixel_are_rows_of_one_product():
    of = (*key(images=3, inside=64, outside=40, taps=1)[:9], 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0)
    one = launch("nvjet_sm90_hsh_8x16_64x16_1x1_v_bz_TNN", 1, 3, 1)
    (kernel,) = measured_launches.kernels(problem_of(of), Entry((one,), ShapeSource.TABLE), H200)
    assert (kernel.footprint.tiles, kernel.coverage) == (3, "exact")
    for tile in range(3):
        written = {b // 2 for run in runs_of(kernel.footprint, tile, 2, WRITE) for b in run}
        columns = range(16 * tile, min(16 * tile + 16, 40))
        assert written == {40 * image + c for image in range(3) for c in columns}


def test_tiles_lie_where_the_grid_of_a_launch_counts_them():
    of, launches = CALLS["rows of tiles beside each other, with idle blocks"]
    (kernel,) = measured_launches.kernels(problem_of(of), Entry(tuple(launches), ShapeSource.TABLE), H200)
    assert kernel.footprint.block.tolist() == [[x, 0, z] for z in range(2) for x in range(8)]
    channels, pixels = 6, 3 * 7
    for x, _, image in kernel.footprint.block.tolist():
        column, row = divmod(x, 4)
        written = {b // 2 for run in runs_of(kernel.footprint, x + 8 * image, 2, WRITE) for b in run}
        of_tile = itertools.product(
            range(4 * column, min(4 * column + 4, channels)), range(8 * row, min(8 * row + 8, pixels))
        )
        assert written == {(image * channels + c) * pixels + p for c, p in of_tile}, "a fourth tile of a row is idle"


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("clusters across channels", [(row, 0) for row in range(6)] + [(row, 1) for row in reversed(range(6))]),
        ("clusters down pixels", [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0), (2, 0), (2, 1), (2, 2)]),
    ],
)
def test_clusters_run_back_and_forth_first_along_the_axis_that_they_do_not_span(name, places):
    of, launches = CALLS[name]
    (kernel,) = measured_launches.kernels(problem_of(of), Entry(tuple(launches), ShapeSource.TABLE), H200)
    wide, high, _ = launches[0].cluster
    channels, pixels = 12, 2 * 3 * 7
    assert kernel.footprint.tiles == len(places)
    for tile, (row, column) in enumerate(places):
        written = {b // 2 for run in runs_of(kernel.footprint, tile, 2, WRITE) for b in run}
        rows = range(8 * high * row, min(8 * high * (row + 1), pixels))
        columns = range(4 * wide * column, min(4 * wide * (column + 1), channels))
        assert written == {pixel * channels + c for pixel in rows for c in columns}


def test_clusters_of_nvjet_take_tiles_by_gpc_image_by_image():
    of, launches = CALLS["clusters of nvjet, images apart"]
    (kernel,) = measured_launches.kernels(problem_of(of), Entry(tuple(launches), ShapeSource.TABLE), H200)
    channels, pixels, high, wide = 20, 4 * 9, 8, 2 * 4
    order = dispatch.numbers(2 * 5 * 3, 2)
    assert kernel.footprint.block.tolist() == [[0, y, 0] for y in range(30)]
    assert list(order) != sorted(order)
    for tile, number in enumerate(order):
        image, column, row = number // 15, number // 5 % 3, number % 5
        written = {b // 2 for run in runs_of(kernel.footprint, tile, 2, WRITE) for b in run}
        of_tile = itertools.product(
            range(wide * column, min(wide * column + wide, channels)), range(high * row, min(high * row + high, pixels))
        )
        assert written == {(image * channels + c) * pixels + p for c, p in of_tile}


def test_segments_of_a_depth_write_the_same_tile_a_round_apart():
    of, launches = CALLS["two segments of the depth in one launch"]
    _, kernel = measured_launches.kernels(problem_of(of), Entry(tuple(launches), ShapeSource.TABLE), H200)
    assert kernel.footprint.block.tolist() == [[x, 0, 0] for x in range(24)]
    for tile in range(12):
        written, again = ({b for run in runs_of(kernel.footprint, t, 2, WRITE) for b in run} for t in (tile, tile + 12))
        assert written == again != set()
        read, read_again = (
            {b for run in runs_of(kernel.footprint, t, 0, READ) for b in run} for t in (tile, tile + 12)
        )
        assert read.isdisjoint(read_again), "channels are shared among segments"


def test_tiles_of_a_strided_gradient_have_pixels_of_equal_remainders():
    of, launches = CALLS["a gradient of the input by remainders of the stride"]
    (kernel,) = measured_launches.kernels(problem_of(of), Entry(tuple(launches), ShapeSource.TABLE), H200)
    rows = []
    for x, y, _ in kernel.footprint.block.tolist():
        written = {b // 2 for run in runs_of(kernel.footprint, x + 2 * y, 2, WRITE) for b in run}
        rows.append({element // 5 // 7 % 6 % 2 for element in written})
    assert rows == [{0}] * 12 + [{1}] * 12


def test_a_depthwise_block_computes_the_squares_that_a_recording_of_convnext_shows():
    of = (0, 2, 1, 2, 0, 96, 2, 96, 96, 1, 56, 56, 1, 7, 7, 1, 1, 1, 0, 3, 3, 1, 1, 1, 0, 0, 0)
    entry = Entry((launch("conv2d_c1_k1_nhwc", 588, 1, 1),), ShapeSource.TABLE)
    (kernel,) = measured_launches.kernels(problem_of(of), entry, H200)
    assert kernel.grid == (588, 1, 1)
    recorded = {
        0: [(0, 896), (960, 1088), (10752, 11648), (11712, 11840)],
        1: [(896, 960), (1088, 1984), (2112, 2176), (11648, 11712), (11840, 12736), (12864, 12928)],
        12: [(23040, 23936), (24000, 24128), (33792, 34688), (34752, 34880)],
    }
    for tile, runs in recorded.items():
        written = {b for run in runs_of(kernel.footprint, tile, 2, WRITE) for b in run}
        assert written == {b for low, high in runs for b in range(low, high)}


def test_launches_say_where_they_are_from_and_exact_ones_take_their_own_time():
    of, launches = CALLS["copies around an implicit product"]
    problem = problem_of(of)
    exact = measured_launches.kernels(problem, Entry(tuple(launches), ShapeSource.TABLE, timed=True), H200)
    assert {k.launch_ns for k in exact} == {2000.0}
    assert {(k.shape_source, k.time_source) for k in exact} == {(ShapeSource.TABLE, TimeSource.CALIBRATED)}
    assert [k.grid for k in exact[:2]] == [(2, 1, 2), (1, 1, 6)]
    captured = measured_launches.kernels(problem, Entry(tuple(launches), ShapeSource.TABLE), H200)
    assert {(k.shape_source, k.time_source) for k in captured} == {(ShapeSource.TABLE, TimeSource.INTERPOLATED)}
    near = measured_launches.kernels(problem, Entry(tuple(launches), ShapeSource.LEARNED), H200)
    assert {(k.shape_source, k.time_source) for k in near} == {(ShapeSource.LEARNED, TimeSource.INTERPOLATED)}


def test_kernels_are_identified_by_their_names():
    assert parse_name("nvjet_sm90_hsh_128x64_64x8_2x4_h_bz_TNT").tile == (128, 64, 64)
    assert parse_name("nvjet_sm90_hsh_128x64_64x8_2x4_h_bz_TNT").cluster == (2, 4)
    xmma = "sm90_xmma_fprop_implicit_gemm_bf16_nhwckrsc_nhwc_tilesize256x64x32_warpgroupsize1x1x1"
    assert parse_name(xmma).tile[:2] == (
        256,
        64,
    )
    assert parse_name("_Z23implicit_convolve_sgemmIffLi1024ELi5ELi5ELi3ELi3ELi3ELi1ELb0E").tile[:2] == (32, 32)
    assert parse_name("_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernelINS4_9GemmShapeILi64ELi128ELi32EEEE").tile == (
        64,
        128,
        32,
    )
    assert parse_name("a kernel of tomorrow").role == Role.OTHER


def test_layouts_are_classified_as_by_pytorch():
    torch = pytest.importorskip("torch")
    for shape in ((1, 64, 7, 7), (2, 5, 1, 1), (1, 5, 1, 9), (3, 1, 4, 4)):
        for case_key in (torch.empty(shape), torch.empty(shape).to(memory_format=torch.channels_last)):
            operand = Operand(tuple(case_key.shape), tuple(case_key.stride()), "float32", 4)
            assert channels_last(operand) == (
                torch._prims_common.suggest_memory_format(case_key) == torch.channels_last
            )


def test_one_dimension_is_two_with_a_height_of_one():
    source, weight = (
        Operand((2, 80, 300), (24000, 300, 1), "float16", 2),
        Operand((9, 80, 3), (240, 3, 1), "float16", 2),
    )
    case_key = key_of(Pass.FORWARD, source, weight, ((2,), (1,), (1,), (0,)), 1, transposed=False)
    assert case_key == (0, 2, 0, 2, 0, 1, 2, 80, 9, 1, 1, 300, 1, 1, 3, 1, 1, 2, 0, 0, 1, 1, 1, 1, 0, 0, 0)
    assert operand_sizes(case_key)[2] == (2, 9, 1, 1, 150)


def test_nearest_entries_are_of_the_same_pass_and_kind_and_never_those_left_out():
    table = convolution_table.tables.table(convolution_table.FAMILY, H200)
    rows = np.random.default_rng(1).permutation(len(table))[:40]
    for row in rows.tolist():
        of = tuple(table.keys[row].tolist())
        assert convolution_table.entry_of(table, of, H200).source == ShapeSource.TABLE
        near, apart = convolution_table.nearest(of, table, 16, without=np.arange(len(table)) == row)
        assert row not in near
        assert (np.diff(apart) >= 0).all()
        assert (table.keys[near][:, [0, 2, 3, 4]] == np.array(of)[[0, 2, 3, 4]]).all()
        other = convolution_table.entry_of(table, of, H200, without=np.arange(len(table)) == row)
        assert other is None or other.source == ShapeSource.NEIGHBOUR


def test_times_grow_with_the_work_beyond_what_a_launch_takes():
    of, twice = key(images=64, inside=512, outside=512), key(images=128, inside=512, outside=512)
    one = launch(GATHER, 99, 1, 1)
    assert scaled_ns(one, one.grid, of, of) == one.ns
    assert one.ns < scaled_ns(one, (198, 1, 1), twice, of) < 2 * one.ns


def test_times_of_blocks_that_have_an_sm_each_grow_with_their_depth_alone():
    few, more, deep = (
        key(images=n, inside=inside, outside=64, size=(7, 7)) for n, inside in ((1, 512), (2, 512), (1, 2048))
    )
    one = launch(GATHER, 1, 1, 1)
    assert scaled_ns(one, (2, 1, 1), more, few) == pytest.approx(one.ns)
    assert scaled_ns(one, (1, 1, 1), deep, few) > 2 * one.ns
