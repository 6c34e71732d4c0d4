"""Times of PyTorch's own kernels from a table of measured launches."""

import dataclasses

import numpy as np
import pytest

from tileprof.devices import get
from tileprof.record.model import among_others, duration, operator_times, tables
from tileprof.record.model.tile_model import Kernel, Operand
from tileprof.record.model.tiles.foundations import regions
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint
from tileprof.trace.sources import TimeSource

H200 = get("H200")


@pytest.fixture
def table():
    return tables.table(operator_times.FAMILY, H200)


def kernel(name, tiles=4, elements=2048, **more):
    """Return a copy of floats by ``tiles`` blocks of 128 threads."""
    operands = tuple(Operand((tiles * elements,), (1,), "float32", 4, ref=ref) for ref in (0, 1))
    number = np.arange(tiles)
    parts = [
        regions.linear_boxes(operand, slot, mode, number, number * elements, (number + 1) * elements, first=0, last=1)
        for slot, (operand, mode) in enumerate(zip(operands, (READ, WRITE), strict=True))
    ]
    block = np.column_stack([number, 0 * number, 0 * number]).astype(np.int32)
    return Kernel(name, Footprint(block, Boxes.concat(parts)), operands, (tiles, 1, 1), (128, 1, 1), **more)


def test_an_entry_has_its_own_time(table):
    for row in np.random.default_rng(0).permutation(len(table))[:50].tolist():
        of = tuple(table.keys[row, 1:].tolist())
        name = str(table.columns["name"][table.keys[row, 0]])
        ns, source = operator_times.looked_up(table, name, of)
        assert source == TimeSource.CALIBRATED
        assert ns == pytest.approx(np.exp(table.columns["time"][row] / operator_times.TIME_SCALE))


def test_half_of_the_entries_are_predicted_within_a_tenth_when_they_are_left_out(table):
    errors = []
    for row in np.random.default_rng(0).permutation(len(table))[:500].tolist():
        name = str(table.columns["name"][table.keys[row, 0]])
        prediction = operator_times.looked_up(table, name, tuple(table.keys[row, 1:].tolist()), without=row)
        if prediction is not None:
            real = np.exp(table.columns["time"][row] / operator_times.TIME_SCALE)
            errors.append(abs(prediction[0] / real - 1))
    assert len(errors) > 450
    assert np.median(errors) < 0.1


def test_a_kernel_of_a_kind_that_was_not_measured_keeps_the_roofline():
    lives = duration.model(kernel("a_kernel_of_tomorrow"), H200)
    assert lives.source == TimeSource.ROOFLINE


def test_a_kernel_whose_name_was_not_measured_gets_the_time_of_its_kind(table):
    name = "vectorized_elementwise<an_operator_of_tomorrow>"
    assert name not in table.columns["name"].tolist()
    lives = duration.model(kernel(name, elements=512), H200)
    assert lives.source == TimeSource.INTERPOLATED
    assert 500 < lives.launch_ns < 3000


def test_tiles_share_the_time_of_their_launch_as_in_the_roofline():
    one = kernel("vectorized_elementwise<add>", tiles=3)
    lives = duration.model(one, H200)
    assert lives.source != TimeSource.ROOFLINE
    assert lives.launch_ns == pytest.approx(lives.tile_ns.max(), abs=1)
    assert np.ptp(lives.tile_ns) == pytest.approx(0)


def test_times_that_a_tile_model_knows_are_kept():
    modelled = duration.model(kernel("vectorized_elementwise<add>", launch_ns=7777.0), H200, weight_bytes=1 << 40)
    assert modelled.launch_ns == round(7777 * among_others.COLD)


def test_another_gpu_keeps_the_roofline():
    other = dataclasses.replace(H200, name="H100")
    assert operator_times.time_ns(other, "vectorized_elementwise<add>", (0,) * len(operator_times.FEATURES)) is None


def test_features_are_what_the_kernel_does():
    of = dict(zip(operator_times.FEATURES, operator_times.features(kernel("k"), 4096.0, 1024.0), strict=True))
    step = operator_times.STEPS
    assert of == {
        "tiles": 2 * step, "threads": 7 * step, "touched": 12 * step, "distinct": 10 * step, "run": 13 * step,
        "flops": 0, "narrow": 2 * step, "wide": 2 * step,
    }  # fmt: skip
