"""VGG-19: 16 convolutions of 3x3 in five stages, then three linear layers.

The cuSync authors' benchmark runs the stages of 64, 128, 256 and 512 channels on 56, 28, 14 and 7 pixels squared:
an image of 56 pixels, the default. --image 224 is the published network.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tileprof.examples.parts.common import building, forward, print_result, torch
from tileprof.examples.parts.convolution import conv, image_parser, random_images

nn = torch.nn

STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""Channels and convolutions (Simonyan and Zisserman, ICLR 2015, table 1, column E)."""

SHRINK = 2 ** len(STAGES)
"""Each stage ends in a pooling that halves the image."""


def build(image: int) -> Any:
    """Return the network for square images of ``image`` pixels, with dropout off."""
    model = nn.Sequential()
    before = 3
    for number, (channels, convolutions) in enumerate(STAGES, start=1):
        widths = [before, *[channels] * convolutions]
        layers = [layer for c_in, c_out in pairwise(widths) for layer in (conv(c_in, c_out), nn.ReLU())]
        model.add_module(f"stage{number}", nn.Sequential(*layers, nn.MaxPool2d(2)))
        before = channels
    linear = [nn.Linear(before * (image // SHRINK) ** 2, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    model.add_module("head", nn.Sequential(nn.Flatten(), *linear, nn.Linear(4096, 1000)))
    return model.eval()


def main(argv: Sequence[str] | None = None) -> None:
    """Run VGG-19 as ``argv`` asks and print one line."""
    parser = image_parser(__doc__, image=56)
    options = parser.parse_args(argv)
    if options.image < SHRINK:
        parser.error(f"--image {options.image}: five poolings need at least {SHRINK} pixels")
    with building(options):
        model, images = random_images(build(options.image), options)
    print_result("vgg19", forward(model, images))


if __name__ == "__main__":
    main()
