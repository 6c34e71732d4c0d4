"""Inductor, for whole graphs and for what is left of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from tileprof.runtime.compile.regions.region_op import NAMESPACE


def inductor(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return a graph of Dynamo by Inductor, as ``torch.compile`` has it by default.

    The graph is Inductor's from then on.
    """
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415 - slow to import

    program: Callable[..., Any] = compile_fx(module, inputs)
    return program


def rest_by_inductor(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return a graph of ATen operations by Inductor, on its own: not as a part of what Dynamo or AOTAutograd may be
    tracing now. A graph that consists of regions alone runs as it is: importing Inductor takes seconds.
    """
    if not any(_computes(node) for node in module.graph.nodes):
        return rest_by_pytorch(module, inputs)
    from torch._guards import TracingContext, detect_fake_mode, tracing  # noqa: PLC0415 - slow to import

    without_autocast = torch._C._DisableAutocast  # noqa: SLF001 - as Inductor turns it off
    with torch.no_grad(), without_autocast(), tracing(TracingContext(detect_fake_mode(inputs))):
        return inductor(module, inputs)


def rest_by_pytorch(module: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    """Return a graph of ATen operations one by one."""
    forward: Callable[..., Any] = module.forward
    return forward


def _computes(node: fx.Node) -> bool:
    """Return whether a node is an operation of PyTorch's that a kernel is needed for."""
    if node.op != "call_function":
        return node.op in {"call_method", "call_module"}
    return node.target is not operator.getitem and getattr(node.target, "namespace", "") != NAMESPACE


def own_copy(module: fx.GraphModule) -> fx.GraphModule:
    """Return a graph of Dynamo that may be traced while the first one is given to Inductor. Attributes are shared."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(module, graph)
