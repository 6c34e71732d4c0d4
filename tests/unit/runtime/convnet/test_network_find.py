"""Convolutional networks in the graphs that AOTAutograd makes of modules: found and computed with the same results, or
left out.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn

from tileprof.runtime.compile.regions.partition import unfit
from tileprof.runtime.compile.tracing import inference_graphs, traced
from tileprof.runtime.convnet import network_matcher as finding
from tileprof.runtime.convnet.network import Convolution, Flat, Maximum, Network, computed


class Block(nn.Module):
    """A residual block as torchvision and timm write it."""

    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(wide)
        self.second = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(wide)
        self.short = None
        if stride > 1:
            self.short = nn.Sequential(nn.Conv2d(narrow, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x: Any) -> Any:
        y = self.norm2(self.second(torch.relu(self.norm(self.first(x)))))
        return torch.relu(y + (x if self.short is None else self.short(x)))


class Small(nn.Module):
    def __init__(self, last: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.pool, self.blocks = nn.MaxPool2d(3, 2, 1), nn.Sequential(Block(64, 64, 1), Block(64, 128, 2))
        self.mean, self.head, self.last = nn.AdaptiveAvgPool2d(1), nn.Linear(128, 40), last

    def forward(self, x: Any) -> Any:
        x = self.blocks(self.pool(torch.relu(self.norm(self.stem(x)))))
        x = self.head(torch.flatten(self.mean(x), 1))
        return x if self.last is None else self.last(x)


class Plain(nn.Module):
    """Convolutions, pooling and products, as in VGG."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d((16, 16)),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Linear(64 * 256, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 24))

    def forward(self, x: Any) -> Any:
        return self.classifier(torch.flatten(self.features(x), 1))


def half(model: nn.Module, *, last: bool = True) -> nn.Module:
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1)
    return model.eval().half().to(memory_format=torch.channels_last if last else torch.contiguous_format)


def picture(images: int = 2, *, last: bool = True) -> Any:
    torch.manual_seed(1)
    x = torch.randn(images, 3, 32, 32).half()
    return x.to(memory_format=torch.channels_last) if last else x


@pytest.fixture(autouse=True)
def no_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let regions build the network itself."""
    monkeypatch.setattr(finding, "NetworkRunner", lambda network, _device, _shape: network)


def regions_of(model: nn.Module, x: Any) -> tuple[Any, list[Any]]:
    (graph,) = inference_graphs(model, x)
    return graph, list(finding.find(graph.graph))


def network_of(region: Any) -> Network:
    network: Network = region.build(torch.device("cpu"))
    return network


MODELS: dict[str, Callable[[], nn.Module]] = {"residual": Small, "relu": lambda: Small(torch.relu), "plain": Plain}
WAYS = {
    "both last": ((True, True), torch.float16),
    "weights last": ((True, False), torch.float16),
    "both first": ((False, False), torch.float16),
    "bfloat16": ((True, True), torch.bfloat16),
}
"""Memory formats, channels last or first, of the model's weights and of the picture, and the type of numbers."""
IN_THE_GATE = {*(("residual", way) for way in WAYS), ("relu", "both last"), ("plain", "both first")}


@pytest.mark.parametrize(("name", "way"), [
    pytest.param(*pair, marks=[] if pair in IN_THE_GATE else [pytest.mark.nightly]) for pair in product(MODELS, WAYS)
])  # fmt: skip
def test_a_network_is_found_and_is_the_model(name: str, way: str) -> None:
    lasts, dtype = WAYS[way]
    model, x = half(MODELS[name](), last=lasts[0]).to(dtype), picture(last=lasts[1]).to(dtype)
    records: list[Any] = []

    def compiler(graph: Any, _: Any) -> Any:
        regions = list(finding.find(graph.graph))
        names = [node for node in graph.graph.nodes if node.op == "placeholder"]

        def run(*values: Any) -> Any:
            env = dict(zip(names, values, strict=True))
            records.extend((region, [env[node] for node in region.inputs]) for region in regions)
            return graph(*values)

        return make_boxed_func(run)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=lambda graph, inputs: traced(graph, inputs, compiler))(x)
        ((region, (first, *values)),) = records
        exact = model.float()(x.float())
        model.to(dtype)
    assert unfit(region.outputs[0].graph, region) is None
    network = network_of(region)
    out = computed(network, first, values)[-1].reshape(exact.shape).float()
    assert float((out - exact).norm() / exact.norm()) < {torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    assert region.folded == tuple(range(1, len(region.inputs)))


def test_pooling_is_part_of_the_convolution_that_it_reads() -> None:
    _, (region,) = regions_of(half(Plain()), picture())
    layers = network_of(region).layers
    assert [layer.pool for layer in layers if isinstance(layer, Convolution)] == [1, 2, 1, 1]
    assert not any(isinstance(layer, Maximum) for layer in layers)


@pytest.mark.parametrize("pools", [True, False])
def test_channels_come_in_front_of_pixels_where_a_matrix_follows_in_the_layer_that_pools_if_one_does(pools) -> None:
    widths = [(3, 64), (64, 64), (64, 128)]
    convolutions = [part for size in widths for part in (nn.Conv2d(*size, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))]
    expected_layers = convolutions if pools else convolutions[:-1]
    side = 4 if pools else 8
    model = half(nn.Sequential(*expected_layers, nn.Flatten(), nn.Linear(128 * side**2, 40)))
    _, (region,) = regions_of(model, picture())
    layers = network_of(region).layers
    assert [layer.flat for layer in layers if isinstance(layer, Convolution)] == [False, False, pools, False]
    assert sum(isinstance(layer, Flat) for layer in layers) == (not pools)
    first = region.inputs[1].meta["val"]
    assert region.copied == first.nbytes, "only the first layer's weights have to lie otherwise"


def test_a_convolution_that_others_read_is_pooled_by_itself() -> None:
    class Both(Plain):
        def forward(self, x: Any) -> Any:
            x = self.features[3](self.features[2](self.features[1](self.features[0](x))))
            return self.classifier[0](torch.flatten(self.features[4](x), 1)) + x.mean()

    _, regions = regions_of(half(Both()), picture())
    for region in regions:
        assert all(layer.pool == 1 for layer in network_of(region).layers if isinstance(layer, Convolution))


def test_branches_do_not_wait_for_each_other() -> None:
    _, (region,) = regions_of(half(Small()), picture())
    network = network_of(region)
    branch = next(
        n for n, layer in enumerate(network.layers) if isinstance(layer, Convolution) and layer.size == (1, 1)
    )
    layer = network.layers[branch]
    assert isinstance(layer, Convolution)
    assert layer.residual is None
    assert any(isinstance(other, Convolution) and other.residual == branch for other in network.layers[branch + 1 :])


def grouped_network() -> nn.Module:
    model = Small()
    model.blocks[0].first = nn.Conv2d(64, 64, 3, 1, 1, groups=2, bias=False)
    return model


def dilated() -> nn.Module:
    model = Small()
    model.blocks[0].second = nn.Conv2d(64, 64, 3, 1, 2, dilation=2, bias=False)
    return model


@pytest.mark.parametrize("model", [grouped_network(), dilated()], ids=["groups", "dilation"])
def test_networks_that_the_kernel_does_not_support_are_left_out(model: nn.Module) -> None:
    _, regions = regions_of(half(model), picture())
    assert regions == []


def test_single_precision_is_left() -> None:
    _, regions = regions_of(Small().eval(), torch.randn(2, 3, 32, 32))
    assert regions == []


def test_a_value_that_is_read_elsewhere_is_left() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small = Small()

        def forward(self, x: Any) -> Any:
            stem = self.small.stem(x)
            return self.small(x), stem.sum()

    _, regions = regions_of(half(Two()), picture())
    assert all(len(region.outputs) == 1 for region in regions)
    assert all("convolution" not in {user.name for out in region.outputs for user in out.users} for region in regions)
