"""Small modules of every family for which policies exist, recorded in this process."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import tileprof
from tileprof import devices
from tileprof.analysis import build_graph
from tileprof.analysis.dependencies.graph import TileGraph
from tileprof.record import Options
from tileprof.record.model.session import Session
from tileprof.record.model.tiles import load_all


class GeluMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(192, 96), nn.Linear(96, 192, bias=False)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


class LlamaMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(*n, bias=False) for n in ((192, 136), (192, 136), (136, 192)))

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class SwigluMlp(nn.Module):
    """Gate and up projection in one product, as cuSync's authors have it: the gate reads half of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Linear(192, 272, bias=False), nn.Linear(136, 192, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


class Attention(nn.Module):
    heads, depth = 4, 16

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = (t.view(-1, self.heads, self.depth).transpose(0, 1) for t in self.qkv(x).split(64, dim=-1))
        scores = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / 4, dim=-1)
        return self.out(torch.bmm(scores, v).transpose(0, 1).reshape(-1, 64))


class ResidualPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(16, 24, 3, padding=1, stride=2), nn.Conv2d(24, 24, 3, padding=1)

    def forward(self, x):
        hidden = functional.relu_(self.conv1(x))
        return functional.relu(hidden + self.conv2(hidden))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x):
        return self.conv2(functional.relu(self.conv1(x)))


class NormedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x):
        return self.linear(self.norm(x)).relu_() + x


class DeepProduct(nn.Module):
    """A product with few results and deep sums, split along k."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 2048).half(), nn.Linear(2048, 64).half()

    def forward(self, x):
        return self.second(self.first(x))


def matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns)


MODULES = {
    "gpt3_mlp": (GeluMlp, lambda: matrix(150, 192)),
    "llama_mlp": (LlamaMlp, lambda: matrix(150, 192)),
    "swiglu_mlp": (SwigluMlp, lambda: matrix(150, 192)),
    "attention": (Attention, lambda: matrix(80, 64)),
    "resnet_pair": (ResidualPair, lambda: torch.randn(2, 16, 19, 17).to(memory_format=torch.channels_last)),
    "convolutions": (Convolutions, lambda: torch.randn(1, 16, 20, 20).to(memory_format=torch.channels_last)),
    "normed_block": (NormedBlock, lambda: matrix(70, 64)),
    "deep_product": (DeepProduct, lambda: matrix(64, 64).half()),
}


TILES = ("gemm=32x32x16,split=1", "conv=32x16x16,split=1", "gemm@*x64x2048=32x32x16,split=4")
"""Tile shapes are given, so that the rules of a device decide nothing here."""


def recorded_module(name: str, path: Path) -> tuple[nn.Module, torch.Tensor, TileGraph]:
    """Return the module, its input, and the graph of one forward pass."""
    torch.manual_seed(0)
    kind, inputs = MODULES[name]
    module, x = kind(), inputs()
    if x.dim() == 4:
        module = module.to(memory_format=torch.channels_last)
    return module, x, record(lambda: module(x), path, tile=TILES)


def record(program, path: Path, *, fake: bool = False, tile: tuple[str, ...] = (), device: str = "H200") -> TileGraph:
    """Return the graph of what ``program`` runs, on a modelled GPU."""
    load_all()
    session = Session(Options(program=("test",), output=path, fake=fake, tile=tile), devices.get(device), ["test"])
    session.start()
    try:
        with torch.no_grad(), tileprof.capture():
            program()
    finally:
        session.stop()
    assert session.failure is None
    session.writer.close()
    return build_graph(tileprof.load(path))
