"""Grids of a convolution's launches, derived from those of the measured call."""

import numpy as np
import pytest

from tileprof.record.model.tiles.convolutions import launch_grids
from tileprof.record.model.tiles.convolutions.problem import MeasuredLaunch


def key(what=0, layout=0, groups=1, images=8, channels=(64, 128), size=56, taps=3, stride=1, dtype=2):
    padding = taps // 2
    return (
        what, dtype, layout, 2, 0, groups, images, *channels, 1, size, size, 1, taps, taps, 1, stride, stride, 0,
        padding, padding, 1, 1, 1, 0, 0, 0,
    )  # fmt: skip


def launch(name, grid, cluster=(1, 1, 1)):
    return MeasuredLaunch(name, grid, (128, 1, 1), cluster, 64, 0, 1000.0)


TO_LAST, TO_FIRST = "cudnn::nchwToNhwcKernel<__half>", "cudnn::nhwcToNchwKernel<__half>"
IMPLICIT = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x32_stage3"
PERSISTENT = "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_warpgroupsize1x1x1"
CUTLASS = "cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_f16_64x64_32x6_tn_align8>"
NVJET = "nvjet_sm90_hsh_128x64_64x8_2x1_v_bz_TNN"


def test_the_grid_of_the_measured_call_itself_stays():
    assert launch_grids.carried([launch(NVJET, (2, 7, 3))], key(), key()) == [(2, 7, 3)]


def test_layout_copies_count_squares_of_input_weight_and_result():
    copies = [launch(TO_LAST, (98, 2, 8)), launch(TO_LAST, (1, 2, 128)), launch(TO_FIRST, (98, 4, 8))]
    other = key(images=3, channels=(96, 40), size=20)
    assert launch_grids.carried(copies, key(), other) == [(13, 3, 3), (1, 3, 40), (13, 2, 3)]


def test_copies_of_equal_sizes_are_told_apart_by_their_order():
    copies = [launch(TO_LAST, (25, 2, 4)), launch(TO_LAST, (25, 2, 4))]
    measured = key(what=2, images=4, channels=(64, 64), size=28)
    other = key(what=2, images=4, channels=(64, 160), size=28)
    assert launch_grids.carried(copies, measured, other) == [(25, 2, 4), (25, 5, 4)]


@pytest.mark.parametrize(("images", "channels", "size"), [(1, 100, 14), (16, 512, 30), (5, 64, 7)])
def test_an_implicit_product_counts_columns_then_rows(images, channels, size):
    measured = launch(IMPLICIT, (2, 196, 1))
    (grid,) = launch_grids.carried([measured], key(), key(images=images, channels=(64, channels), size=size))
    assert grid == (len(range(0, channels, 64)), len(range(0, images * size * size, 128)), 1)


def test_a_persistent_kernel_has_at_most_the_clusters_that_fit():
    measured = launch(PERSISTENT, (4, 2, 1), (2, 2, 1))
    small, large = key(images=1, channels=(64, 256), size=8), key(images=64)
    (grid,) = launch_grids.carried([measured], key(images=1, channels=(64, 256), size=8), small)
    assert grid == (4, 2, 1)
    (grid,) = launch_grids.carried([measured], small, large)
    assert grid == (60, 2, 1)
    assert np.prod(grid) <= 132


def test_cutlass_puts_tiles_side_by_side_and_keeps_slices():
    # 3 tiles of 64 channels lie aside by 4: 4 blocks per row, one row of fours; 6 by 8.
    measured = launch(CUTLASS, (4 * 4, 1, 5))
    own = key(layout=1, images=1, channels=(64, 192), size=16, taps=1)
    assert launch_grids.carried([measured], own, key(layout=1, images=1, channels=(64, 384), size=16, taps=1)) == [
        (4 * 8, 1, 5)
    ]
    assert launch_grids.slices(measured, own) == 5


def test_nvjet_counts_clusters_of_every_image():
    own = key(images=2, channels=(64, 64), size=16, taps=1)
    measured = launch(NVJET, (2, 2, 1), (2, 1, 1))
    assert launch_grids.carried([measured], own, key(images=2, channels=(64, 192), size=32, taps=1)) == [(2, 24, 1)]


def test_groups_share_a_tile_where_they_fit():
    own = key(groups=4, images=1, channels=(64, 64), size=16)
    measured = launch(IMPLICIT, (1, 2, 1))
    assert launch_grids.carried([measured], own, key(groups=9, images=1, channels=(144, 144), size=16)) == [(3, 2, 1)]


def test_kernels_of_as_many_blocks_for_every_size_keep_them():
    assert launch_grids.carried([launch("tensorTransformGeneric<float>", (264, 1, 1))], key(), key(images=1)) == [
        (264, 1, 1)
    ]


def test_a_grid_that_nothing_explains_grows_with_the_results():
    assert launch_grids.carried([launch("unheard_of", (77, 3, 1))], key(), key(images=16)) == [(154, 3, 1)]


@pytest.mark.parametrize(
    ("size", "taps", "stride", "grid"),
    [
        (7, 3, 1, (1, 9, 2)), (20, 5, 1, (1, 9, 2)), (21, 5, 1, (1, 27, 2)), (56, 3, 1, (2, 54, 2)),
        (264, 3, 1, (7, 243, 2)), (28, 3, 2, (2, 18, 2)), (14, 3, 2, (1, 9, 2)),
    ],
)  # fmt: skip
def test_depthwise_tiles_in_shared_memory_are_whole_small_images_and_strips_of_large_ones(size, taps, stride, grid):
    measured = launch("conv2d_c1_k1_nchw_shmem_tiling", (1, 132, 4))
    own = key(groups=1056, images=4, channels=(1056, 1056), size=7)
    other = key(groups=66, images=2, channels=(66, 66), size=size, taps=taps, stride=stride)
    assert launch_grids.carried([measured], own, other) == [grid]


@pytest.mark.parametrize(
    ("groups", "channels", "taps", "blocks"), [(768, (768, 768), 3, 864), (584, (584, 584), 9, 5913),
                                               (1, (48, 48), 1, 288), (1, (24, 72), 1, 216)]
)  # fmt: skip
def test_direct_gradients_of_weights_have_eight_elements_per_block_as_recorded(groups, channels, taps, blocks):
    measured = launch("void cudnn::cnn::wgrad2d_grouped_direct_kernel<false, true>", (8, 1, 1))
    own, other = key(groups=1, channels=(8, 8), taps=1), key(groups=groups, channels=channels, taps=taps)
    assert launch_grids.carried([measured], own, other) == [(blocks, 1, 1)]


@pytest.mark.parametrize(
    ("channels", "size", "taps", "stride", "images", "blocks"),
    [(864, 33, 5, 1, 8, 1485), (240, 132, 5, 2, 16, 4455), (28, 14, 1, 1, 16, 49), (96, 28, 1, 1, 8, 294)],
)  # recorded
def test_depthwise_strips_of_channels_last(channels, size, taps, stride, images, blocks):
    name = "conv2d_c1_k1_nhwc_specialized"
    own = key(layout=1, groups=64, images=1, channels=(64, 64), size=24, taps=3)
    measured = launch(name, (6, 1, 1))
    other = key(layout=1, groups=channels, images=images, channels=(channels, channels), size=size, taps=taps,
                stride=stride)  # fmt: skip
    assert launch_grids.carried([measured], own, other) == [(blocks, 1, 1)]
