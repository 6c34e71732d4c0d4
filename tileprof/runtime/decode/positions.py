"""The positions that a graph attends, and those at which it appends, as functions of one counter, or as constants:
evaluated for every value that the counter may have.

Small whole-number subgraphs (ranges, sums, comparisons) have many equivalent forms. Instead of a list of forms, the
subgraph is run for each number of cached tokens and compared with what the kernel does, so that nothing is taken that
differs anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.aten import ATEN

_ALLOWED: Final = frozenset(
    {
        ATEN.arange.default,
        ATEN.arange.start,
        ATEN.arange.start_step,
        ATEN.add.Tensor,
        ATEN.sub.Tensor,
        ATEN.le.Tensor,
        ATEN.lt.Tensor,
        ATEN.ge.Tensor,
        ATEN.gt.Tensor,
        ATEN.le.Scalar,
        ATEN.lt.Scalar,
        ATEN.ge.Scalar,
        ATEN.gt.Scalar,
        ATEN.bitwise_and.Tensor,
        ATEN.bitwise_or.Tensor,
        ATEN.logical_and.default,
        ATEN.new_ones.default,
        ATEN.ones.default,
        ATEN.full.default,
        ATEN.scalar_tensor.default,
        ATEN.where.self,
        ATEN.where.ScalarSelf,
        ATEN.unsqueeze.default,
        ATEN.expand.default,
        ATEN.view.default,
        ATEN.alias.default,
        ATEN.slice.Tensor,
        ATEN.squeeze.dim,
        ATEN.index.Tensor,
        ATEN.eq.Tensor,
        ATEN.eq.Scalar,
        ATEN.ne.Tensor,
        ATEN.ne.Scalar,
        ATEN.cumsum.default,
        ATEN.cat.default,
        ATEN.bitwise_not.default,
        ATEN.logical_not.default,
        ATEN.select.int,
        ATEN._to_copy.default,  # noqa: SLF001 - ATen's own name
    }
)
_MOST_NODES: Final = 64
_MOST_MASKED: Final = -65504.0
"""Added to a score, this or less leaves a position no weight beside any other."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A tensor that the graph computes from one counter alone, an int64 scalar that comes in, or from nothing that
    comes in.
    """

    node: fx.Node
    counter: fx.Node | None
    nodes: tuple[fx.Node, ...]

    @property
    def structure(self) -> str:
        """Equal for tensors that are computed in the same way, as each layer's mask mostly is."""
        number: dict[fx.Node | None, str] = {node: f"%{n}" for n, node in enumerate(self.nodes)} | {self.counter: "%"}
        return "\n".join(
            f"{node.target} {fx.node.map_arg((node.args, node.kwargs), number.__getitem__)}" for node in self.nodes
        )

    def values(self, most: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each number below ``most``, and what the node is where the counter has it."""
        for count in range(most):
            values_of: dict[fx.Node, Any] = {} if self.counter is None else {self.counter: torch.tensor(count)}
            for node in self.nodes:
                args = fx.node.map_arg(node.args, values_of.__getitem__)
                kwargs = {k: v for k, v in node.kwargs.items() if k not in {"device", "pin_memory", "layout"}}
                values_of[node] = node.target(*args, **fx.node.map_arg(kwargs, values_of.__getitem__))
            yield count, values_of[self.node]


def computed(node: fx.Node) -> Computed | None:
    """Return the subgraph behind a node, if it reads one counter at most and nothing else."""
    operations: set[fx.Node] = set()
    counters: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        at = waiting.pop()
        if aten.parameter(at):
            counters.add(at)
        elif at not in operations:
            if not aten.calls(at, *_ALLOWED) or len(operations) >= _MOST_NODES:
                return None
            operations.add(at)
            waiting.extend(at.all_input_nodes)
    if len(counters) > 1:
        return None
    counter = counters.pop() if counters else None
    if counter is not None and (aten.shape(counter) != () or aten.dtype(counter) is not torch.int64):
        return None
    return Computed(node, counter, tuple(sorted(operations)))


def is_counter(index: Computed, cache: int) -> bool:
    """Return whether an index is the counter itself, for all positions of the cache."""
    return index.counter is not None and all(
        value.numel() == 1 and int(value) == count for count, value in index.values(cache)
    )


def is_causal(mask: Computed, cache: int) -> bool:
    """Return whether a mask to be added attends the positions up to the counter's, and no others."""
    positions = torch.arange(cache)
    for count, value in mask.values(cache):
        row = value.reshape(-1, cache)
        attended = (positions <= count).expand_as(row)
        if not bool(torch.where(attended, row == 0, row <= _MOST_MASKED).all()):
            return False
    return True


def is_triangle(mask: Computed, tokens: int) -> bool:
    """Return whether a constant mask that is added lets each token attend to itself and earlier tokens only."""
    ((_, value),) = mask.values(1)
    rows = value.reshape(-1, tokens, tokens)
    attended = torch.ones(tokens, tokens, dtype=torch.bool).tril().expand_as(rows)
    return bool(torch.where(attended, rows == 0, rows <= _MOST_MASKED).all())
