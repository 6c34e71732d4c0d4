"""A small residual network with every kind of layer, for tests."""

from __future__ import annotations

from typing import Any

import torch

from tileprof.runtime.convnet.network import INPUT, Average, Convolution, Flat, Maximum, Network, Norm, Windows

SIDE = 32


def parameters(dtype: str = "float16", seed: int = 0) -> list[Any]:
    """Return the parameters of `small`, some of them of batch norms."""
    result = torch.Generator().manual_seed(seed)

    def some(*size: int) -> Any:
        deep = size[1] * size[2] * size[3] if len(size) == 4 else size[1] if len(size) == 2 else 4
        return (torch.randn(*size, generator=result) / deep**0.5).to(getattr(torch, dtype))

    def norm(channels: int) -> list[Any]:
        return [1 + some(channels), some(channels), some(channels), 1 + some(channels).abs()]

    return [
        some(64, 3, 7, 7), *norm(64), some(64, 64, 3, 3), some(128, 64, 3, 3), some(128, 64, 1, 1),
        some(128, 128, 3, 3), some(128),
        some(64, 128, 1, 1), some(40, 64), some(40), some(24, 64 * 16), some(24),
    ]  # fmt: skip


def small(images: int, dtype: str = "float16", *, flattened: bool = False) -> Network:
    """Return a stem, max pooling, two blocks with residuals, a 1x1 convolution, the mean (or all pixels), and a
    product.
    """
    n, half, quarter = images, (images, 8, 8, 64), (images, 4, 4, 128)
    layers = (
        Windows(INPUT, (n, SIDE, SIDE, 3), (n, SIDE + 7, 40, 4), 3, (3 * SIDE * SIDE, 1, 3 * SIDE, 3)),
        Convolution(
            0, (n, SIDE, SIDE, 3), (n, 16, 16, 64), 0, None, Norm(1, 2, 3, 4, 1e-5),
            size=(7, 7), stride=2, padding=3, relu=True,
        ),
        Maximum(1, (n, 16, 16, 64), half, 3, 2, 1),
        Convolution(2, half, half, 5, residual=2, size=(3, 3), padding=1, relu=True),
        Convolution(3, half, quarter, 6, size=(3, 3), stride=2, padding=1, relu=True),
        Convolution(3, half, quarter, 7, stride=2),
        Convolution(4, quarter, quarter, 8, 9, residual=5, size=(3, 3), padding=1, relu=True),
        Convolution(6, quarter, (n, 4, 4, 64), 10),
        Average(7, (n, 4, 4, 64), (n, 1, 1, 64)),
        Convolution(8, (1, 1, n, 64), (1, 1, n, 40), 11, 12, relu=True),
    )  # fmt: skip
    if flattened:
        flat = Flat(7, (n, 4, 4, 64), (n, 1, 1, 1024))
        layers = (*layers[:8], flat, Convolution(8, (1, 1, n, 1024), (1, 1, n, 24), 13, 14))
    return Network(layers, dtype)


def pooling(images: int, dtype: str = "float16") -> Network:
    """Return convolutions with pooling over windows and channels, which end with an odd number of pixels."""
    n = images
    layers = (
        Windows(INPUT, (n, SIDE, SIDE, 3), (n, SIDE + 3, SIDE + 4, 8), 1, (3 * SIDE * SIDE, 1, 3 * SIDE, 3)),
        Convolution(0, (n, SIDE, SIDE, 3), (n, 16, 16, 64), 0, size=(3, 3), padding=1, relu=True, pool=2),
        Convolution(1, (n, 16, 16, 64), (n, 8, 8, 64), 1, size=(3, 3), padding=1, relu=True, pool=2),
        Convolution(2, (n, 8, 8, 64), (n, 7, 7, 128), 2, size=(2, 2)),
        Convolution(3, (n, 7, 7, 128), (n, 3, 3, 40), 3, 4, size=(3, 3), padding=1, relu=True, pool=2),
        Convolution(3, (n, 7, 7, 128), (n, 3, 3, 64), 5, size=(3, 3), padding=1, relu=True, pool=2, flat=True),
        Convolution(5, (1, 1, n, 576), (1, 1, n, 24), 6),
    )
    return Network(layers, dtype)


def pooling_parameters(dtype: str = "float16", seed: int = 0) -> list[Any]:
    """Return the parameters of `pooling`."""
    result = torch.Generator().manual_seed(seed)
    sizes = [(64, 3, 3, 3), (64, 64, 3, 3), (128, 64, 2, 2), (40, 128, 3, 3), (40,), (64, 128, 3, 3), (24, 576)]
    deep = [27, 576, 256, 1152, 4, 1152, 576]
    kind = getattr(torch, dtype)
    return [(torch.randn(*s, generator=result) / d**0.5).to(kind) for s, d in zip(sizes, deep, strict=True)]


def image(images: int, dtype: str = "float16", seed: int = 1) -> Any:
    """Return an input of `small`, channels last."""
    result = torch.randn(images, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
    return result.to(getattr(torch, dtype)).to(memory_format=torch.channels_last)
