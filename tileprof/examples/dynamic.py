"""Networks whose path depends on their input.

``exits`` is a residual network that ends at the first exit that is sure enough (as BranchyNet, Teerapittayanon et al.,
2016); in ``gated`` a controller picks some branches of each block, in the manner of InstaNAS (Cheng et al., 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileprof.examples.inception import convolution
from tileprof.examples.parts.common import building, positive, print_result, stepped, stepping, torch

nn = torch.nn
SURE = 0.9


class Residual(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Two convolutions beside a shortcut of one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.deep = nn.Sequential(convolution(channels, channels, 3), convolution(channels, channels, 3))
        self.short = convolution(channels, channels, 1)

    def forward(self, x: Any) -> Any:
        """``[batch, channels, height, width]``, as is the result."""
        return (self.deep(x) + self.short(x)).relu()


class Exits(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Blocks, each with an exit."""

    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual(channels) for _ in range(blocks))
        self.exits = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 100)) for _ in range(blocks)
        )

    def forward(self, x: Any) -> Any:
        """``[batch, channels, height, width]`` to ``[batch, 100]``."""
        answer = x
        for block, leave in zip(self.blocks, self.exits, strict=True):
            x = block(x)
            answer = leave(x)
            if bool((answer.softmax(dim=-1).amax(dim=-1) > SURE).all()):
                break
        return answer


class Gated(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Blocks of six branches; a controller picks at least two of each."""

    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.controller = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 6 * blocks))
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(
                    convolution(channels, channels // 4, 1),
                    convolution(channels // 4, channels // 4, width),
                    convolution(channels // 4, channels, 1),
                )
                for width in (1, 3, 5, 1, 3, 5)
            )
            for _ in range(blocks)
        )

    def forward(self, x: Any) -> Any:
        """``[batch, channels, height, width]``, as is the result."""
        chosen = self.controller(x).mean(dim=0).view(len(self.blocks), -1).argsort(dim=-1, descending=True)
        for branches, order in zip(self.blocks, chosen.tolist(), strict=True):
            branch_results = [branches[number](x) for number in order[: 2 + order[0] % 4]]
            x = torch.stack([x, *branch_results]).sum(dim=0)
        return x


KINDS: dict[str, Any] = {"exits": Exits, "gated": Gated}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the network as ``argv`` asks and print one line."""
    options = stepping(__doc__, capturable=False)
    options.add_argument("--kind", choices=sorted(KINDS), default="gated", help="network")
    options.add_argument("--blocks", type=positive, default=6, help="blocks")
    options.add_argument("--channels", type=positive, default=128, help="channels")
    options.add_argument("--size", type=positive, default=14, help="height and width")
    values = options.parse_args(argv)
    with building(values):
        model = KINDS[values.kind](values.channels, values.blocks).eval()
        image = torch.randn(values.batch, values.channels, values.size, values.size)
        print_result("dynamic", stepped(values.kind, values, lambda: model(image)))


if __name__ == "__main__":
    main()
