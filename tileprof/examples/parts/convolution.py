"""Parts that the two convolutional examples share: the layer, the options, the input."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from tileprof.examples.parts.common import parser, positive, torch


def conv(c_in: int, c_out: int, kernel: int = 3, stride: int = 1) -> Any:
    """Return a convolution with bias that keeps the image's size, except for its stride."""
    return torch.nn.Conv2d(c_in, c_out, kernel, stride=stride, padding=kernel // 2)


def image_parser(description: str | None, *, image: int) -> ArgumentParser:
    """Options of a program that works on images of ``image`` pixels squared by default."""
    options = parser(description)
    options.add_argument("--image", type=positive, default=image, help="height and width of the image in pixels")
    options.add_argument("--channels-last", action="store_true", help="NHWC memory layout instead of NCHW")
    return options


def random_images(model: Any, options: Namespace) -> tuple[Any, Any]:
    """Return the model and its random input ``[batch, 3, image, image]``, both in the layout asked for."""
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d):  # Module.to(memory_format=...) fails on fake tensors (torch 2.13)
            layer.weight = torch.nn.Parameter(layer.weight.detach().contiguous(memory_format=layout))
    images = torch.randn(options.batch, 3, options.image, options.image)
    return model, images.contiguous(memory_format=layout)
