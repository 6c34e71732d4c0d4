"""Times of whole convolutional networks in one launch, and what their layers spend them on.

python network_probe.py MODEL:BATCH... [--layers] [--inductor]
"""

from __future__ import annotations

import logging
import statistics
import sys
import traceback

import torch
from functorch.compile import make_boxed_func

from tileprof.runtime.compile.tracing import traced
from tileprof.runtime.convnet import network_matcher as finding
from tileprof.runtime.convnet.network import INPUT, Convolution, computed
from tileprof.runtime.convnet.network_build import Options
from tileprof.runtime.convnet.network_launch import PLACES
from tileprof.runtime.convnet.plan import plan_network
from tileprof.runtime.convnet.runner import NetworkRunner

REPLAYS = 30


def say(line: str) -> None:
    """Print at once, since a job may be interrupted."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def model_of(name: str):
    """Return a model with statistics and scales that matter, in half precision, channels last."""
    torch.manual_seed(0)
    if name.startswith("timm."):
        import timm

        model = timm.create_model(name.removeprefix("timm."))
    else:
        import torchvision

        model = getattr(torchvision.models, name)()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.5, 1.0)
            module.bias.data.uniform_(-0.2, 0.2)
    return model.eval().cuda().half().to(memory_format=torch.channels_last)


def captured(call):
    """Return a graph of eight calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(8):
            call()
    return graph


def microseconds(call) -> float:
    """Return the median time of one call, in microseconds."""
    graph, times = captured(call), []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / 8)
    return statistics.median(times)


def networks(model, x):
    """Return the network in a model's graph, the values of its region's inputs, and the result's shape."""
    records = []

    def compiler(graph, _):
        regions = list(finding.find(graph.graph))
        names = [node for node in graph.graph.nodes if node.op == "placeholder"]

        def run(*values):
            env = dict(zip(names, values, strict=True))
            records.extend((region, [env[node] for node in region.inputs]) for region in regions)
            return graph(*values)

        return make_boxed_func(run)

    torch._dynamo.reset()
    result = finding.NetworkRunner
    finding.NetworkRunner = lambda network, device, shape: (network, shape)
    try:
        with torch.no_grad():
            torch.compile(model, backend=lambda graph, inputs: traced(graph, inputs, compiler))(x)
        ((region, values),) = records
        network, shape = region.build(None)
    finally:
        finding.NetworkRunner = result
    return network, shape, values


def layers(runner: NetworkRunner, values: list[torch.Tensor]) -> None:
    """Return when tasks of each layer wait, multiply and store, in microseconds from the last post of what the layer
    reads.
    """
    for _ in range(5):
        runner(*values)
    torch.cuda.synchronize()
    runner.check()
    moments = runner.timeline.double().cpu()
    moments = torch.where(moments > 0, (moments - moments[moments > 0].min()) / 1000, torch.nan)
    owners, at = torch.from_numpy(runner.plan.tasks[:, 0]), {name: n for n, name in enumerate(PLACES)}
    ends: dict[int, float] = {INPUT: 0.0}

    def median(a: torch.Tensor) -> float:
        return float(a.nanmedian())

    for number, layer in enumerate(runner.network.layers):
        own = moments[owners == number]
        residual = getattr(layer, "residual", None)
        begin = max(ends[source] for source in (layer.source, residual) if source is not None)
        ends[number] = float(own[:, at["posted"]].max())
        steps = {
            "awaited": median(own[:, at["awaited"]]) - begin,
            "tiles": median(own[:, at["tiles"]] - own[:, at["awaited"]]),
            "multiplied": median(own[:, at["multiplied"]] - own[:, at["tiles"]]),
            "stored": median(own[:, at["stored"]] - own[:, at["multiplied"]]),
            "posted": median(own[:, at["posted"]] - own[:, at["stored"]]),
        }
        what = f"{layer.size} /{layer.stride}" if isinstance(layer, Convolution) else type(layer).__name__
        times = ", ".join(f"{step} {time:.2f}" for step, time in steps.items())
        say(f"  {ends[number] - begin:+6.1f} to {ends[number]:6.1f}  {runner.network.name(number)} {what}: {times}")
        say(f"         {len(own)} tasks, {layer.reads} -> {layer.shape}, {runner.plan.tilings[number]}")


def probe(name: str, batch: int, flags: set[str]) -> str:
    """Time one model."""
    model = model_of(name)
    x = torch.randn(batch, 3, 224, 224, device="cuda").half().to(memory_format=torch.channels_last)
    network, shape, values = networks(model, x)
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    runner = NetworkRunner(network, torch.device("cuda"), shape, plan=plan_network(network, blocks, reuse=False))
    (out,) = runner(*values)
    torch.cuda.synchronize()
    runner.check()
    expected = computed(network, values[0], values[1:])
    worst = max(
        (float((a.float() - b.float()).norm() / b.float().norm()), network.name(n))
        for n, (a, b) in enumerate(
            zip([*runner.results, out], [*expected[:-1], expected[-1].reshape(out.shape)], strict=True)
        )
    )
    with torch.no_grad():
        exact = model.float()(x.float())
        model.half()
    error = float((out.float() - exact).norm() / exact.norm())
    apart = microseconds(lambda: runner(*values))
    runner.check()
    runner = NetworkRunner(network, torch.device("cuda"), shape)
    ours = microseconds(lambda: runner(*values))
    runner.check()
    line = f"{name} b{batch}: worst layer {worst[0]:.1e} ({worst[1]}), to float32 {error:.1e}, ours {ours:.1f} us "
    line += f"({apart:.1f} where every layer has memory of its own)"
    say(line)
    if "--inductor" in flags:
        torch._dynamo.reset()
        compiled = torch.compile(model)
        with torch.no_grad():
            compiled(x)
            line += f", Inductor {microseconds(lambda: compiled(x)):.1f} us"
            say(line)
    if "--layers" in flags:
        layers(NetworkRunner(network, torch.device("cuda"), shape, Options(timeline=True)), values)
    return line


def main() -> None:
    """Time all models of the command line."""
    logging.basicConfig(level=logging.INFO)
    flags = {a for a in sys.argv[1:] if a.startswith("--")}
    lines = []
    for argument in sys.argv[1:]:
        if argument.startswith("--"):
            continue
        name, batch = argument.split(":")
        try:
            lines.append(probe(name, int(batch), flags))
        except Exception:  # noqa: BLE001 - the next model
            traceback.print_exc()
            lines.append(f"{argument}: failed")
    say("\n".join(lines))


if __name__ == "__main__":
    main()
