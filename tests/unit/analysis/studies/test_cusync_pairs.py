"""Pairs of kernels as cuSync runs them: waits compared with a plain walk through its loops, and times computed by
hand.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from studies.cusync_pairs import POLICIES, Interference, Kernel, overlapped_ns, stream_ns, waits

from tests.support.synthetic_graphs import DEVICE
from tileprof.devices import Device, get
from tileprof.errors import UserError

TOY = Device.from_dict({**DEVICE, "sms": 4, "shared_bytes_per_sm": 1 << 20, "registers_per_sm": 8192})
"""Four SMs, one block each for the kernels below."""


def gemm(rows, columns, inner, tile=64, slices=1, **options):
    kernel = Kernel(rows, columns, inner, tile, tile, 32, 64, 64, 2, slices)
    return dataclasses.replace(kernel, **options)


def read_loops(pair, policy):
    """Return what each consumer tile waits for, as (producer tile, when), by walking through the kernels' loops step by
    step.
    """
    producer, consumer = pair
    slices, rows, columns = consumer.grid
    _, above, across = producer.grid
    number = {
        place: i
        for i, place in enumerate(
            (z, y, x) for z in range(producer.slices) for y in range(above) for x in range(across)
        )
    }
    matches = []
    for z in range(slices):
        for y in range(rows):
            row = min(y * consumer.tile_rows // producer.tile_rows, above - 1)
            first_blocks = {}
            if policy == "rowsync":
                first_blocks = dict.fromkeys(range(across), 0.0)
            else:
                for step in range(0, consumer.slice_inner, consumer.tile_inner):
                    at = step if consumer.convolution else z * consumer.slice_inner + step
                    column = at // producer.tile_columns // (9 if consumer.convolution else 1)
                    if column < across:
                        first_blocks.setdefault(column, step / consumer.slice_inner)
            one = {(number[s, row, c], when) for c, when in first_blocks.items() for s in range(producer.slices)}
            matches += [one] * columns
    return matches


def waits_of(pair, policy):
    block, _ = waits(pair, policy)
    matches = []
    for s in block.set_of:
        part = slice(block.indptr[s], block.indptr[s + 1])
        assert (np.diff(block.parent[part]) > 0).all()
        matches.append(dict(zip(block.parent[part].tolist(), block.first[part].tolist(), strict=True)))
    return matches


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 500),
    inner=st.integers(1, 3),
    tiles=st.tuples(st.sampled_from([64, 128, 160, 256]), st.sampled_from([64, 128, 256])),
    slices=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    convolution=st.booleans(),
    policy=st.sampled_from(POLICIES),
)
def test_waits_are_those_of_the_loops_walked_step_by_step(rows, inner, tiles, slices, convolution, policy):
    width = 256 * inner
    first = Kernel(rows, width, 512, tiles[0], tiles[1], 32, 64, 64, 2, slices[0])
    second = Kernel(rows, 300, 9 * width if convolution else width, tiles[1], 64, 32, 64, 64, 2, slices[1], convolution)
    expected = read_loops((first, second), policy)
    actual = waits_of((first, second), policy)
    assert [set(f) for f in actual] == [{tile for tile, _ in w} for w in expected]
    if policy == "rowsync":
        assert {when for f in actual for when in f.values()} == {0.0}
    else:
        for f, w in zip(actual, expected, strict=True):
            # The loop waits per whole step; a column that begins within a step is awaited with the next one at the
            # earliest.
            step = second.tile_inner / second.slice_inner
            assert all(when - step <= f[tile] <= when + 1e-6 for tile, when in w)


def test_a_wait_in_the_loop_comes_with_each_column_and_at_entry_once():
    pair = gemm(64, 512, 64), gemm(64, 64, 512)
    assert waits(pair, "tilesync")[1] == 8
    assert waits(pair, "rowsync")[1] == 1
    # 9 taps of 64 channels in steps of 32: the two first steps lie in the column's first ninth.
    assert waits((gemm(64, 64, 64), gemm(64, 64, 576, convolution=True)), "tilesync")[1] == 3


def test_halves_side_by_side_are_waited_for_together():
    pair = gemm(64, 256, 64), gemm(64, 64, 128)  # four columns in two parts; the consumer sums over two
    assert waits_of(pair, "tilesync") == [{0: 0.0, 1: 0.5, 2: 0.0, 3: 0.5}]
    assert waits(pair, "tilesync")[1] == 2


def test_a_row_is_complete_only_with_the_last_slice():
    (tiles,) = {tuple(w) for w in waits_of((gemm(64, 128, 64, slices=2), gemm(64, 64, 128)), "rowsync")}
    assert tiles == (0, 1, 2, 3)


def test_a_consumer_tile_of_two_rows_of_the_producer_waits_for_the_first_alone():
    pair = gemm(256, 64, 64, tile=64), gemm(256, 64, 64, tile_rows=128)
    assert [list(w) for w in waits_of(pair, "rowsync")] == [[0], [2]]


def test_slices_of_a_convolution_are_padded_to_whole_steps_of_channels():
    conv = gemm(64, 128, 9 * 128, convolution=True, slices=3)
    assert conv.slice_inner == 9 * 64  # ceil(128 / 3) = 43 channels take two steps of 32
    assert 3 * conv.slice_inner == 1.5 * 9 * 128


def test_blocks_of_the_papers_table_reside_as_it_says():
    v100, tall = get("V100"), {"tile_rows": 256, "warp_rows": 128}
    assert gemm(512, 512, 512, tile_columns=256, warp_columns=128, **tall).blocks_per_sm(v100) == 1
    assert gemm(512, 512, 512, tile_columns=128, warp_columns=64, **tall).blocks_per_sm(v100) == 2


def test_stream_order_takes_whole_waves():
    assert stream_ns(gemm(64 * 5, 64, 64), 100.0, TOY, Interference()) == 200.0


def test_a_filled_wave_saves_a_wave_and_waits_in_the_loop_cost_their_time():
    # Six tiles on four SMs twice: three waves instead of four. Rows are single tiles.
    pair = gemm(64 * 6, 64, 64), gemm(64 * 6, 64, 64)
    assert overlapped_ns(pair, (100.0, 100.0), "rowsync", TOY, Interference(), 0.0) == 300.0
    # Consumer tiles 0 and 1 run in the second wave, 4 and 5 after them: two waits in a row.
    assert overlapped_ns(pair, (100.0, 100.0), "rowsync", TOY, Interference(), 7.0) == 100.0 + 2 * 107.0
    # Two columns, twelve tiles in three waves; the consumer's six in two more, with two waits each.
    wide = gemm(64 * 6, 128, 64), gemm(64 * 6, 64, 128)
    assert overlapped_ns(wide, (100.0, 100.0), "tilesync", TOY, Interference(), 7.0) == 300.0 + 2 * 114.0


def test_tiles_that_slow_each_other_down_take_the_gain_of_filling_away():
    kernel = gemm(64 * 6, 64, 64)
    slow_memory = Interference(device=0.5)
    # A wave of four takes 1.5 times as long as one tile alone, one of two 1.25 times.
    assert stream_ns(kernel, 100.0, TOY, slow_memory) == pytest.approx(150.0 + 125.0)
    assert overlapped_ns((kernel, kernel), (100.0, 100.0), "rowsync", TOY, slow_memory, 0.0) == pytest.approx(450.0)


def test_tiles_of_one_sm_share_it():
    two = dataclasses.replace(TOY, registers_per_sm=16384)
    kernel = gemm(64 * 8, 64, 64)
    assert kernel.blocks_per_sm(two) == 2
    assert stream_ns(kernel, 100.0, two, Interference(sm=0.5)) == pytest.approx(100.0)
    assert stream_ns(kernel, 100.0, two, Interference(sm=0.75)) == pytest.approx(150.0)
    assert stream_ns(gemm(64 * 4, 64, 64), 100.0, two, Interference(sm=0.75)) == pytest.approx(100.0)


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match="no policy 'gridsync' of a pair; there are rowsync, tilesync"):
        waits((gemm(64, 64, 64), gemm(64, 64, 64)), "gridsync")
    with pytest.raises(UserError, match="slices 0, expected at least 1"):
        gemm(64, 64, 64, slices=0)
