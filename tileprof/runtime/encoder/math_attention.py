"""Attention that a graph writes out: PyTorch's math form of scaled_dot_product_attention, in float32 between halves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.aten import ATEN

_STEPS: Final = frozenset({*aten.RESHAPES, ATEN.expand.default, ATEN.clone.default})


@dataclass(frozen=True)
class Attended:
    """Attention in a graph, and all nodes that compute it."""

    call: aten.Attention
    nodes: frozenset[fx.Node]


def attended(node: Any) -> Attended | None:
    """Return the attention that a node calls, or whose softmax it is; None for other nodes."""
    if (call := aten.attention(node)) is not None:
        return Attended(call, frozenset({call.call, call.out}))
    if not aten.calls(node, ATEN._safe_softmax.default):  # noqa: SLF001 - ATen's own name
        return None
    return _Match(node).match()


class _Match:
    def __init__(self, softmax: fx.Node) -> None:
        self._softmax, self._nodes = softmax, {softmax}

    def match(self) -> Attended | None:
        """Match softmax(query s (key s)^T + mask) value, each in float32, rounded at the end.

        Source: `_scaled_dot_product_attention_math` of PyTorch 2.11 and 2.13.
        """
        softmax = self._softmax
        if softmax.args[1:] not in ((-1,), (3,)) or softmax.kwargs:
            return None
        scores, mask = softmax.args[0], None
        if aten.calls(scores, ATEN.add.Tensor) and len(scores.args) == 2 and not scores.kwargs:
            self._nodes.add(scores)
            scores, mask = scores.args
        first, second = self._behind(scores), self._before(softmax)
        if second is None or not aten.calls(first, ATEN.bmm.default) or not aten.calls(second, ATEN.bmm.default):
            return None
        query, query_scale = self._scaled(first.args[0], turned=False)
        key, key_scale = self._scaled(first.args[1], turned=True)
        value = self._widened(self._behind(second.args[1]))
        out, sizes = self._before(second), aten.shape(query)
        if out is None or sizes is None or query_scale is None or key_scale is None or aten.shape(out) != sizes:
            return None
        if aten.shape(key) != aten.shape(value) or not aten.calls(out, ATEN._to_copy.default):  # noqa: SLF001
            return None
        if dict(out.kwargs) != {"dtype": aten.dtype(query)} or aten.shape(mask) == ():
            return None
        self._nodes |= {first, second, out}
        if any(user not in self._nodes for node in self._nodes - {out} for user in node.users):
            return None
        call = aten.Attention(out, softmax, query, key, value, mask, False, query_scale * key_scale)
        return Attended(call, frozenset(self._nodes))

    def _behind(self, node: Any) -> Any:
        """Return the node behind steps that keep the order of elements and the two last sizes."""
        while aten.calls(node, *_STEPS) and self._same_rows(node):
            self._nodes.add(node)
            node = node.args[0]
        return node

    def _before(self, node: fx.Node) -> fx.Node | None:
        """Return the only reader of a node, through such steps, which must read it as its first argument."""
        while (user := aten.only_user(node)) is not None and user.args[0] is node:
            if not aten.calls(user, *_STEPS) or not self._same_rows(user):
                return user
            self._nodes.add(user)
            node = user
        return None

    @staticmethod
    def _same_rows(step: fx.Node) -> bool:
        sizes, before = aten.shape(step), aten.shape(step.args[0])
        if sizes is None or before is None or sizes[-2:] != before[-2:]:
            return False
        return not aten.calls(step, ATEN.expand.default) or sizes == before

    def _scaled(self, node: Any, *, turned: bool) -> tuple[Any, float | None]:
        """Return what is multiplied by a scale, and the scale; ``turned``: its transpose is."""
        node = self._behind(node)
        if not aten.calls(node, ATEN.mul.Scalar) or node.kwargs:
            return None, None
        self._nodes.add(node)
        source, scale = node.args
        if turned:
            if not aten.calls(source, ATEN.transpose.int) or {axis % 4 for axis in source.args[1:]} != {2, 3}:
                return None, None
            self._nodes.add(source)
            source = source.args[0]
        return self._widened(source), float(scale)

    def _widened(self, node: Any) -> Any:
        """Return the halves that a node turns into float32."""
        if not aten.calls(node, ATEN._to_copy.default) or dict(node.kwargs) != {"dtype": torch.float32}:  # noqa: SLF001
            return None
        self._nodes.add(node)
        source = node.args[0]
        return source if len(aten.shape(source) or ()) == 4 else None
