"""Times of decompositions: those that were measured, and what lies between them."""

import pytest
import torch

from tests.unit.record.model.tiles.oracle import call_of
from tileprof.record.model.linear_algebra_times import chain_ns


def time_us(op, *shape):
    return chain_ns(call_of(f"aten::{op}", torch.eye(shape[-1]).expand(shape).contiguous())) / 1e3


@pytest.mark.parametrize(("shape", "expected"), [((64, 64), 760), ((512, 512), 16_502), ((64, 64, 64), 48_669)])
def test_measured_sizes_have_their_times(shape, expected):
    assert time_us("_linalg_svd", *shape) == pytest.approx(expected, rel=0.01)


def test_times_grow_with_sizes_and_batches():
    sizes = [time_us("linalg_inv_ex", n, n) for n in (8, 16, 40, 64, 300, 1024, 2048)]
    assert sizes == sorted(sizes)
    assert sizes[-1] >= 2 * sizes[-2]
    batches = [time_us("linalg_inv_ex", b, 100, 100) for b in (1, 2, 16, 100)]
    assert batches == sorted(batches)


def test_other_operators_have_no_such_time():
    assert chain_ns(call_of("aten::relu", torch.zeros(8, 8))) == 0.0


def test_a_decomposition_takes_its_time_in_a_trace(trace_of):
    launches = trace_of(lambda: torch.linalg.svdvals(torch.eye(64))).launches
    (launch,) = launches[launches.op == "aten::_linalg_svd"].itertuples()
    assert launch.coverage == "conservative"
    assert 700_000 < launch.duration_ns < 900_000
