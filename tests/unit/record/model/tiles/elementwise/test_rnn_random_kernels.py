"""Recurrent cells and random numbers."""

import pytest
import torch

from tests.unit.record.model.tiles.oracle import call_of, operand_of, run_model
from tests.unit.record.model.tiles.reach import H200, assert_reads, assert_writes, elements, positions
from tileprof.record.model.tile_model import Call
from tileprof.record.model.tiles.elementwise import random_fills, recurrent_cells

BATCH, HIDDEN = 20, 70


def description(names, outputs):
    """Return a call of an operator that the CPU does not have."""
    tensors = [operand_of(t, i) for i, t in enumerate([*names.values(), *outputs])]
    arguments = dict(zip(names, tensors, strict=False))
    return Call("aten::cell", arguments, tuple(tensors[len(names) :]), tuple(tensors))


@pytest.mark.parametrize(("cell", "gates", "state", "records"), [("lstm", 4, "cx", 4), ("gru", 3, "hx", 5)])
def test_a_cell_reads_all_gates_of_its_units(cell, gates, state, records):
    wide = (BATCH, gates * HIDDEN)
    names = {"input_gates": torch.rand(wide), "hidden_gates": torch.rand(wide), state: torch.rand(BATCH, HIDDEN)}
    names |= {"input_bias": torch.rand(gates * HIDDEN), "hidden_bias": torch.rand(gates * HIDDEN)}
    hidden = [torch.rand(BATCH, HIDDEN)] * (2 if cell == "lstm" else 1)
    call = description(names, [*hidden, torch.rand(BATCH, records * HIDDEN)])
    [kernel] = getattr(recurrent_cells, f"{cell}_cell")(call, H200)
    for out in call.outputs:
        assert_writes(kernel, out)
    at = positions(call["input_gates"]).reshape(BATCH, gates, HIDDEN)
    out = call.outputs[0]
    assert_reads(kernel, out, call["input_gates"], lambda mine: at[mine[:, None].expand(at.shape)])
    assert_reads(kernel, out, call[state], positions(call[state]))
    bias = torch.arange(gates * HIDDEN).reshape(gates, HIDDEN)
    assert_reads(kernel, out, call["input_bias"], lambda mine: bias[:, mine.any(0)])


@pytest.mark.parametrize("total", [100, 300_000, 1_000_001])
def test_random_fills_loop_over_the_output(total, monkeypatch):
    monkeypatch.setattr(random_fills, "THREADS", 1024)
    call = call_of("aten::bernoulli_.float", torch.empty(total), 0.5)
    [kernel] = run_model(call, H200)
    assert kernel.footprint.tiles <= H200.sms * 2
    b = kernel.footprint.boxes
    assert int((b.length * b.count_0 * b.count_1).sum()) == total * 4
    if total <= 300_000:
        assert_writes(kernel, call.outputs[0])
    assert len(kernel.operands) == 1


def test_dropout_reads_what_it_masks():
    call = call_of("aten::native_dropout", torch.rand(40, 50), 0.5, True)
    [kernel] = run_model(call, H200)
    for out in call.outputs:
        assert_writes(kernel, out)
    assert_reads(kernel, call.outputs[0], call["input"], positions(call["input"]))


def test_a_tensor_of_probabilities_is_read():
    call = call_of("aten::bernoulli", torch.rand(40, 50))
    [kernel] = run_model(call, H200)
    assert_reads(kernel, call.outputs[0], call["self"], positions(call["self"]))
    assert elements(kernel, call["self"], 0)
