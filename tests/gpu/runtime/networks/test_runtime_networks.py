"""Convolutional networks in one launch, on a GPU: right results, under delays too; lost waits are named."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

sys.path.append(str(Path(__file__).parents[4]))

from tests.gpu.runtime.networks.network_probe import model_of, networks
from tests.support.runtime.networks import image, parameters, pooling, pooling_parameters, small
from tileprof.runtime.convnet.network import INPUT, Average, Convolution, Network, Windows, computed
from tileprof.runtime.convnet.network_build import Options
from tileprof.runtime.convnet.plan import plan_network
from tileprof.runtime.convnet.runner import NetworkRunner

pytestmark = pytest.mark.gpu

DELAY_NS = 20_000
REPLAYS = 10_000
BLOCKS = 132


def block(images: int) -> tuple[Network, list[torch.Tensor]]:
    """ResNet's block that halves 28 x 28 pixels of 128 channels, behind a stem that makes them; the mean behind it."""
    wide, narrow = (images, 28, 28, 128), (images, 14, 14, 256)
    layers = (
        Windows(INPUT, (images, 56, 56, 3), (images, 63, 64, 4), 3, (3 * 56 * 56, 1, 3 * 56, 3)),
        Convolution(0, (images, 56, 56, 3), wide, 0, size=(7, 7), stride=2, padding=3, relu=True),
        Convolution(1, wide, narrow, 1, size=(3, 3), stride=2, padding=1, relu=True),
        Convolution(1, wide, narrow, 2, stride=2),
        Convolution(2, narrow, narrow, 3, residual=3, size=(3, 3), padding=1, relu=True),
        Convolution(4, narrow, narrow, 4, size=(3, 3), padding=1, relu=True),
        Convolution(5, narrow, narrow, 4, residual=4, size=(3, 3), padding=1, relu=True),
        Average(6, narrow, (images, 1, 1, 256)),
    )
    result = torch.Generator().manual_seed(0)
    sizes = [(128, 3, 7, 7), (256, 128, 3, 3), (256, 128, 1, 1), (256, 256, 3, 3), (256, 256, 3, 3)]
    weights = [torch.randn(*s, generator=result) / (s[1] * s[2] * s[3]) ** 0.5 for s in sizes]
    return Network(layers), [w.half().cuda() for w in weights]


def pictures(images: int) -> torch.Tensor:
    result = torch.randn(images, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    return result.half().to(memory_format=torch.channels_last).cuda()


def wrong_replays(
    runner: NetworkRunner, x: torch.Tensor, weights: list[torch.Tensor], expected: torch.Tensor, replays: int
) -> int:
    """Return how many replays differ in a bit.

    Results of layers are NaN when a replay begins.
    """
    wrong = torch.zeros(1, dtype=torch.int32, device="cuda")
    runner(x, *weights)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        runner.seed.add_(1)
        for result in runner.results:
            result.fill_(float("nan"))
        (out,) = runner(x, *weights)
        wrong.add_((out.view(torch.int16) != expected.view(torch.int16)).any().int())
    for _ in range(replays):
        graph.replay()
    torch.cuda.synchronize()
    return int(wrong)


@pytest.mark.parametrize("images", [1, 8])
def test_ten_thousand_delayed_replays_of_a_block_have_the_same_bits(images):
    network, weights = block(images)
    x, shape = pictures(images), network.layers[-1].shape
    (expected,) = NetworkRunner(network, torch.device("cuda"), shape)(x, *weights)
    exact = computed(network, x, weights)[-1].float()
    assert float((expected.float() - exact).norm() / exact.norm()) < 3e-3
    runner = NetworkRunner(network, torch.device("cuda"), shape, Options(delay_ns=DELAY_NS))
    assert wrong_replays(runner, x, weights, expected, REPLAYS) == 0
    runner.check()


def test_a_dropped_wait_is_detected():
    network, weights = block(1)
    x, shape = pictures(1), network.layers[-1].shape
    (expected,) = NetworkRunner(network, torch.device("cuda"), shape)(x, *weights)
    plan = plan_network(network, BLOCKS)
    tasks = plan.tasks.copy()
    of_layer = tasks[:, 0] == 5
    tasks[of_layer, 6] = tasks[of_layer, 5]
    runner = NetworkRunner(network, torch.device("cuda"), shape, Options(delay_ns=DELAY_NS), replace(plan, tasks=tasks))
    assert wrong_replays(runner, x, weights, expected, 200) > 0


def test_a_wait_that_gives_up_is_named():
    network, weights = block(1)
    plan = plan_network(network, BLOCKS)
    tasks, waits = plan.tasks.copy(), plan.waits.copy()
    task = next(t for t in tasks.tolist() if t[0] == 5)
    waits[task[5], 1] += 1
    runner = NetworkRunner(
        network,
        torch.device("cuda"),
        network.layers[-1].shape,
        Options(timeout_ns=5_000_000),
        replace(plan, waits=waits),
    )
    runner(pictures(1), *weights)
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match=r"layer [56]: the tile at image 0.* waited for semaphore \d+ in vain"):
        runner.check()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("images", [1, 2, 3, 8])
def test_a_small_network_is_pytorchs(images, dtype):
    network = small(images, dtype)
    inputs, x = [p.cuda() for p in parameters(dtype)], image(images, dtype).cuda()
    runner = NetworkRunner(network, torch.device("cuda"), network.layers[-1].shape)
    outs = [runner(x, *inputs)[0].clone() for _ in range(3)]
    expected = computed(network, x, inputs)[-1].float()
    assert all(torch.equal(out, outs[0]) for out in outs)
    assert float((outs[0].float() - expected).norm() / expected.norm()) < {"float16": 3e-3, "bfloat16": 2e-2}[dtype]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("images", [1, 3])
def test_convolutions_that_pool_are_pytorchs(images, dtype):
    network = pooling(images, dtype)
    inputs, x = [p.cuda() for p in pooling_parameters(dtype)], image(images, dtype).cuda()
    runner = NetworkRunner(network, torch.device("cuda"), network.layers[-1].shape)
    outs = [runner(x, *inputs)[0].clone() for _ in range(3)]
    expected = computed(network, x, inputs)[-1].float()
    assert all(torch.equal(out, outs[0]) for out in outs)
    assert float((outs[0].float() - expected).norm() / expected.norm()) < {"float16": 3e-3, "bfloat16": 2e-2}[dtype]


@pytest.mark.parametrize(
    ("name", "images", "dtype", "layout"),
    [
        ("resnet34", 1, torch.float16, torch.channels_last),
        ("resnet34", 2, torch.bfloat16, torch.contiguous_format),
        ("wide_resnet50_2", 1, torch.float16, torch.contiguous_format),
        ("timm.resnet26", 4, torch.float16, torch.channels_last),
        ("vgg13_bn", 1, torch.bfloat16, torch.channels_last),
        ("vgg11", 2, torch.float16, torch.contiguous_format),
    ],
)
def test_networks_that_nothing_is_tuned_for_are_right(name, images, dtype, layout):
    """Compare results with the whole model in float32, and the bits of all runs."""
    model = model_of(name).to(dtype).to(memory_format=layout)
    x = torch.randn(images, 3, 224, 224, device="cuda").to(dtype).to(memory_format=layout)
    network, shape, values = networks(model, x)
    runner = NetworkRunner(network, torch.device("cuda"), shape)
    outs = [runner(*values)[0].clone() for _ in range(20)]
    runner.check()
    with torch.no_grad():
        exact = model.float()(x.float())
    assert all(torch.equal(out, outs[0]) for out in outs)
    assert float((outs[0].float() - exact).norm() / exact.norm()) < {torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
