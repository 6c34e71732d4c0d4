"""The regions that finders propose are complete: PyTorch computes their nodes instead, and models and caches stay the
same.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.runtime.region_builders import Played
from tileprof.runtime.compile import entry
from tileprof.runtime.compile.racing.report import reports
from tileprof.runtime.compile.regions.finders import FINDERS


class Block(nn.Module):
    """Two convolutions with batch norm, and a connection from the input to the sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x):
        return (self.norms[1](self.second(self.norms[0](self.first(x)).relu())) + x).relu()


class Pictures(nn.Module):
    """A small residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.pool = (
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.MaxPool2d(3, 2, 1),
        )
        self.blocks = nn.Sequential(*(Block(64) for _ in range(3)))
        self.mean, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(64, 128)

    def forward(self, x):
        x = self.blocks(self.pool(self.norm(self.stem(x)).relu()))
        return self.head(self.mean(x).flatten(1))


@pytest.fixture(autouse=True)
def played_regions(monkeypatch):
    """Provide the package's own finders, whose regions PyTorch computes."""

    def played(finder):
        def find(graph):
            for region in finder(graph):
                object.__setattr__(region, "build", lambda _, region=region: Played(region))
                yield region

        return find

    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(entry, "FINDERS", tuple(played(f) for f in FINDERS))
    monkeypatch.setattr(entry, "left_to_inductor", lambda *_: None)
    monkeypatch.setattr(entry.products, "finder", lambda *_: lambda _: iter(()))
    yield
    torch._dynamo.reset()


def compiled(model):
    return torch.compile(model, backend="tileprof", options={"use": "always"})


def test_a_residual_network() -> None:
    model = Pictures().half().eval().to(memory_format=torch.channels_last)
    x = torch.randn(1, 3, 64, 64).half().to(memory_format=torch.channels_last)
    with torch.no_grad(), reports() as matches:
        assert torch.allclose(compiled(model)(x), model(x), atol=1e-3)
    assert "convolutional network" in matches[0].winner
    assert not matches[0].inductor_operators


@pytest.mark.parametrize("sequences", [1, 4])
def test_a_decoder_with_a_static_cache(sequences) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=512,
        max_position_embeddings=256,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.randint(0, 512, (sequences, 20))
    with torch.no_grad(), reports() as matches:
        caches = [transformers.StaticCache(config=config, max_cache_len=64) for _ in range(2)]
        for cache in caches:
            model(input_ids=ids[:, :16], past_key_values=cache)
        ours = compiled(model)
        for at in range(16, 20):
            token = ids[:, at : at + 1].contiguous()
            actual, expected = (
                m(input_ids=token, past_key_values=c).logits for m, c in zip((ours, model), caches, strict=True)
            )
            assert torch.allclose(actual.float(), expected.float(), atol=1e-2)
        for mine, theirs in zip(caches[0].layers, caches[1].layers, strict=True):
            assert torch.allclose(mine.keys.float(), theirs.keys.float(), atol=1e-2)
            assert torch.allclose(mine.values.float(), theirs.values.float(), atol=1e-2)
            assert mine.cumulative_length == theirs.cumulative_length == 20
    assert [r.winner for r in matches] == [f"decoder, 2 layers, {sequences} sequences of bfloat16"]
