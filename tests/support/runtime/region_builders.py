"""Regions that PyTorch computes, and graphs whose regions run on a CPU."""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from tileprof.runtime.compile.racing.runners import Lane
from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.partition import partitioned, proposed
from tileprof.runtime.compile.regions.region import Region
from tileprof.runtime.compile.regions.region_op import running


class Played:
    """Return a runner that computes a region's nodes by PyTorch.

    ``shift`` is added to its results; ``error`` is raised after ``calls`` calls.
    """

    def __init__(self, region, *, frozen=False, shift=0.0, error=None, calls=0) -> None:
        self.region, self.frozen, self.shift, self.error, self.calls = region, frozen, shift, error, calls
        self.folded = None

    def __call__(self, *inputs):
        if self.error is not None and self.calls == 0:
            raise self.error
        self.calls -= 1
        if self.frozen:  # constants that it has folded once stay folded
            self.folded = self.folded or [inputs[n].clone() for n in self.region.folded]
            inputs = list(inputs)
            for number, copy in zip(self.region.folded, self.folded, strict=True):
                inputs[number] = copy
        values = dict(zip(self.region.inputs, inputs, strict=True))
        for node in sorted(self.region.nodes):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
        return tuple(values[n].clone() + self.shift if self.shift else values[n].clone() for n in self.region.outputs)

    def check(self) -> None:
        pass


def played(nodes, name="a part", *, folded=(), **how) -> Region:
    """Return a region of these nodes, computed by PyTorch."""
    nodes = tuple(sorted(nodes))
    inputs = aten.inputs_of(nodes)
    updated = [n.args[0] for n in nodes if aten.calls(n, aten.ATEN.copy_.default)]
    result: list[Region] = []
    region = Region(
        name, nodes, tuple(inputs), aten.outputs_of(nodes), tuple(inputs.index(n) for n in updated),
        lambda _: Played(result[0], **how), tuple(inputs.index(n) for n in folded),
    )  # fmt: skip
    result.append(region)
    return region


def between(graph, first, last):
    """Return the operations of a graph from one operator to another, without views of parameters."""
    nodes = list(graph.nodes)
    begin = next(i for i, n in enumerate(nodes) if aten.calls(n, first))
    end = max(i for i, n in enumerate(nodes) if aten.calls(n, last))
    transposes = {n for n in nodes if aten.calls(n, aten.ATEN.t.default) and aten.parameter(n.args[0])}
    return [n for n in nodes[begin : end + 1] if n.op == "call_function" and n not in transposes]


def replaced(module, *finders):
    """Return the number of regions, and a function that runs the graph with them."""
    regions = proposed(module.graph, finders)
    new_module, by_key = partitioned(module, regions)

    def run(*args):
        with running(Lane.built(by_key, torch.device("cpu")).call):
            return new_module(*args)

    return len(regions), run


def graph_of(function, *inputs):
    with torch.no_grad():
        return make_fx(function)(*inputs)
