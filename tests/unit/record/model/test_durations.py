"""The roofline model of a launch."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileprof import devices
from tileprof.errors import UserError
from tileprof.record.model import duration
from tileprof.record.model.tile_model import Kernel, Operand
from tileprof.trace.footprint import READ, Boxes, Footprint

H200 = devices.get("H200")


def _kernel(tiles, bytes_each=512, **more):
    block = np.zeros((tiles, 3), np.int32)
    block[:, 0] = np.arange(tiles)
    boxes = Boxes.of(
        tile=block[:, 0], operand=0, mode=READ, offset=block[:, 0].astype(np.int64) * bytes_each, length=bytes_each
    )
    operand = Operand((tiles * bytes_each,), (1,), "uint8", 1)
    return Kernel("k", Footprint(block, boxes), (operand,), (tiles, 1, 1), **more)


def test_a_large_copy_runs_at_the_memory_rate():
    kernel = _kernel(132 * 16 * 20, 65536)
    lives = duration.model(kernel, H200)
    floor_ns = 132 * 16 * 20 * 65536 / H200.sustained_bytes_per_s * 1e9
    assert floor_ns < lives.launch_ns < 1.1 * floor_ns + 20 * duration.BLOCK_NS


def test_a_large_product_runs_at_the_arithmetic_rate():
    flops = 10**12
    lives = duration.model(_kernel(132 * 40, 64, flops=flops, rate="fp16"), H200)
    floor_ns = flops / H200.sustained_flops("fp16") * 1e9
    assert floor_ns < lives.launch_ns < floor_ns + 10 * duration.BLOCK_NS


def _products(tiles, **more):
    return duration.model(_kernel(tiles, flops=tiles * 10**8, **more), H200)


def test_one_more_tile_than_slots_costs_another_wave_of_arithmetic():
    slots = 132 * _products(1, shared_bytes=200_000).blocks_per_sm
    full, over = (_products(slots + n, shared_bytes=200_000) for n in (0, 1))
    assert over.launch_ns == pytest.approx(2 * full.launch_ns, rel=0.01)


def test_the_busiest_sm_decides_when_blocks_share_sms():
    pair, over = (_products(n, shared_bytes=100_000) for n in (2 * 132, 2 * 132 + 1))
    assert pair.blocks_per_sm == 2
    assert over.launch_ns == pytest.approx(1.5 * pair.launch_ns, rel=0.02)


def test_a_block_that_does_not_fit_is_refused_with_its_limit():
    with pytest.raises(UserError, match="shared"):
        duration.model(_kernel(1, shared_bytes=10**6), H200)


def test_clusters_hold_as_many_slots_as_they_have_blocks():
    kernel = _kernel(132, shared_bytes=200_000)
    pairs = replace(kernel, cluster=(2, 1, 1))
    assert duration.model(pairs, H200).launch_ns >= 1.9 * duration.model(kernel, H200).launch_ns


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=60), st.integers(1, 8))
def test_the_makespan_is_that_of_greedy_list_scheduling(lives, slots):
    ends = [0.0] * slots
    for life in lives:
        ends[ends.index(min(ends))] += life
    assert duration._makespan(np.array(lives), slots) == pytest.approx(max(ends))


def test_a_broadcast_operand_crosses_dram_once():
    kernel = _kernel(1000)
    repeated_operand = Operand((1000, 512), (0, 1), "uint8", 1)
    boxes = Boxes.of(tile=kernel.footprint.block[:, 0], operand=0, mode=READ, offset=0, length=512)
    broadcast = replace(kernel, operands=(repeated_operand,), footprint=Footprint(kernel.footprint.block, boxes))
    assert duration.traffic(broadcast)[1] == 512
    assert duration.traffic(kernel)[1] == 512_000


def test_a_conservative_launch_moves_an_operand_once_not_once_a_tile():
    exact = _kernel(4096, 1024)
    boxes = replace(exact.footprint.boxes, offset=np.zeros(4096, np.int64), length=np.full(4096, 4096 * 1024))
    rough = replace(exact, footprint=replace(exact.footprint, boxes=boxes), coverage="conservative")
    assert duration.model(rough, H200).launch_ns == duration.model(exact, H200).launch_ns
    assert (
        duration.model(replace(rough, coverage="exact"), H200).launch_ns > 100 * duration.model(exact, H200).launch_ns
    )


def test_a_block_without_work_beside_others_takes_no_time():
    kernel = _kernel(264)
    boxes = kernel.footprint.boxes
    half = replace(kernel, footprint=replace(kernel.footprint, boxes=boxes.take(boxes.tile < 132)))
    lives = duration.model(half, H200)
    assert lives.tile_ns[:132].min() >= duration.BLOCK_NS
    assert (lives.tile_ns[132:] == duration.IDLE_NS).all()


def test_a_chain_of_accesses_outlasts_the_bytes_that_it_moves():
    short, long = (duration.model(_kernel(3, chain_ns=ns), H200) for ns in (0.0, 50_000.0))
    assert short.launch_ns < 2 * duration.BLOCK_NS
    assert long.launch_ns == 50_000 + duration.BLOCK_NS
