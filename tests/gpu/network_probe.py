"""Times of whole convolutional networks in one launch, layer by layer, for whoever works on the kernel: python network_probe.py MODEL:BATCH... [--layers] [--inductor]."""

from __future__ import annotations

import logging
import statistics
import sys
import traceback

import torch
from functorch.compile import make_boxed_func

from tileprof.runtime.compile.tracing import traced
from tileprof.runtime.convnet import find as finding
from tileprof.runtime.convnet.network import Convolution, Network, computed
from tileprof.runtime.convnet.plan import planned
from tileprof.runtime.convnet.runner import NetworkRunner

REPLAYS = 30


def say(line: str) -> None:
    """At once, as a job may be cut short."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def model_of(name: str):
    """A model with statistics and scales that matter, in half precision, channels last."""
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
    """A graph of eight calls."""
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
    """Of one call, median."""
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
    """The network in a model's graph, the values of its region's inputs, and the result's shape."""
    kept = []

    def compiler(graph, _):
        regions = list(finding.find(graph.graph))
        names = [node for node in graph.graph.nodes if node.op == "placeholder"]

        def run(*values):
            env = dict(zip(names, values, strict=True))
            kept.extend((region, [env[node] for node in region.inputs]) for region in regions)
            return graph(*values)

        return make_boxed_func(run)

    torch._dynamo.reset()
    made = finding.NetworkRunner
    finding.NetworkRunner = lambda network, device, shape: (network, shape)
    try:
        with torch.no_grad():
            torch.compile(model, backend=lambda graph, inputs: traced(graph, inputs, compiler))(x)
        ((region, values),) = kept
        network, shape = region.build(None)
    finally:
        finding.NetworkRunner = made
    return network, shape, values


def probe(name: str, batch: int, flags: set[str]) -> str:
    """One model."""
    model = model_of(name)
    x = torch.randn(batch, 3, 224, 224, device="cuda").half().to(memory_format=torch.channels_last)
    network, shape, values = networks(model, x)
    runner = NetworkRunner(network, torch.device("cuda"), shape)
    (out,) = runner(*values)
    torch.cuda.synchronize()
    runner.check()
    wanted = computed(network, values[0], values[1:])
    worst = max(
        (float((a.float() - b.float()).norm() / b.float().norm()), network.name(n))
        for n, (a, b) in enumerate(
            zip([*runner.results, out], [*wanted[:-1], wanted[-1].reshape(out.shape)], strict=True)
        )
    )
    with torch.no_grad():
        exact = model.float()(x.float())
        model.half()
    error = float((out.float() - exact).norm() / exact.norm())
    ours = microseconds(lambda: runner(*values))
    runner.check()
    line = f"{name} b{batch}: worst layer {worst[0]:.1e} ({worst[1]}), to float32 {error:.1e}, ours {ours:.1f} us"
    say(line)
    if "--inductor" in flags:
        torch._dynamo.reset()
        compiled = torch.compile(model)
        with torch.no_grad():
            compiled(x)
            line += f", Inductor {microseconds(lambda: compiled(x)):.1f} us"
            say(line)
    if "--layers" in flags:
        before = 0.0
        for end in range(1, len(network.layers) + 1):
            part = Network(network.layers[:end], network.dtype, network.names[:end])
            layer = part.layers[-1]
            plan = planned(part, runner.plan.blocks, runner.plan.tilings[:end])
            one = NetworkRunner(part, torch.device("cuda"), layer.shape, plan=plan)
            took = microseconds(lambda one=one: one(*values))
            tiling = plan.tilings[-1]
            what = f"{layer.size} /{layer.stride}" if isinstance(layer, Convolution) else type(layer).__name__
            say(
                f"  {took:7.1f} {took - before:+6.1f} {part.name(end - 1)} {what} {layer.reads} -> {layer.shape} {tiling}"
            )
            before = took
    return line


def main() -> None:
    """All models of the command line."""
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
