"""Constants for convolutions that load all taps at once: where the kernel multiplies and stores each pixel, and which
slots are in use meanwhile.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.support.runtime.chains import matrix, weight
from tileprof.runtime.chain import Chain
from tileprof.runtime.measuring.cases import convolution_pair
from tileprof.runtime.persistent.cost import chain_us, clusters_on
from tileprof.runtime.persistent.plan import SPLITS, Box, Plan
from tileprof.runtime.persistent.source import Layout, Options, header
from tileprof.runtime.persistent.supported import stage_plans
from tileprof.runtime.persistent.task_lists import plan_of
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm


def plan(chain: Chain, split: int) -> Plan:
    """Return a plan whose compiled constants depend on stages and split alone."""
    none = np.zeros(1, np.int32)
    return Plan(split, 1, stage_plans(chain), none, none, none, none, none, none, 0, none)


def constants(result: Plan) -> dict[str, int]:
    """Return the whole numbers of the header, for the first stage and for the kernel."""
    text = header(result, Options()).split("template <> struct Stage<1>")[0]
    return {name: int(value) for name, value in re.findall(r"int (\w+) = (-?\d+);", text)}


def convolution(images: int, size: int, tile: tuple[int, int], kernel: int = 3, channels: int = 64) -> Chain:
    x, out = matrix("x", images, size, size, channels), matrix("y", images, size, size, tile[1])
    w = matrix("w", tile[1], kernel, kernel, channels)
    return Chain(("conv",), (Conv2d(x, w, out, tile=tile, padding=kernel // 2),))


def result_row(stage: dict[str, int], row: int) -> int:
    """Return the results of the function of this name in common.cuh."""
    image = row // 64 if stage["IMAGES"] > 1 else 0
    down, column = divmod(row - 64 * image, stage["ROW_STEP"])
    pixel = down * stage["ROW_PIXELS"] + column
    inside = column < stage["ROW_PIXELS"] and pixel < stage["IMAGE_PIXELS"]
    return image * stage["IMAGE_PIXELS"] + pixel if inside else -1


SHAPES = (6, 72, 3), (7, 98, 3), (6, 72, 5), (7, 49, 3), (14, 98, 3), (56, 112, 3), (12, 12, 5)


@pytest.mark.parametrize(
    ("columns", "size", "pixels", "kernel"),
    [
        *((columns, *each) for columns in (32, 192) for each in SHAPES),
        (128, 112, 112, 3),
        (128, 14, 98, 3),
    ],
)
def test_every_pixel_of_a_tile_is_stored_once_and_its_taps_are_where_the_product_reads(
    size, pixels, kernel, columns
) -> None:
    """Two images of 6 x 6 are 8 x 8 with their borders: the second begins at row 64 of the slot and of the product."""
    halo_plan = plan(convolution(4, size, (pixels, columns), kernel), 1)
    stage, box, halo = constants(halo_plan), Box.of(halo_plan.stages[0].operator), halo_plan.stages[0].halo(1)
    assert halo is not None
    results = {result_row(stage, row): row for row in range(stage["BLOCK_ROWS"])}
    assert sorted(results)[-pixels:] == list(range(pixels))
    for result, row in results.items():
        if result < 0:
            continue
        image, (y, x) = result // (box.rows * box.columns), divmod(result % (box.rows * box.columns), box.columns)
        for tap in range(kernel**2):
            begin = tap // halo.taps * halo.taps  # of the slot, which is loaded that many rows further down
            down, across = divmod(tap - begin, stage["SHARE"])
            group = row // 64 if stage["ROWS"] == 128 else 0
            read = group * stage["GROUP_STEP"] + row % 64 + down * stage["ROW_STEP"] + across
            assert read == (image * halo.rows + y + tap // kernel - begin // kernel) * halo.columns + x + tap % kernel


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("channels", [64, 128, 512])
def test_every_block_has_a_part_of_k(split, channels) -> None:
    """A block without k-blocks would wait for nothing, but still read a residual."""
    result = plan(convolution(1, 7, (49, 64), 3, channels), split)
    stage = result.stages[0]
    tasks = np.zeros((1, 4), np.int32)
    parts = [
        Plan(split, 1, result.stages, *[tasks] * 6, 0, np.zeros(1, np.int32)).part(0, rank) for rank in range(split)
    ]
    assert (stage.halo(split) is None) == (channels // 64 * 3 < split)
    assert [begin for begin, _ in parts] == [0, *(end for _, end in parts[:-1])]
    assert all(begin < end for begin, end in parts)


def test_widest_tiles_of_the_largest_halos_leave_room_for_rings() -> None:
    chain = convolution_pair(1, 128, 256, (128, 256))
    for split in SPLITS:
        halo = stage_plans(chain)[0].halo(split)
        assert Layout.of(plan(chain, split), Options()).b_slots >= 3
        assert halo is not None
        assert halo.taps == (9 if split == 1 else 3)


def test_pairs_of_blocks_draw_weights_without_a_limit() -> None:
    """Their loads of weights go to two blocks, where the loading task is not known."""
    product = Gemm(matrix("x", 40, 256), weight("w", 256, 256), matrix("h", 40, 256), tile=(256, 64))
    assert constants(plan(Chain(("one",), (product,)), 2))["UNDER_WAY"] == 0


def test_a_stage_that_reads_another_than_the_one_before_is_modelled() -> None:
    """The shortcut of a residual block reads the block's input, which has four times as many pixels."""
    x, small = matrix("x", 2, 16, 16, 64), (2, 8, 8, 64)
    first = Conv2d(x, matrix("w0", 64, 3, 3, 64), matrix("y", *small), tile=(64, 32), padding=1, stride=2)
    second = Conv2d(matrix("y", *small), matrix("w1", 64, 3, 3, 64), matrix("z", *small), tile=(64, 32), padding=1)
    short = Conv2d(
        x, matrix("w2", 64, 1, 1, 64), matrix("o", *small), tile=(64, 32), stride=2, residual=matrix("z", *small)
    )
    chain = Chain(("first", "second", "short"), (first, second, short))
    result = plan_of(chain.policy(), chain, clusters=clusters_on(132))
    pair, whole = (chain_us(result.stages[:n], result.split, 132) for n in (2, 3))
    assert pair <= whole < pair + chain_us(result.stages[2:], result.split, 132)


def test_independent_products_are_modelled_side_by_side() -> None:
    few = Gemm(matrix("x", 64, 128), weight("w", 128, 128), matrix("h", 64, 128), tile=(64, 64))
    many = Gemm(matrix("z", 300, 128), weight("v", 128, 128), matrix("g", 300, 128), tile=(64, 64))
    stages = stage_plans(Chain(("few", "many"), (few, many)))
    both = chain_us(stages, 1, 132)
    assert both == max(chain_us([stage], 1, 132) for stage in stages)
