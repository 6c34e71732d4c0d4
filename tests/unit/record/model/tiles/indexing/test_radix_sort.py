"""Radix sorts: where each sweep puts its pairs, against a sort written out."""

import numpy as np
import pytest
import torch

from tests.unit.record.model.tiles.oracle import bytes_of, call_of, run_model, slot_of
from tests.unit.record.model.tiles.reach import H200
from tileprof.record.model.tiles.indexing.radix_sort import keys_of
from tileprof.trace.footprint import ATOMIC, WRITE

VALUES = {
    "few_digits": torch.arange(7000, 0, -1),
    "negative": torch.arange(-4000, 3000).roll(1234),
    "float32": torch.linspace(-3, 3, 7000).roll(99),
    "float16": torch.linspace(-3, 3, 9000).roll(99).half(),
    "bfloat16": torch.linspace(-3, 3, 9000).roll(99).bfloat16(),
}


def keys_in(values, *, descending=False):
    """Return the keys of a tensor."""
    bits = values.view(torch.int16) if values.element_size() == 2 else values
    return keys_of(bits.numpy(), descending=descending, floating=values.is_floating_point())


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("name", VALUES)
def test_keys_are_in_the_order_of_the_values(name, descending):
    values = VALUES[name]
    keys = keys_in(values, descending=descending)
    expected = torch.sort(values, stable=True, descending=descending).indices
    assert (np.argsort(keys, kind="stable") == expected.numpy()).all()


@pytest.mark.parametrize("name", VALUES)
def test_every_sweep_writes_where_its_pairs_belong(name):
    values = VALUES[name]
    call = call_of("aten::sort.stable", values, stable=True, dim=0, descending=False)
    kernels = run_model(call, H200)
    sweeps = [k for k in kernels if k.name == "radix_sort_onesweep"]
    keys = keys_in(values).tolist()
    per_block = 4608 if values.element_size() == 8 else 5376
    assert len(sweeps) == values.element_size()
    for turn, sweep in enumerate(sweeps):
        begin, at = {}, {}
        for digit in range(256):
            begin[digit] = len(at)
            for place, key in enumerate(keys):
                if key >> 8 * turn & 255 == digit:
                    at[place] = len(at)
        *_, target, places = sweep.operands
        for operand in (target, places):
            slot = slot_of(sweep, operand) if not hasattr(operand, "bytes") else sweep.operands.index(operand)
            size = 8 if operand is places else values.element_size()
            for tile in range(sweep.footprint.tiles):
                own = range(tile * per_block, min((tile + 1) * per_block, len(keys)))
                expected = {at[place] * size + byte for place in own for byte in range(size)}
                assert bytes_of(sweep.footprint, tile, slot, WRITE) == expected
        keys = [key for _, key in sorted((at[place], key) for place, key in enumerate(keys))]
    assert keys == sorted(keys)


def test_blocks_add_only_to_the_digits_that_they_meet():
    call = call_of("aten::sort.stable", VALUES["few_digits"], stable=True, dim=0, descending=False)
    (histogram,) = (k for k in run_model(call, H200) if k.name == "radix_sort_histogram")
    touched = histogram.footprint.boxes.take(histogram.footprint.boxes.mode == ATOMIC)
    assert set(touched.tile.tolist()) == {0, 1, 2, 3}, "2048 keys each"
    assert bytes_of(histogram.footprint, 0, int(touched.operand[0]), ATOMIC) >= {4 * (7 * 256 + 128)}


def test_unknown_keys_may_go_anywhere():
    call = call_of("aten::sort.stable", VALUES["few_digits"], stable=True, dim=0, descending=False)
    call.value = lambda _: None
    *_, sweep = (k for k in run_model(call, H200) if k.name == "radix_sort_onesweep")
    written = [bytes_of(sweep.footprint, tile, len(sweep.operands) - 1, WRITE) for tile in range(2)]
    assert written == [set(range(8 * 7000))] * 2
