"""Every operator of ordinary programs, forward and backward, has a model; it writes all outputs and forgets no read."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.record.model.tiles import taint, watch
from tests.unit.record.model.tiles.oracle import call_of, run_model
from tileprof.record.model.observation import fused_cells
from tileprof.trace.footprint import READ, WRITE

VIEWLESS = {"aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"}
"""Whole layers that the recorder splits before it asks a model."""


class Decoder(nn.Module):
    """A small transformer block with a router: attention written out, two norms, experts chosen by top-k."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.norms = nn.ModuleList([nn.LayerNorm(32), nn.RMSNorm(32)])
        self.qkv = nn.Linear(32, 96)
        self.route = nn.Linear(32, 4)
        self.experts = nn.ModuleList([nn.Linear(32, 32) for _ in range(4)])

    def forward(self, tokens):
        x = self.table(tokens)
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, -1)
        scores = (q @ k.transpose(1, 2)).masked_fill(torch.ones(9, 9).triu(1).bool(), float("-inf"))
        x = nn.functional.dropout(x + scores.softmax(-1) @ v, 0.1)
        flat = self.norms[1](x).reshape(-1, 32)
        weight, choice = self.route(flat).softmax(-1).topk(2, -1)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            row, place = torch.where(choice == i)
            out = out.index_add(0, row, nn.functional.silu(expert(flat[row])) * weight[row, place, None])
        return torch.cat([x.reshape(-1, 32), out], -1) @ torch.cat([self.table.weight] * 2, -1).t()


def step(model, loss, optimiser, **options):
    choice = optimiser(model.parameters(), **options)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    choice.step()
    choice.zero_grad()


def train_decoder(**options):
    model, tokens = Decoder(), torch.randint(0, 50, (3, 9))
    step(model, nn.functional.cross_entropy(model(tokens), tokens.flatten()), torch.optim.AdamW, **options)


def train_convolutions():
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2),
    ]
    layers += [nn.GroupNorm(2, 8), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)]
    model = nn.Sequential(*layers)
    x = torch.rand(2, 3, 16, 18).contiguous(memory_format=torch.channels_last)
    step(model, nn.functional.mse_loss(model(x), torch.rand(2, 4)), torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True)
    with torch.no_grad():
        model.eval()(x)


def train_cells():
    for cell in (nn.LSTMCell(8, 12), nn.GRUCell(8, 12), nn.RNNCell(8, 12), nn.GRUCell(8, 12, bias=False)):
        out = cell(torch.rand(3, 8))
        out = out[0] * out[1] if isinstance(out, tuple) else out
        step(cell, out.square().sum(), torch.optim.Adam, fused=True)


def train_fused_cells():
    with fused_cells.as_on_gpu():
        train_cells()


@pytest.mark.parametrize(
    "program",
    [
        lambda: train_decoder(foreach=True),
        lambda: train_decoder(foreach=False),
        train_convolutions,
        train_cells,
        train_fused_cells,
    ],
    ids=["decoder-foreach", "decoder-one-by-one", "convolutions", "cells", "fused-cells"],
)
def test_training_has_a_model_for_every_operator(program):
    torch.manual_seed(0)
    watched_calls = watch.Watch(taints=True)
    with watched_calls:
        program()
    assert len(watched_calls.counts) > 20
    assert watched_calls.attempts > 50
    assert set(watched_calls.missing) <= VIEWLESS


@pytest.mark.parametrize("model", ["GPT2", "Llama"])
def test_generating_text_has_a_model_for_every_operator(model):
    transformers = pytest.importorskip("transformers")
    small = {
        "GPT2": {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 40, "n_positions": 32},
        "Llama": {
            "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
            "intermediate_size": 48, "vocab_size": 40,
        },
    }[model]  # fmt: skip
    config = getattr(transformers, f"{model}Config")(**small)
    network = transformers.AutoModelForCausalLM.from_config(config).eval()
    watched_calls = watch.Watch()
    with watched_calls, torch.no_grad():
        network(torch.randint(0, 40, (2, 7)))
    assert len(watched_calls.counts) > 10
    assert not watched_calls.missing


def test_the_check_objects_to_a_tile_that_is_missing():
    call = call_of("aten::relu", torch.rand(5000))
    kernels = run_model(call, watch.H200)
    watch.check(call, kernels)
    kernels[0].footprint.boxes.length = kernels[0].footprint.boxes.length - 4
    with pytest.raises(AssertionError, match="does not write all"):
        watch.check(call, kernels)


@pytest.mark.parametrize("lost_read", [0, 1])
def test_a_forgotten_read_shows_in_the_results(lost_read):
    arguments = (torch.rand(30, 40), torch.rand(30, 1))
    call = call_of("aten::mul.Tensor", *arguments)
    kernels = run_model(call, watch.H200)
    function, random = torch.ops.aten.mul.Tensor, np.random.default_rng(0)
    assert taint.check(function, arguments, {}, call, kernels, random) == 2
    boxes = kernels[0].footprint.boxes
    boxes.mode = np.where((boxes.operand == lost_read) & (boxes.mode == READ), WRITE, boxes.mode).astype(np.int8)
    with pytest.raises(AssertionError, match="which no tile read"):
        taint.check(function, arguments, {}, call, kernels, random)


def test_the_check_objects_to_bytes_outside_an_operand():
    call = call_of("aten::relu", torch.rand(5000))
    kernels = run_model(call, watch.H200)
    kernels[0].footprint.boxes.offset = kernels[0].footprint.boxes.offset + 4
    with pytest.raises(AssertionError, match="outside"):
        watch.check(call, kernels)
