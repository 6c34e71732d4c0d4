"""A convolutional network as a list of layers, and what it computes in plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Shape = tuple[int, int, int, int]
"""Images, rows, columns, channels: tensors lie in memory in this order."""

INPUT = -1
"""The number that stands for the network's input where layers are numbered."""


@dataclass(frozen=True, slots=True)
class Norm:
    """A batch norm behind a convolution: indices among the parameters (None: there is none), epsilon."""

    weight: int | None
    bias: int | None
    mean: int
    variance: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution or a product with a matrix, then perhaps a batch norm, a residual addition, ReLU, max pooling.

    ``weight``, ``bias`` and those of ``norm`` are indices of parameters. ``reads`` is the shape in which the source is
    seen: a matrix is a row of as many pixels as there are images, and a source of several pixels is one of all their
    channels. ``residual`` is a layer. ``shape`` is the result's, whose pixels are the largest of ``pool`` x ``pool``.
    """

    source: int
    reads: Shape
    shape: Shape
    weight: int
    bias: int | None = None
    norm: Norm | None = None
    residual: int | None = None
    size: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: int = 0
    relu: bool = False
    pool: int = 1
    flat: bool = False
    """True if its results' channels lie in front of their pixels, as in `Flat`; only where it pools."""


@dataclass(frozen=True, slots=True)
class Maximum:
    """Max pooling of square windows."""

    source: int
    reads: Shape
    shape: Shape
    size: int
    stride: int
    padding: int


@dataclass(frozen=True, slots=True)
class Average:
    """The mean of all pixels of an image."""

    source: int
    reads: Shape
    shape: Shape


@dataclass(frozen=True, slots=True)
class Flat:
    """Images as rows of a matrix, whose columns are (channels, rows, columns)."""

    source: int
    reads: Shape
    shape: Shape


@dataclass(frozen=True, slots=True)
class Windows:
    """The input with its channels filled up to ``shape``'s and zeros around it: what a convolution reads as windows.

    ``padding`` rows of zeros are above and columns to the left, the rest below and to the right.
    A window has 32 elements, of which a step is eight.

    ``strides``: of the input's images, channels, rows and columns, in elements.
    """

    source: int
    reads: Shape
    shape: Shape
    padding: int
    strides: tuple[int, int, int, int]


Layer = Convolution | Maximum | Average | Flat | Windows


@dataclass(frozen=True, slots=True)
class Network:
    """Layers in an order in which each comes behind those that it reads; the last one's result is the network's."""

    layers: tuple[Layer, ...]
    dtype: str = "float16"
    names: tuple[str, ...] = field(default=())
    """Names of the layers, for reports."""

    def name(self, number: int) -> str:
        """Return the name of a layer."""
        return self.names[number] if number < len(self.names) else f"layer {number}"


def windowed(network: Network, layer: Layer) -> bool:
    """Return whether a layer is a convolution that reads the input as windows."""
    return isinstance(layer, Convolution) and isinstance(network.layers[layer.source], Windows)


def ending(layer: Convolution, parameters: Sequence[Any] | Mapping[int, Any]) -> tuple[Any, Any]:
    """Scale and bias of each channel of a convolution: its own bias, and its batch norm. Float32, [channels] each."""
    import torch  # noqa: PLC0415 - plans need none

    weight = parameters[layer.weight]
    scale, bias = (torch.full(weight.shape[:1], value, device=weight.device) for value in (1.0, 0.0))
    if layer.bias is not None:
        bias = parameters[layer.bias].detach().float()
    if (norm := layer.norm) is not None:
        scale = (parameters[norm.variance].float() + norm.epsilon).rsqrt()
        if norm.weight is not None:
            scale = scale * parameters[norm.weight].detach().float()
        bias = (bias - parameters[norm.mean].float()) * scale
        if norm.bias is not None:
            bias = bias + parameters[norm.bias].detach().float()
    return scale, bias


def computed(network: Network, x: Any, parameters: Sequence[Any]) -> list[Any]:
    """Return the results of all layers for an input (images, channels, rows, columns), by PyTorch.

    They are rounded where the kernel rounds: after each layer.
    """
    import torch  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    dtype = getattr(torch, network.dtype)
    results: list[Any] = []
    for layer in network.layers:
        image = layer.source == INPUT or windowed(network, layer)
        source = x.permute(0, 2, 3, 1) if image else results[layer.source]
        activations = source.reshape(layer.reads).permute(0, 3, 1, 2).float()
        match layer:
            case Convolution():
                weight, (scale, bias) = parameters[layer.weight].detach(), ending(layer, parameters)
                weight = weight.to(dtype).float().reshape(*weight.shape[:2], *layer.size)
                out = functional.conv2d(activations, weight, None, layer.stride, layer.padding)
                out = out * scale[:, None, None] + bias[:, None, None]
                if layer.residual is not None:
                    out = out + results[layer.residual].float().permute(0, 3, 1, 2)
                out = out.relu() if layer.relu else out
                out = functional.max_pool2d(out, layer.pool) if layer.pool > 1 else out
            case Maximum():
                out = functional.max_pool2d(activations, layer.size, layer.stride, layer.padding)
            case Average():
                out = activations.mean((2, 3), keepdim=True)
            case Flat():
                out = activations.flatten(1)[:, :, None, None]
            case Windows():
                _, rows, columns, channels = layer.shape
                right = columns - activations.shape[3] - layer.padding
                below = rows - activations.shape[2] - layer.padding
                out = functional.pad(
                    activations, (layer.padding, right, layer.padding, below, 0, channels - activations.shape[1])
                )
        lie = out if isinstance(layer, Convolution) and layer.flat else out.permute(0, 2, 3, 1)
        results.append(lie.reshape(layer.shape).to(dtype).contiguous())
    return results
