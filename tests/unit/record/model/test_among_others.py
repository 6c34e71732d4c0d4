"""Times of libraries' kernels in programs: what trees tell beside the harvest, by how many weights there are."""

import dataclasses

import numpy as np
import pytest
import torch

from tileprof import devices
from tileprof.record.model import among_others, duration, tables
from tileprof.record.model.tile_model import Operand
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.gemm_kernels import Product, kernels

H200 = devices.get("H200")
FEATURES = (96, 112, 320, 320, 112, 400, 32, 32)
"""Of a small product in float32."""


def test_ratios_are_those_of_the_trees_and_bounded():
    grown = tables.table(among_others.FAMILY, H200)
    of_times = [
        among_others.ratio(H200, "gemm_fp32_32x32x8_3_nt", FEATURES, float(ns), 0) for ns in np.geomspace(500, 5e6, 40)
    ]
    assert min(of_times) >= 0.5
    assert max(of_times) <= 2.0
    assert len(set(of_times)) > 5
    seen = among_others.seen("gemm_fp32_32x32x8_3_nt", FEATURES, 500.0, 0.0)
    assert of_times[0] == pytest.approx(among_others.ratio_of(grown, seen))


def test_weights_far_beyond_l2_and_other_gpus_have_one_ratio():
    other = dataclasses.replace(H200, name="H100")
    for device, weight_bytes in ((H200, 3 * H200.l2_bytes), (other, 0), (other, 3 * H200.l2_bytes)):
        assert among_others.ratio(device, "gemm_fp32_32x32x8_3_nt", FEATURES, 5000.0, weight_bytes) == among_others.COLD


def test_a_small_product_that_waits_for_its_weight_is_faster_where_weights_stay():
    """704 x 256 x 256 in float32 took 11.5 us with a cold weight, and 8.0 us with a warm one."""
    shapes = (704, 256), (256, 256), (704, 256)
    operands = (Operand((1, *shape), (0, shape[1], 1), "float32", 4, ref=number) for number, shape in enumerate(shapes))
    launches = kernels(Product(*operands), H200, op=problems.PLAIN)
    warm, cold = (
        sum(duration.model(kernel, H200, weight_bytes=weights).launch_ns for kernel in launches)
        for weights in (0, 1 << 40)
    )
    assert warm < 0.85 * cold
    assert 7000 < warm < 9500


def test_a_session_counts_the_weights_of_modules_once(trace_of):
    small, large = torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 128, bias=False)
    counts = []

    def program(session):
        for module in (small, large, small):
            module(torch.ones(4, 64))
            counts.append(session.buffers.weight_bytes)

    trace_of(program, pass_session=True)
    assert counts == [64 * 64 * 4, 64 * 192 * 4, 64 * 192 * 4]


def test_tables_of_embeddings_are_no_weights_unless_a_product_reads_them(trace_of):
    table, head, other = torch.nn.Embedding(100, 64), torch.nn.Linear(64, 100, bias=False), torch.nn.Embedding(50, 64)
    head.weight = table.weight
    counts = []

    def program(session):
        for module in (table, other, head):
            module(torch.ones(4, dtype=torch.int64) if module is not head else torch.ones(4, 64))
            counts.append(session.buffers.weight_bytes)

    trace_of(program, pass_session=True)
    assert counts == [0, 0, 100 * 64 * 4]


def test_the_names_of_kernels_say_what_they_are():
    width = len(among_others.seen("", FEATURES, 1.0, 0.0))
    kinds = {name: among_others.seen(name, FEATURES, 1000.0, 0.0) for name in ("memset", "gemm_bf16_64x8x64_splitk4")}
    assert {len(row) for row in kinds.values()} == {width}
    assert not np.array_equal(*kinds.values())
