"""Chains that are measured: the field's MLPs, attention blocks and convolution pairs, and copies for pure overhead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tileprof.runtime.chain import Chain
from tileprof.runtime.persistent.cost import clusters_on
from tileprof.runtime.persistent.tile_choice import tiled
from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.pointwise import Pointwise
from tileprof.runtime.stages.view import View

TOKENS: Final = (1, 16, 64, 128, 256, 512, 1024, 2048)
BATCHES: Final = (1, 4, 8, 16, 32)
PROMPTS: Final = (1, 16, 64, 128, 512, 1024, 2048)
"""Tokens of an attention block, which attends to itself alone: keys of earlier tokens, as in decoding, would be an
input that the step's own are written into, and no stage writes what is an input of the pipeline.
"""

RESNET_38: Final = ((56, 64), (28, 128), (14, 256), (7, 512))
VGG_19: Final = ((224, 64), (112, 128), (56, 256), (28, 512), (14, 512))
"""Side of an image and channels of the 3x3 convolutions."""

_SMS: Final = 132
_THOROUGH_TOKENS: Final = (1, 64, 512)
_THOROUGH_LAYERS: Final = ((56, 64, 1), (14, 256, 8), (56, 256, 8))
"""Side, channels and batch."""

_HEAD: Final = 128


@dataclass(frozen=True)
class Case:
    """A measured chain: ``chain`` has tiles for Triton's kernels; ``persistent``: the persistent kernel takes it, too.

    ``thorough``: of the sizes that stand for the others where a row takes long: Triton's kernels beside the persistent
    one, and torch.compile.
    """

    name: str
    chain: Chain
    persistent: bool = False
    thorough: bool = False

    @cached_property
    def wide(self) -> Chain:
        """The chain in tiles for the persistent kernel, searched for when first asked for: half a second."""
        return tiled(self.chain, clusters_on(_SMS))[0]


def copy_pair(tiles: int, rows: int = 4) -> Chain:
    """Return two copies, tile by tile: nothing but synchronisation. A tile is ``rows`` of 2 KiB; 16 of 8 KiB
    fill an SM.
    """
    shape = rows * tiles, 1024
    x, y, z = (View.contiguous(name, shape, "float16") for name in "xyz")
    return Chain(("first", "second"), (Pointwise(x, y, tile=(rows, 1024)), Pointwise(y, z, tile=(rows, 1024))))


def gelu_mlp(tokens: int, up: tuple[int, int], down: tuple[int, int], width: int = 12288, inner: int = 6144) -> Chain:
    """Return GPT-3's MLP on one of eight GPUs; ``up`` and ``down`` are the tiles of its products. Weights lie as
    nn.Linear keeps them.
    """
    x, h, y = (View.contiguous(n, (tokens, c), "float16") for n, c in (("x", width), ("h", inner), ("y", width)))
    first = Gemm(x, _weight("w1", width, inner), h, tile=up, epilogue="gelu")
    second = Gemm(h, _weight("w2", inner, width), y, tile=down)
    return Chain(("up", "down"), (first, second))


def gated_mlp(tokens: int, up: tuple[int, int], down: tuple[int, int], width: int = 8192, inner: int = 2752) -> Chain:
    """Return LLaMA-65B's MLP on one of eight GPUs, gate and up in one product."""
    x, h, y = (View.contiguous(n, (tokens, c), "float16") for n, c in (("x", width), ("h", inner), ("y", width)))
    first = Gemm(x, _weight("w1", width, 2 * inner), h, tile=up, epilogue="silu_gate")
    second = Gemm(h, _weight("w2", inner, width), y, tile=down)
    return Chain(("gate and up", "down"), (first, second))


def attention_block(
    tokens: int, width: int, heads: int, groups: int | None = None, head: int = _HEAD, *, bias: bool = False
) -> Chain:
    """Return queries, keys and values in one product, causal attention over heads of ``head`` columns, and the product
    behind it. ``groups``: heads of keys and values, as many as of queries where not given.
    """
    groups = groups or heads
    inner, outer = heads * head, (heads + 2 * groups) * head
    x, qkv = View.contiguous("x", (tokens, width), "float16"), View.contiguous("qkv", (tokens, outer), "float16")
    q, k, v = (
        View("qkv", (count, tokens, head), (head, outer, 1), "float16", first * head)
        for count, first in ((heads, 0), (groups, heads), (groups, heads + groups))
    )
    middle = View("o", (heads, tokens, head), (head, inner, 1), "float16")
    b1, b2 = (View.contiguous(n, (c,), "float16") if bias else None for n, c in (("b1", outer), ("b2", width)))
    o, y = View.contiguous("o", (tokens, inner), "float16"), View.contiguous("y", (tokens, width), "float16")
    tile = max(16, min(tokens, 128)), 128
    return Chain(
        ("qkv", "attention", "out"),
        (
            Gemm(x, _weight("w1", width, outer), qkv, b1, tile=tile),
            Attention(q, k, v, middle, rows=max(16, min(tokens, 64)), causal=True),
            Gemm(o, _weight("w2", inner, width), y, b2, tile=tile),
        ),
    )


def convolution_pair(batch: int, size: int, channels: int, tile: tuple[int, int]) -> Chain:
    """Return two 3x3 convolutions of equal width with bias and ReLU, as in a residual block."""
    x, h, y = (View.contiguous(n, (batch, size, size, channels), "float16") for n in "xhy")
    w1, w2 = (View.contiguous(n, (channels, 3, 3, channels), "float16") for n in ("w1", "w2"))
    b1, b2 = (View.contiguous(n, (channels,), "float16") for n in ("b1", "b2"))
    first = Conv2d(x, w1, h, b1, tile=tile, padding=1, epilogue="relu")
    second = Conv2d(h, w2, y, b2, tile=tile, padding=1, epilogue="relu")
    return Chain(("first", "second"), (first, second))


def cases() -> Iterator[Case]:
    """Yield what is measured, in order."""
    for rows in (4, 8, 16):
        for waves in (1, 4, 16):
            tiles = 2112 * waves * 4 // rows
            yield Case(f"copy pair, {tiles} tiles of {2 * rows} KiB", copy_pair(tiles, rows))
    for tokens in TOKENS:
        height = max(16, min(tokens, 128))
        chain = gelu_mlp(tokens, (height, 128), (height, 128))
        yield _both(f"GPT-3 MLP TP8, {tokens} tokens", chain, thorough=tokens in _THOROUGH_TOKENS)
    for name, width, inner in (("LLaMA-65B MLP TP8", 8192, 2752), ("LLaMA-7B MLP", 4096, 11008)):
        for tokens in TOKENS:
            height = max(16, min(tokens, 128))
            chain = gated_mlp(tokens, (height, 64), (height, 128), width, inner)
            yield _both(f"{name}, {tokens} tokens", chain, thorough=tokens in _THOROUGH_TOKENS)
    for batch in BATCHES:
        for network, layers in (("ResNet-38", RESNET_38), ("VGG-19", VGG_19)):
            for size, channels in layers:
                tile = (64, 64) if batch * size * size * channels >= _SMS * 4096 else (16, 64)
                name = f"{network}, two 3x3 convolutions, {size} x {size} x {channels}, batch {batch}"
                thorough = (size, channels, batch) in _THOROUGH_LAYERS
                yield _both(name, convolution_pair(batch, size, channels, tile), thorough=thorough)
    for name, width, heads in (("GPT-3", 12288, 12), ("LLaMA-65B", 8192, 8)):
        for tokens in PROMPTS:
            yield Case(f"{name} attention block TP8, {tokens} tokens", attention_block(tokens, width, heads))


def _both(name: str, chain: Chain, *, thorough: bool) -> Case:
    return Case(name, chain, persistent=True, thorough=thorough)


def _weight(name: str, k: int, n: int) -> View:
    """Return a weight as nn.Linear keeps it."""
    return View(name, (k, n), (1, k), "float16")
