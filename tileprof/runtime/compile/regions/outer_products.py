"""Batched products over a single column, as multiplications, which Inductor fuses with what is around them.

The angles of rotary embeddings are one: frequencies times positions. As a product it costs a call of cuBLAS and parts
the few kernels beside a decoder.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import fx

from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.aten import ATEN


def outer_products_as_multiplications(graph: fx.Graph, excluded: Collection[fx.Node]) -> int:
    """Replace such products, except for those that are ``excluded``; how many there were. Each element is one product,
    rounded once, either way.
    """
    replacements = 0
    for node in list(graph.nodes):
        if not aten.calls(node, ATEN.bmm.default) or node in excluded:
            continue
        first, second = node.args
        columns, value = aten.shape(first), aten.tensor(node)
        if columns is None or value is None or columns[2] != 1 or not value.is_contiguous():
            continue
        with graph.inserting_before(node):
            multiplication = graph.call_function(ATEN.mul.Tensor, (first, second))
        with value.fake_mode:
            multiplication.meta["val"] = ATEN.mul.Tensor(first.meta["val"], second.meta["val"])
        if multiplication.meta["val"].stride() != value.stride() or multiplication.meta["val"].dtype != value.dtype:
            graph.erase_node(multiplication)
            continue
        node.replace_all_uses_with(multiplication)
        graph.erase_node(node)
        replacements += 1
    return replacements
