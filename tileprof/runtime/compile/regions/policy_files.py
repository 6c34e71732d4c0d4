"""Policy files in a graph of ATen operations: where a graph computes what the stages of a file do, the file's pipeline
runs there, in its own tiles.

A stage is matched from its product onwards: the operation itself, then batch norm, activation and residual, each the
only reader of what is before it. Tensors of the file are bound to nodes as they come up; two stages that name one
tensor must then read one value. What a file calls its tensors does not matter, only how they lie.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx

from tileprof.errors import UserError
from tileprof.policy.format import Policy, load_policy
from tileprof.policy.format.symbolic import SymbolicPolicy, load_symbolic
from tileprof.runtime.chain import Chain
from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.aten import ATEN
from tileprof.runtime.compile.regions.products import pipeline_on
from tileprof.runtime.compile.regions.region import Finder, Region, Runner
from tileprof.runtime.pipeline import Pipeline
from tileprof.runtime.stages.conv import NORM_ROLES, Conv2d
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.pointwise import Pointwise
from tileprof.runtime.stages.view import View

LOG: Final = logging.getLogger("tileprof.runtime.compile")

_PRODUCTS: Final = {ATEN.mm.default: 0, ATEN.addmm.default: 1, ATEN.convolution.default: 0}
"""Operations that stages begin with, and the place of the first factor among their arguments."""

_FUNCTIONS: Final = {ATEN.relu.default: "relu", ATEN.silu.default: "silu", ATEN.gelu.default: "gelu"}
_COMBINED: Final = {ATEN.add.Tensor: "add", ATEN.mul.Tensor: "multiply"}
_CHANNELS_LAST: Final = (0, 2, 3, 1)

AnyPolicy = Policy | SymbolicPolicy


def load_policies(path: Path) -> AnyPolicy:
    """Return the policy of a file, for one size or for a range; raises `PolicyError`."""
    return load_symbolic(path) or load_policy(path)


def finder(policies: Mapping[Path, AnyPolicy], scheduler: str) -> Finder:
    """Yield who looks for the stages of policy files; a file that fits nowhere is warned of.

    ``scheduler``: as of `tileprof.runtime.policy_on_gpu.GpuPipeline`.
    """

    def regions(graph: fx.Graph) -> Iterator[Region]:
        for path, policy in policies.items():
            count = 0
            for one in _at_sizes(policy, graph):
                for match in _matches(one, graph):
                    count += 1
                    yield match.region(one, scheduler)
            if not count:
                LOG.warning("the stages of %s are nowhere in this graph: the policy is not used", path)

    return regions


def _at_sizes(policy: AnyPolicy, graph: fx.Graph) -> Iterator[Policy]:
    """Yield the policy; of one for a range of sizes, those that products of the graph have."""
    if isinstance(policy, Policy):
        yield policy
        return
    shapes = [aten.shape(node) for node in graph.nodes if aten.calls(node, *_PRODUCTS)]
    for size in sorted({shape[0] for shape in shapes if shape}):
        if policy.symbol.refusal(size) is None:
            yield policy.at(size)


def _matches(policy: Policy, graph: fx.Graph) -> Iterator[_Match]:
    try:
        chain = Chain.of_policy(policy)
    except UserError as error:
        LOG.warning("%s", error)
        return
    matched_nodes: set[fx.Node] = set()
    for node in graph.nodes:
        match = _Match(chain)
        if len(chain.outputs()) == 1 and match.stages_from(graph, 0, node, matched_nodes):
            matched_nodes |= match.nodes()
            yield match


class _Match:
    """Tensors of a chain as values of a graph."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.values: dict[str, fx.Node] = {}

    def stages_from(self, graph: fx.Graph, number: int, node: fx.Node, matched_nodes: set[fx.Node]) -> bool:
        """Return whether stage ``number`` begins at a node, and the later ones somewhere behind it."""
        before = dict(self.values)
        if node not in matched_nodes and self._stage(number, node):
            rest = number + 1
            if rest == len(self.chain.operators):
                return True
            if any(self.stages_from(graph, rest, other, matched_nodes) for other in graph.nodes if other is not node):
                return True
        self.values = before
        return False

    def _stage(self, number: int, node: fx.Node) -> bool:
        operator = self.chain.operators[number]
        if isinstance(operator, Gemm):
            value = self._gemm(operator, node)
        elif isinstance(operator, Conv2d):
            value = self._convolution(operator, node)
        else:
            return isinstance(operator, Pointwise) and self._pointwise(operator, node)
        value = _value_before_activation(value, operator.epilogue)
        if value is not None and operator.residual is not None:
            value = self._combined(value, operator.residual, operator.combine)
        return value is not None and self._binds(operator.out, value)

    def _gemm(self, operator: Gemm, node: fx.Node) -> fx.Node | None:
        if not aten.calls(node, ATEN.mm.default, ATEN.addmm.default) or operator.split_k > 1:
            return None
        at = _PRODUCTS[node.target]
        bias = node.args[0] if at else None
        plain = not {"alpha", "beta"} & set(node.kwargs)
        bound = plain and self._binds(operator.a, node.args[at]) and self._binds(operator.b, node.args[at + 1])
        return node if bound and self._optional(operator.bias, bias) else None

    def _convolution(self, operator: Conv2d, node: fx.Node) -> fx.Node | None:
        if not aten.calls(node, ATEN.convolution.default):
            return None
        x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
        geometry = [operator.stride] * 2, [operator.padding] * 2, [1, 1], False, 1
        if (list(stride), list(padding), list(dilation), transposed, groups) != geometry:
            return None
        if not (self._binds(operator.x, x) and self._binds(operator.weight, weight)):
            return None
        if not self._optional(operator.bias, bias):
            return None
        return node if operator.mean is None else self._normalised(operator, node)

    def _normalised(self, operator: Conv2d, node: fx.Node) -> fx.Node | None:
        norm = aten.only_user(node)
        if norm is None or "batch_norm" not in str(norm.target):
            return None
        _, scale, shift, mean, var, *rest = norm.args
        training = bool(rest[0]) if len(rest) == 3 else False
        arguments = {"mean": mean, "var": var, "scale": scale, "shift": shift}
        bound = all(self._optional(getattr(operator, role), arguments[role]) for role in NORM_ROLES)
        return aten.item(norm, 0) if bound and not training and rest[-1] == operator.epsilon else None

    def _pointwise(self, operator: Pointwise, node: fx.Node) -> bool:
        if operator.function == "silu_mul" and operator.y is not None and aten.calls(node, ATEN.mul.Tensor):
            factors = [aten.source(one) for one in node.args]
            silus = [one for one in factors if aten.calls(one, ATEN.silu.default)]
            others = [one for one in factors if one not in silus]
            if len(silus) != 1 or len(others) != 1 or not self._binds(operator.x, silus[0].args[0]):
                return False
            return self._binds(operator.y, others[0]) and self._binds(operator.out, node)
        same_function = operator.y is None and _function(node) == operator.function
        return same_function and self._binds(operator.x, node.args[0]) and self._binds(operator.out, node)

    def _combined(self, value: fx.Node, residual: View, combine: str) -> fx.Node | None:
        user = _next(value)
        if user is None or _COMBINED.get(user.target) != combine or user.kwargs:
            return None
        others = [one for one in user.args if aten.source(one) is not aten.source(value)]
        return user if len(others) == 1 and self._binds(residual, others[0]) else None

    def _optional(self, view: View | None, node: Any) -> bool:
        return node is None if view is None else self._binds(view, node)

    def _binds(self, view: View, node: Any) -> bool:
        """Return whether a tensor of the chain may be this value, which it is from now on."""
        if not _lies_as(view, node):
            return False
        bound_node = self.values.setdefault(view.tensor, node)
        return aten.source(bound_node) is aten.source(node)

    def nodes(self) -> set[fx.Node]:
        """Return what computes the stages."""
        inputs = {aten.source(self.values[name]) for name in self.chain.inputs()}
        (result,) = (self.values[name] for name in self.chain.outputs())
        stage_nodes: set[fx.Node] = set()
        waiting = [result]
        while waiting:
            node = waiting.pop()
            if node in stage_nodes or aten.source(node) in inputs or node.op != "call_function":
                continue
            stage_nodes.add(node)
            waiting.extend(node.all_input_nodes)
        return stage_nodes

    def region(self, policy: Policy, scheduler: str) -> Region:
        """Return the stages as one call."""
        nodes = tuple(sorted(self.nodes()))
        read = aten.inputs_of(nodes)
        by_source = {aten.source(node): node for node in reversed(read)}
        node_of = {name: by_source[aten.source(self.values[name])] for name in self.chain.inputs()}
        inputs = tuple(sorted(set(node_of.values())))
        at = {name: inputs.index(node) for name, node in node_of.items()}
        (result,) = (self.values[name] for name in self.chain.outputs())
        like = aten.tensor(result)
        assert like is not None

        def build(device: torch.device) -> Runner:
            return PolicyRunner(pipeline_on(device, policy, scheduler), at, tuple(like.shape), like.stride())

        unread = tuple(node for node in read if node not in inputs)
        name = f"a chain of {len(self.chain.operators)} stages by a policy file"
        return Region(name, nodes, inputs, (result,), (), build, unread=unread)


class PolicyRunner:
    """The pipeline of a policy on tensors that lie as the policy's do, whatever their shape; ``at``: the place of each
    input. The result has ``shape`` and ``strides``.
    """

    frozen = False

    def __init__(self, pipeline: Any, at: Mapping[str, int], shape: Sequence[int], strides: Sequence[int]) -> None:
        self.pipeline, self._at, self._shape, self._strides = pipeline, at, tuple(shape), tuple(strides)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        views = self.pipeline.inputs
        tensors = {name: inputs[at].as_strided(views[name].shape, views[name].strides) for name, at in self._at.items()}
        out = self.pipeline(**tensors)
        self._refuse()
        return (out.clone().as_strided(self._shape, self._strides),)  # the next call overwrites the pipeline's own

    def check(self) -> None:
        """Raises `RuntimeError` for kernels whose results are not to be used, and what a wait that gave up raises."""
        if not isinstance(self.pipeline, Pipeline):
            self.pipeline.check()
            self._refuse()

    def twin(self) -> PolicyRunner:
        """Return another runner with semaphores and memory of its own."""
        pipeline = self.pipeline if isinstance(self.pipeline, Pipeline) else self.pipeline.twin()
        return PolicyRunner(pipeline, self._at, self._shape, self._strides)

    def _refuse(self) -> None:
        if getattr(self.pipeline, "refused", None):
            raise RuntimeError(self.pipeline.refused)


def _value_before_activation(value: fx.Node | None, name: str) -> fx.Node | None:
    """Return the value behind an activation; itself for none."""
    if value is None or name == "none":
        return value
    user = _next(value)
    return user if user is not None and _function(user) == name else None


def _function(node: fx.Node) -> str | None:
    name = _FUNCTIONS.get(node.target) if node.op == "call_function" else None
    return "gelu_tanh" if name == "gelu" and node.kwargs.get("approximate") == "tanh" else name


def _next(node: fx.Node) -> fx.Node | None:
    """Return the only operation that reads a value, seen through reshapes."""
    user = aten.only_user(node)
    while user is not None and user.target in aten.RESHAPES:
        user = aten.only_user(user)
    return user


def _lies_as(view: View, node: Any) -> bool:
    """Return whether a value has a view's elements in the view's order and places, whatever its shape."""
    value = aten.tensor(node)
    if value is None or str(value.dtype) != f"torch.{view.dtype}" or view.offset:
        return False
    layout = _layout(view.shape, view.strides)
    shapes = [(tuple(value.shape), value.stride())]
    if value.dim() == len(_CHANNELS_LAST):
        shapes.append(tuple(zip(*((value.shape[d], value.stride(d)) for d in _CHANNELS_LAST), strict=True)))  # type: ignore[arg-type]
    if any(_layout(*each) == layout for each in shapes):
        return True
    flat = View.contiguous(view.tensor, view.shape, view.dtype).strides == view.strides
    return flat and value.is_contiguous() and value.shape[-1:] == view.shape[-1:] and value.numel() == view.elements


def _layout(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return sizes and strides; of a size of one the stride means nothing."""
    return [(n, s if n > 1 else 0) for n, s in zip(shape, strides, strict=True)]
