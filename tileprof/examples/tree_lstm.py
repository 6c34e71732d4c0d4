"""Child-sum Tree-LSTM (Tai et al., 2015) over a random tree, a node at a time.

Another tree for each seed; nodes of one generation do not depend on each other.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tileprof.examples.parts.common import building, positive, print_result, stepped, stepping, torch

nn = torch.nn


class TreeLstm(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A node's state from its word and its children's states."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_word = nn.Linear(width, 3 * width)
        self.of_children = nn.Linear(width, 3 * width, bias=False)
        self.forget_word = nn.Linear(width, width)
        self.forget_child = nn.Linear(width, width, bias=False)

    def forward(self, words: Any, children: list[list[int]]) -> Any:
        """``[nodes, batch, width]`` words, children before their parents; the root's state ``[batch, width]``."""
        states: list[tuple[Any, Any]] = []
        for word, below in zip(words, children, strict=True):
            gates = self.of_word(word)
            if below:
                gates = gates + self.of_children(torch.stack([states[child][0] for child in below]).sum(dim=0))
            inputs, output, update = gates.chunk(3, dim=-1)
            cell = inputs.sigmoid() * update.tanh()
            for child in below:
                hidden, before = states[child]
                cell = cell + (self.forget_word(word) + self.forget_child(hidden)).sigmoid() * before
            states.append((output.sigmoid() * cell.tanh(), cell))
        return states[-1][0]


def tree(leaves: int, seed: int) -> list[list[int]]:
    """Children of each node of a random tree, before their parents; the last node is the root."""
    dice = random.Random(seed)  # noqa: S311 - a program's data, no secret
    children: list[list[int]] = [[] for _ in range(leaves)]
    roots = list(range(leaves))
    while len(roots) > 1:
        picked_roots = sorted(dice.sample(range(len(roots)), min(len(roots), dice.choice((2, 2, 3)))), reverse=True)
        children.append([roots.pop(at) for at in picked_roots])
        roots.append(len(children) - 1)
    return children


def main(argv: Sequence[str] | None = None) -> None:
    """Run the tree as ``argv`` asks and print one line."""
    options = stepping(__doc__, batch=8)
    options.add_argument("--leaves", type=positive, default=32, help="leaves of the tree")
    options.add_argument("--width", type=positive, default=512, help="width of a state")
    values = options.parse_args(argv)
    children = tree(values.leaves, values.seed)
    with building(values):
        model = TreeLstm(values.width).eval()
        words = torch.randn(len(children), values.batch, values.width)
        print_result("tree_lstm", stepped("tree_lstm", values, lambda: model(words, children)))


if __name__ == "__main__":
    main()
