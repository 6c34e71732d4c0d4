"""Parts that the two recurrent examples share: a stack of cells, unrolled step by step.

Unrolled, a network of ``layers`` cells is a wavefront: the cell of layer l at step t needs layer l - 1 at step t
and itself at step t - 1, and the launches in between are small. Nothing here calls a fused recurrent kernel.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

from tileprof.examples.parts.common import building, forward, parser, positive, print_result, torch


class Unrolled(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Cells of equal width, layer above layer, applied to each step in turn.

    A cell returns its state: a tensor ``[batch, hidden]``, or a tuple of them of which the first is its output.
    """

    def __init__(self, cell: Callable[[int, int], Any], layers: int, hidden: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(cell(hidden, hidden) for _ in range(layers))

    def forward(self, inputs: Any) -> Any:
        """``[steps, batch, hidden]`` to the last layer's outputs, of the same shape."""
        states: list[Any] = [None] * len(self.layers)
        outputs = []
        for value in inputs.unbind(0):
            below = value
            for level, cell in enumerate(self.layers):
                states[level] = cell(below, states[level])
                below = states[level][0] if isinstance(states[level], tuple) else states[level]
            outputs.append(below)
        return torch.stack(outputs)


def run(name: str, cell: Callable[[int, int], Any], description: str | None, argv: Sequence[str] | None) -> None:
    """Run a network of ``cell`` as ``argv`` asks and print one line."""
    options = _options(description, argv)
    with building(options):
        model = Unrolled(cell, options.layers, options.hidden).eval()
        inputs = torch.randn(options.steps, options.batch, options.hidden)
    print_result(name, forward(model, inputs))


def _options(description: str | None, argv: Sequence[str] | None) -> Namespace:
    options = parser(description, batch=32)
    options.add_argument("--layers", type=positive, default=1, help="cells above each other")
    options.add_argument("--hidden", type=positive, default=512, help="width of the state")
    options.add_argument("--steps", type=positive, default=8, help="time steps")
    return options.parse_args(argv)
