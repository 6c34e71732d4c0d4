"""Convolutional networks in an ATen graph.

From the image that the first convolution reads to the last operation that the kernel has.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch import fx

from tileprof.errors import UserError
from tileprof.runtime.compile.regions.aten import (
    ATEN,
    argument,
    calls,
    convex,
    dtype,
    item,
    only_user,
    outputs_of,
    parameter,
    shape,
    strides,
)
from tileprof.runtime.compile.regions.region import Region
from tileprof.runtime.convnet.network import INPUT, Average, Convolution, Flat, Layer, Maximum, Network, Norm, Windows
from tileprof.runtime.convnet.plan import plan_network
from tileprof.runtime.convnet.runner import NetworkRunner, timed_run
from tileprof.runtime.convnet.tiling import WINDOW
from tileprof.runtime.convnet.weights import copied

LOG: Final = logging.getLogger("tileprof.compile")

LEAST_LAYERS: Final = 4
"""Least number of layers of a network that is worth a kernel."""

MOST_IMAGES: Final = 32

_H200_BLOCKS: Final = 132
_MOST_INPUT_CHANNELS: Final = 4
_DTYPES: Final = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
_NORMS: Final = (
    ATEN._native_batch_norm_legit_no_training.default,  # noqa: SLF001 - ATen's own names
    ATEN.native_batch_norm.default, ATEN.cudnn_batch_norm.default,
)  # fmt: skip
_COPIES: Final = (
    ATEN.view.default, ATEN.reshape.default, ATEN._unsafe_view.default,  # noqa: SLF001 - ATen's own name
    ATEN.clone.default, ATEN.as_strided.default, ATEN.alias.default,
    ATEN.squeeze.dims, ATEN.squeeze.dim,
)  # fmt: skip


class Unmatched(Exception):  # noqa: N818 - no error: the rest is Inductor's
    """An operation that the kernel does not have, with the reason."""


@dataclass
class _Growing:
    """A network as it grows along a graph: layers, what each node of the graph is, and which parameters are read."""

    image: fx.Node
    layers: list[Layer] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    nodes: list[fx.Node] = field(default_factory=list)
    values: dict[fx.Node, int] = field(default_factory=dict)
    flat: dict[fx.Node, tuple[int, int, int, int]] = field(default_factory=dict)
    parameters: list[fx.Node] = field(default_factory=list)

    def parameter(self, node: Any, *size: int) -> int:
        """Return the index of a parameter of a size, in the network's type."""
        if not parameter(node) or shape(node) != size or dtype(node) not in {dtype(self.image), torch.float32}:
            raise Unmatched("a weight that is not a parameter of the graph")
        if node not in self.parameters:
            self.parameters.append(node)
        return self.parameters.index(node)

    def add(self, layer: Layer, name: str, value: fx.Node, *nodes: fx.Node) -> None:
        """A layer that computes ``value`` by ``nodes``, which it is one of."""
        self.layers.append(layer)
        self.names.append(name)
        self.nodes.extend(nodes)
        self.values[value] = len(self.layers) - 1


def find(graph: fx.Graph) -> Iterator[Region]:
    """Yield the network that begins at the graph's first convolution of an image of at most four channels.

    Nothing where it is not one that the kernel can run.
    """
    for node in graph.nodes:
        if not calls(node, ATEN.convolution.default):
            continue
        size = shape(node.args[0])
        if size is None or size[1] > _MOST_INPUT_CHANNELS or dtype(node) not in _DTYPES or size[0] > MOST_IMAGES:
            return
        try:
            yield _region(_layers_from(graph, node))
        except (Unmatched, UserError) as reason:
            LOG.info("a convolutional network is left to Inductor: %s", reason)
        return


def _layers_from(graph: fx.Graph, first: fx.Node) -> _Growing:
    net = _Growing(first.args[0])
    nodes = list(graph.nodes)
    for node in nodes[nodes.index(first) :]:
        if node.op != "call_function" or node in net.nodes:
            continue
        if not any(source in net.values or source is net.image for source in node.all_input_nodes):
            continue
        layers, names, parameters = list(net.layers), list(net.names), list(net.parameters)
        try:
            _take(net, node)
        except Unmatched as reason:
            net.layers, net.names, net.parameters = layers, names, parameters
            LOG.info("a convolutional network ends at %s: %s", node.name, reason)
            break
    return net


def _take(net: _Growing, node: fx.Node) -> None:
    if calls(node, ATEN.convolution.default):
        _take_convolution(net, node)
    elif calls(node, ATEN.max_pool2d_with_indices.default):
        _take_maximum(net, node)
    elif calls(node, ATEN.mean.dim):
        _take_mean(net, node)
    elif calls(node, ATEN._adaptive_avg_pool2d.default):  # noqa: SLF001
        _take_adaptive(net, node)
    elif calls(node, *_COPIES):
        _take_copy(net, node)
    elif calls(node, ATEN.addmm.default):
        _take_product(net, node)
    else:
        raise Unmatched(f"the kernel does not have {node.target}")


def _value(net: _Growing, node: Any) -> int:
    if node not in net.values or node in net.flat:
        raise Unmatched("it reads what the network does not compute")
    return net.values[node]


def _tail(net: _Growing, node: fx.Node) -> tuple[fx.Node, list[fx.Node], fx.Node | None, bool]:
    """Return what follows a convolution alone: the last node, all nodes, its residual, and whether ReLU is last."""
    nodes, residual = [node], None
    after = only_user(node)
    if after is not None and calls(after, ATEN.add.Tensor) and argument(after, 2, "alpha", 1) == 1:
        other = after.args[1] if after.args[0] is node else after.args[0]
        if other is not node and other in net.values and shape(other) == shape(node) and dtype(after) == dtype(node):
            residual = other
            node = after
            nodes.append(node)
            after = only_user(node)
    relu = after is not None and calls(after, ATEN.relu.default)
    if relu:
        node = after
        nodes.append(node)
    return node, nodes, residual, relu


def _take_convolution(net: _Growing, node: fx.Node) -> None:
    x, weight, bias, step, padding, dilation, transposed, _, groups = node.args[:9]
    size, out = shape(weight), shape(node)
    read = shape(x)
    if size is None or out is None or read is None or transposed or groups != 1 or list(dilation) != [1, 1]:
        raise Unmatched("a convolution with groups, dilation or of another kind")
    if step[0] != step[1] or step[0] not in {1, 2} or padding[0] != padding[1]:
        raise Unmatched(f"a convolution of stride {step} and padding {padding}")
    if out[1] % 8 or strides(node) not in {_channels_last(out), _channels_first(out)}:
        raise Unmatched(f"a convolution to {out[1]} channels, or with gaps in its result")
    first = x is net.image
    if not first and read[1] % 64:
        raise Unmatched(f"a convolution of {read[1]} channels")
    source = INPUT if first else _value(net, x)
    nodes, norm, last = [node], None, node
    after = only_user(node)
    index = net.parameter(weight, *size)
    biased = None if bias is None else net.parameter(bias, out[1])
    if after is not None and calls(after, *_NORMS):
        normalised = item(after, 0)
        if normalised is None or len(after.users) != 1 or (len(after.args) == 8 and after.args[5]):
            raise Unmatched("a batch norm that trains")
        tensors = [None if p is None else net.parameter(p, out[1]) for p in after.args[1:5]]
        if tensors[2] is None or tensors[3] is None:
            raise Unmatched("a batch norm without statistics")
        norm = Norm(tensors[0], tensors[1], tensors[2], tensors[3], float(after.args[-1]))
        nodes, last = [node, after, normalised], normalised
    last, more, residual, relu = _tail(net, last)
    if first:
        source = _add_windows(net, x, size, step[0], padding[0], out)
    net.add(
        Convolution(
            source, (read[0], read[2], read[3], read[1]), (out[0], out[2], out[3], out[1]), index, biased, norm,
            None if residual is None else _value(net, residual), (size[2], size[3]), step[0], padding[0], relu,
        ),
        node.name, last, *nodes, *(n for n in more if n not in nodes),
    )  # fmt: skip


def _add_windows(
    net: _Growing, x: fx.Node, size: tuple[int, ...], step: int, padding: int, out: tuple[int, ...]
) -> int:
    """Return the layer that lays the image out in windows of 32 elements.

    Its pixels have 4 or 8 channels, so that a step is 16 bytes.
    """
    read, lie = shape(x), strides(x)
    channels = 8 // step
    if read is None or lie is None or len(lie) != 4 or read[1] > channels or size[3] > WINDOW // channels:
        raise Unmatched(f"a first convolution of {size}, stride {step}")
    width = max((out[3] - 1) * step + WINDOW // channels, read[3] + padding)
    layer = Windows(
        INPUT,
        (read[0], read[2], read[3], read[1]),
        (read[0], read[2] + 2 * padding + 1, -(-width // 4) * 4, channels),
        padding,
        (lie[0], lie[1], lie[2], lie[3]),
    )
    net.layers.append(layer)
    net.names.append("input")
    return len(net.layers) - 1


def _take_maximum(net: _Growing, node: fx.Node) -> None:
    x, size = node.args[:2]
    step = argument(node, 2, "stride", []) or size
    padding, dilation = argument(node, 3, "padding", [0, 0]), argument(node, 4, "dilation", [1, 1])
    pooled, read = item(node, 0), shape(x)
    if pooled is None or len(node.users) != 1 or read is None:
        raise Unmatched("a max pooling whose indices are read")
    out = shape(pooled)
    step, padding, dilation = (list(v) * (2 // len(v)) for v in (step, padding, dilation))
    square = all(len({*sides}) == 1 for sides in (size, step, padding)) and dilation == [1, 1]
    if out is None or not square or argument(node, 5, "ceil_mode", default=False) or read[1] % 8:
        raise Unmatched("a max pooling of windows that are not square, or that end beyond the image")
    if size[0] not in {2, 3} or 2 * padding[0] > size[0]:
        raise Unmatched(f"a max pooling of {size[0]} x {size[0]} pixels")
    layer = Maximum(
        _value(net, x),
        (read[0], read[2], read[3], read[1]),
        (out[0], out[2], out[3], out[1]),
        size[0],
        step[0],
        padding[0],
    )
    net.add(layer, node.name, pooled, node, pooled)


def _take_mean(net: _Growing, node: fx.Node) -> None:
    x, axes = node.args[:2]
    read, keeps = shape(x), argument(node, 2, "keepdim", default=False)
    if (
        read is None
        or len(read) != 4
        or sorted(a % 4 for a in axes) != [2, 3]
        or dtype(node) != dtype(x)
        or read[1] % 64
    ):
        raise Unmatched("a mean of other axes than rows and columns")
    layer = Average(_value(net, x), (read[0], read[2], read[3], read[1]), (read[0], 1, 1, read[1]))
    net.add(layer, node.name, node, node)
    if not keeps:
        net.flat[node] = (read[1], 1, 1, read[1])


def _take_adaptive(net: _Growing, node: fx.Node) -> None:
    x, out = node.args[:2]
    read = shape(x)
    if read is None or read[1] % 64:
        raise Unmatched("an average pooling of few channels")
    source = _value(net, x)
    if list(out) == list(read[2:]):
        net.nodes.append(node)
        net.values[node] = source
    elif list(out) == [1, 1]:
        net.add(Average(source, (read[0], read[2], read[3], read[1]), (read[0], 1, 1, read[1])), node.name, node, node)
    else:
        raise Unmatched(f"an average pooling to {out}")


def _take_copy(net: _Growing, node: fx.Node) -> None:
    """Copies and views: of pixels that stay where they are, or of images that become rows of a matrix."""
    x = node.args[0]
    if x not in net.values:
        raise Unmatched("it reads what the network does not compute")
    before, after = shape(x), shape(node)
    if before is None or after is None:
        raise Unmatched("a view of a tensor with symbolic sizes")
    if calls(node, ATEN.as_strided.default) and (before != after or len(before) != 4 or before[2:] != (1, 1)):
        raise Unmatched("a view with other strides")
    flattens = len(before) == 4 and len(after) == 2 and before[0] == after[0]
    if before != after and not flattens:
        raise Unmatched(f"a view of {before} as {after}")
    net.nodes.append(node)
    net.values[node] = net.values[x]
    if flattens:
        net.flat[node] = (before[1] * before[2] * before[3], before[2], before[3], before[1])
    elif x in net.flat:
        net.flat[node] = net.flat[x]


def _take_product(net: _Growing, node: fx.Node) -> None:
    bias, x, turned = node.args[:3]
    out = shape(node)
    if x not in net.flat or out is None or node.kwargs or not calls(turned, ATEN.t.default, ATEN.permute.default):
        raise Unmatched("a product of other things than flattened images and a weight")
    deep, rows, columns, channels = net.flat[x]
    weight = turned.args[0]
    if deep % 64 or out[1] % 8 or (calls(turned, ATEN.permute.default) and list(turned.args[1]) != [1, 0]):
        raise Unmatched(f"a product of {deep} columns to {out[1]}")
    index, biased = net.parameter(weight, out[1], deep), net.parameter(bias, out[1])
    last, more, _, relu = _tail(net, node)
    if any(calls(n, ATEN.add.Tensor) for n in more):
        raise Unmatched("a residual of a product with a matrix")
    nodes = [*([turned] if len(turned.users) == 1 else []), *more]
    source = net.values[x]
    if rows * columns > 1:
        net.layers.append(Flat(source, (out[0], rows, columns, channels), (out[0], 1, 1, deep)))
        net.names.append(f"{node.name} flat")
        source = len(net.layers) - 1
    layer = Convolution(
        source, (1, 1, out[0], deep), (1, 1, out[0], out[1]), index, biased, relu=relu,
    )  # fmt: skip
    net.add(layer, node.name, last, *nodes)
    net.flat[last] = (out[1], 1, 1, out[1])


def _channels_last(size: tuple[int, ...]) -> tuple[int, ...]:
    _, channels, rows, columns = size
    return (channels * rows * columns, 1, columns * channels, channels)


def _channels_first(size: tuple[int, ...]) -> tuple[int, ...]:
    _, channels, rows, columns = size
    return (channels * rows * columns, rows * columns, columns, 1)


def _region(net: _Growing) -> Region:
    if len(net.layers) < LEAST_LAYERS:
        raise Unmatched(f"{len(net.layers)} layers are too few")
    outputs = outputs_of(net.nodes)
    network = _ordered(net)
    if len(outputs) != 1 or net.values[outputs[0]] != len(net.layers) - 1 or isinstance(network.layers[-1], Windows):
        raise Unmatched(f"{len(outputs)} of its values are used outside")
    result = outputs[0]
    size, lie = shape(result), strides(result)
    if size is None or lie != (_channels_last(size) if len(size) == 4 else (size[1], 1)):
        raise Unmatched("a result that is not channels last")
    if not convex(net.nodes):
        raise Unmatched("what is between its layers reads them, too")
    plan_network(network, _H200_BLOCKS)
    inputs = (net.image, *net.parameters)
    inputs_of_region = {
        layer.weight
        for layer in network.layers
        if isinstance(layer, Convolution) and copied(network, layer, net.parameters[layer.weight].meta["val"])
    }
    convolutions = sum(isinstance(layer, Convolution) for layer in network.layers)
    return Region(
        name=f"convolutional network, {convolutions} convolutions and products, {size[0]} images",
        nodes=tuple(sorted(set(net.nodes))),
        inputs=inputs,
        outputs=(result,),
        mutated=(),
        build=lambda device: NetworkRunner(network, device, size),
        folded=tuple(range(1, len(inputs))),
        copied=sum(net.parameters[number].meta["val"].nbytes for number in inputs_of_region),
        what=network,
        timed=partial(timed_run, network, size),
    )


def _ordered(net: _Growing) -> Network:
    """Return layers by how many are in front of them at most, so that branches run side by side."""
    layers, names = _flats_fused(*_pools_fused(_residuals_moved(net.layers), net.names))
    depth: dict[int, int] = {INPUT: 0}

    def deep(number: int) -> int:
        if number not in depth:
            layer = layers[number]
            depth[number] = 1 + max(deep(s) for s in (layer.source, _residual(layer)) if s is not None)
        return depth[number]

    order = sorted(range(len(layers)), key=deep)
    place = {number: at for at, number in enumerate(order)} | {INPUT: INPUT}
    ordered_layers = tuple(_renumbered(layers[number], place) for number in order)
    return Network(ordered_layers, _DTYPES[dtype(net.image)], tuple(names[number] for number in order))


def _pools_fused(layers: list[Layer], names: list[str]) -> tuple[list[Layer], list[str]]:
    """Return the same layers, where a convolution keeps the largest of two by two pixels that nothing else reads."""
    new_layers, fused = list(layers), dict[int, int]()
    for number, layer in enumerate(layers):
        if not isinstance(layer, Maximum) or (layer.size, layer.stride, layer.padding) != (2, 2, 0):
            continue
        source = layers[layer.source]
        readers = sum(layer.source in {one.source, _residual(one)} for one in layers)
        if isinstance(source, Convolution) and source.residual is None and readers == 1 and layer.reads == source.shape:
            new_layers[layer.source] = replace(source, shape=layer.shape, pool=2)
            fused[number] = layer.source
    return _without(new_layers, names, fused)


def _flats_fused(layers: list[Layer], names: list[str]) -> tuple[list[Layer], list[str]]:
    """Return the same layers, where a convolution that pools puts channels in front of pixels if nothing else reads
    it.
    """
    new_layers, fused = list(layers), dict[int, int]()
    for number, layer in enumerate(layers):
        source = layers[layer.source]
        readers = sum(layer.source in {one.source, _residual(one)} for one in layers)
        if isinstance(layer, Flat) and isinstance(source, Convolution) and source.pool > 1 and readers == 1:
            new_layers[layer.source] = replace(source, flat=True)
            fused[number] = layer.source
    return _without(new_layers, names, fused)


def _without(layers: list[Layer], names: list[str], fused: dict[int, int]) -> tuple[list[Layer], list[str]]:
    """Return the layers without those that others compute: ``fused`` says which."""
    remaining = [number for number in range(len(layers)) if number not in fused]
    place = {number: at for at, number in enumerate(remaining)} | {INPUT: INPUT}
    place |= {number: place[source] for number, source in fused.items()}
    return [_renumbered(layers[number], place) for number in remaining], [names[number] for number in remaining]


def _residuals_moved(layers: list[Layer]) -> list[Layer]:
    """Return the same sums, added where the longer branch ends.

    A convolution that reads an earlier layer need not wait for the one whose result it would add to its own.
    """
    new_layers = list(layers)
    for number, layer in enumerate(layers):
        other = _residual(layer)
        if other is None:
            continue
        longer = new_layers[other]
        readers = sum(s == other for one in new_layers for s in (one.source, _residual(one)))
        assert isinstance(layer, Convolution)
        if not isinstance(longer, Convolution) or longer.residual is not None or longer.relu or readers != 1:
            continue
        if layer.source >= longer.source:
            continue
        new_layers[other] = replace(longer, residual=number, relu=layer.relu)
        new_layers[number] = replace(layer, residual=None, relu=False)
        for at, one in enumerate(new_layers):
            if at != other:
                new_layers[at] = _renumbered(
                    one, {n: other if n == number else n for n in range(INPUT, len(new_layers))}
                )
    return new_layers


def _residual(layer: Layer) -> int | None:
    return layer.residual if isinstance(layer, Convolution) else None


def _renumbered(layer: Layer, place: dict[int, int]) -> Layer:
    layer = replace(layer, source=place[layer.source])
    if isinstance(layer, Convolution) and layer.residual is not None:
        layer = replace(layer, residual=place[layer.residual])
    return layer
