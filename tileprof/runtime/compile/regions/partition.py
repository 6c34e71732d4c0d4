"""Regions of a graph replaced by one call each."""

from __future__ import annotations

import heapq
import logging
import operator
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import torch
from torch import fx

from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.region import Finder, Region
from tileprof.runtime.compile.regions.region_op import declare, region_call

LOG: Final = logging.getLogger("tileprof.runtime.compile")


def proposed(graph: fx.Graph, finders: Sequence[Finder], before: Sequence[Region] = ()) -> list[Region]:
    """Return the regions ``before`` and those that the finders propose and that can be replaced: no node is in two of
    them. What cannot is logged and left out.
    """
    regions = list(before)
    region_nodes = {node for region in before for node in region.nodes}
    for finder in finders:
        for region in finder(graph):
            if not region_nodes.isdisjoint(region.nodes):
                continue
            reason = unfit(graph, region)
            if reason is None and _order(graph, [*regions, region]) is None:
                reason = "it and what comes before it need each other's results"
            if reason is not None:
                LOG.warning("%s is left to Inductor: %s", region.name, reason)
                continue
            regions.append(region)
            region_nodes.update(region.nodes)
    return regions


def unfit(graph: fx.Graph, region: Region) -> str | None:
    """Return why a region cannot be replaced by one call; None where it can."""
    nodes = set(region.nodes)
    if not nodes or not region.outputs:
        return "it holds no nodes" if not nodes else "it has no outputs"
    if any(n.op != "call_function" for n in nodes) or len(nodes) != len(region.nodes):
        return "it holds inputs of the graph, or a node twice"
    if set(region.outputs) != set(aten.outputs_of(nodes)):
        return "its outputs are not what the rest of the graph reads"
    read = (*region.inputs, *region.unread)
    if set(read) != set(aten.inputs_of(nodes)) or len(set(read)) != len(read):
        return "its inputs are not what its nodes read"
    if any(aten.tensor(n) is None for n in (*region.inputs, *region.outputs)):
        return "an input or output is not a tensor of sizes that are known"
    updated = {copy: into for copy, into, _ in aten.copies_into(graph) if copy in nodes}
    if set(updated.values()) != {region.inputs[n] for n in region.mutated}:
        return "the inputs that it changes are not those that it says it changes"
    if not all(aten.parameter(region.inputs[n]) for n in region.folded):
        return "a weight that it keeps a copy of is computed by the graph"
    return None


def partitioned(module: fx.GraphModule, regions: Sequence[Region]) -> tuple[fx.GraphModule, dict[str, Region]]:
    """Return the module with a call of `region_op` in each region's place, and the regions by the key that these calls
    give. The module itself stays as it is.
    """
    order = _order(module.graph, regions)
    assert order is not None
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    by_key: dict[str, Region] = {}
    for unit in order:
        if isinstance(unit, fx.Node):
            copies[unit] = graph.node_copy(unit, copies.__getitem__)
            continue
        key = f"{len(by_key)}-{digest(unit)}"
        by_key[key] = unit
        declare(key, tuple(_like(n) for n in unit.outputs))
        updated = [copies[unit.inputs[n]] for n in unit.mutated]
        read = [copies[n] for i, n in enumerate(unit.inputs) if i not in unit.mutated]
        call = graph.call_function(
            region_call(len(unit.outputs), updating=bool(updated)), (key, read, updated) if updated else (key, read)
        )
        for number, node in enumerate(unit.outputs):
            copies[node] = call if len(unit.outputs) == 1 else graph.call_function(operator.getitem, (call, number))
    graph.lint()
    return fx.GraphModule(module, graph), by_key


def digest(region: Region) -> str:
    """Return what a region computes, as a hash: the same in every process, so that Inductor's cache may know the graph
    around it.
    """
    numbers: dict[fx.Node, int] = {}
    text: list[str] = []
    outside = (*region.inputs, *region.unread)
    for node in (*outside, *sorted(region.nodes)):
        numbers[node] = len(numbers)
        value = node.meta.get("val")
        values = value if isinstance(value, list | tuple) else (value,)
        args = "" if node in outside else fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: numbers[n])
        text.append(f"{'' if node in outside else node.target} {args} {[_text(v) for v in values]}")
    text.append(str([[numbers[n] for n in region.outputs], region.mutated]))
    return sha256("\n".join(text).encode()).hexdigest()[:24]


def _text(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{value.dtype} {tuple(value.shape)} {tuple(value.stride())} {value.device.type}"


def _like(node: fx.Node) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    value = node.meta["val"]
    return tuple(value.shape), tuple(value.stride()), value.dtype


def _order(graph: fx.Graph, regions: Iterable[Region]) -> list[fx.Node | Region] | None:
    """Return nodes outside of regions and the regions, each behind all that it needs, otherwise in the graph's order;
    None if some need each other.

    A region that changes an input of the graph comes behind all others that read it.
    """
    nodes = list(graph.nodes)
    unit_of: dict[fx.Node, int] = {n: i for i, n in enumerate(nodes)}
    units: dict[int, fx.Node | Region] = dict(enumerate(nodes))
    for region in regions:
        first = min(unit_of[n] for n in region.nodes)
        for node in region.nodes:
            del units[unit_of[node]]
            unit_of[node] = first
        units[first] = region
    before: dict[int, set[int]] = {number: set() for number in units}
    for node in nodes:
        before[unit_of[node]].update(unit_of[a] for a in node.all_input_nodes)
    for region in regions:
        me = unit_of[region.nodes[0]]
        for number in region.mutated:
            before[me].update(unit_of[n] for n in _readers(region.inputs[number]))
    for number, predecessors in before.items():
        predecessors.discard(number)
    before[len(nodes) - 1] |= set(units) - {len(nodes) - 1}  # what is computed comes before the output node
    return _sorted(units, before)


def _sorted(units: Mapping[int, fx.Node | Region], before: Mapping[int, set[int]]) -> list[fx.Node | Region] | None:
    missing = {number: len(predecessors) for number, predecessors in before.items()}
    after: dict[int, list[int]] = {number: [] for number in units}
    for number, predecessors in before.items():
        for other in predecessors:
            after[other].append(number)
    ready = [number for number, count in missing.items() if count == 0]
    heapq.heapify(ready)
    ordered: list[fx.Node | Region] = []
    while ready:
        number = heapq.heappop(ready)
        ordered.append(units[number])
        for other in after[number]:
            missing[other] -= 1
            if missing[other] == 0:
                heapq.heappush(ready, other)
    return ordered if len(ordered) == len(units) else None


def _readers(node: fx.Node) -> Iterable[fx.Node]:
    """Yield who reads a tensor, through views too."""
    for user in node.users:
        yield user
        if aten.calls(user, *aten.VIEWS):
            yield from _readers(user)
