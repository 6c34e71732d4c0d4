"""Cells with branches that do not depend on each other, one after another.

Inception's (Szegedy et al., 2014), as in GoogLeNet, or with ``--kind nasnet`` cells in the manner of NASNet-A (Zoph et
al., 2017): five sums of two branches each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileprof.examples.parts.common import building, positive, print_result, stepped, stepping, torch

nn = torch.nn


def convolution(inputs: int, outputs: int, width: int, groups: int = 1) -> Any:
    """Return a convolution that keeps the image's size, normalised, with ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, width, padding=width // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def separable(channels: int, width: int) -> Any:
    """Return a convolution of each channel by itself, then one of each pixel."""
    return nn.Sequential(convolution(channels, channels, width, groups=channels), convolution(channels, channels, 1))


class Inception(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Four branches, side by side in the result: 1x1, 3x3, 5x5, and a pool."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        part = channels // 4
        self.branches = nn.ModuleList(
            [
                convolution(channels, part, 1),
                nn.Sequential(convolution(channels, part // 2, 1), convolution(part // 2, part, 3)),
                nn.Sequential(convolution(channels, part // 4, 1), convolution(part // 4, part, 5)),
                nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), convolution(channels, part, 1)),
            ]
        )

    def forward(self, x: Any) -> Any:
        """``[batch, channels, height, width]``, as is the result."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class NasNet(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Five sums of two branches, side by side, and back to as many channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        part = channels // 4
        self.before = convolution(channels, part, 1)
        self.left = nn.ModuleList(separable(part, width) for width in (5, 3, 3, 5, 3))
        self.right = nn.ModuleList(
            [separable(part, 3), nn.AvgPool2d(3, 1, 1), nn.Identity(), nn.MaxPool2d(3, 1, 1), nn.Identity()]
        )
        self.after = convolution(5 * part, channels, 1)

    def forward(self, x: Any) -> Any:
        """``[batch, channels, height, width]``, as is the result."""
        h = self.before(x)
        return self.after(
            torch.cat([left(h) + right(h) for left, right in zip(self.left, self.right, strict=True)], dim=1)
        )


CELLS: dict[str, Any] = {"inception": Inception, "nasnet": NasNet}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the cells as ``argv`` asks and print one line."""
    options = stepping(__doc__)
    options.add_argument("--kind", choices=sorted(CELLS), default="inception", help="cells")
    options.add_argument("--cells", type=positive, default=9, help="cells in a row")
    options.add_argument("--channels", type=positive, default=256, help="channels between cells")
    options.add_argument("--size", type=positive, default=14, help="height and width")
    values = options.parse_args(argv)
    with building(values):
        model = nn.Sequential(*(CELLS[values.kind](values.channels) for _ in range(values.cells))).eval()
        image = torch.randn(values.batch, values.channels, values.size, values.size)
        print_result("inception", stepped(values.kind, values, lambda: model(image)))


if __name__ == "__main__":
    main()
