"""ResNet-38 as in the cuSync paper: 3, 4, 6 and 3 residual blocks of two 3x3 convolutions each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileprof.examples.parts.common import building, forward, print_result, torch
from tileprof.examples.parts.convolution import conv, image_parser, random_images

nn = torch.nn

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Channels and residual blocks; at 224 pixels the stages work on 56, 28, 14 and 7 pixels squared."""


class Residual(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Two 3x3 convolutions of equal width and the sum with their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = conv(channels, channels)
        self.conv2 = conv(channels, channels)

    def forward(self, x: Any) -> Any:
        """``[batch, channels, height, width]`` to the same shape."""
        return nn.functional.relu(x + self.conv2(nn.functional.relu(self.conv1(x))))


def build() -> Any:
    """Return the network.

    Batch norms are folded into the convolutions' biases, as for inference.

    A strided 1x1 convolution stands between stages, so that every block has the shapes of the paper's table.
    """
    layers: dict[str, Any] = {
        "stem": nn.Sequential(conv(3, 64, kernel=7, stride=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)),
    }
    for number, (channels, blocks) in enumerate(STAGES, start=1):
        if number > 1:
            layers[f"down{number}"] = conv(STAGES[number - 2][0], channels, kernel=1, stride=2)
        layers[f"stage{number}"] = nn.Sequential(*(Residual(channels) for _ in range(blocks)))
    layers["head"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(STAGES[-1][0], 1000))
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model.eval()


def main(argv: Sequence[str] | None = None) -> None:
    """Run ResNet-38 as ``argv`` asks and print one line."""
    options = image_parser(__doc__, image=224).parse_args(argv)
    with building(options):
        model, images = random_images(build(), options)
    print_result("resnet38", forward(model, images))


if __name__ == "__main__":
    main()
