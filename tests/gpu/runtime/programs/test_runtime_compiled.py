"""``torch.compile(backend="tileprof")`` on a GPU never changes a result, eagerly, captured, and on several streams."""

from __future__ import annotations

import gc
import os

import pytest
import torch
from torch import nn

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

# The suite interprets Triton, but these kernels are compiled; imports decide that.
INTERPRET = os.environ.get("TRITON_INTERPRET", "0")
os.environ["TRITON_INTERPRET"] = "0"
import tileprof.runtime.policy_on_gpu  # noqa: E402, F401 - see above
from tileprof.runtime.compile.regions.products import ChainRunner  # noqa: E402

os.environ["TRITON_INTERPRET"] = INTERPRET
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # Inductor imports it
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
]


@pytest.fixture(autouse=True)
def one_compile_thread(monkeypatch):
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)


class Gated(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(*s, bias=False) for s in ((width, inner), (width, inner), (inner, width))
        )

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


MODELS = {
    "gelu": lambda: nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)),
    "gated": lambda: Gated(512, 768),
}


@pytest.fixture(params=list(MODELS))
def case(request):
    torch._dynamo.reset()
    torch.manual_seed(0)
    return MODELS[request.param]().cuda().half().eval(), torch.randn(96, 512, device="cuda", dtype=torch.float16)


def close(value, expected) -> bool:
    return bool((value.double() - expected.double()).norm() < 1e-2 * expected.double().norm())


@pytest.mark.parametrize("use", ["measured", "always"])
def test_results_are_pytorchs(case, use) -> None:
    model, x = case
    compiled = torch.compile(model, backend="tileprof", options={"use": use})
    with torch.no_grad():
        first, second = compiled(x), compiled(x + 1)
        assert close(first, model(x))  # a later call has not overwritten it
        assert close(second, model(x + 1))


def test_a_captured_call_replays(case) -> None:
    model, x = case
    compiled = torch.compile(model, backend="tileprof", options={"use": "always"})
    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        compiled(x)
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            out = compiled(x)
        for number in range(20):
            x.copy_(torch.randn_like(x) + number)
            graph.replay()
            side.synchronize()
            assert close(out, model(x))


def test_calls_on_two_streams_do_not_share_semaphores(case) -> None:
    model, x = case
    compiled = torch.compile(model, backend="tileprof", options={"use": "always"})
    streams, outs = [torch.cuda.Stream() for _ in range(2)], []
    with torch.no_grad():
        compiled(x)
        torch.cuda.synchronize()
        for number in range(50):
            with torch.cuda.stream(streams[number % 2]):
                outs.append(compiled(x))
        torch.cuda.synchronize()
        assert all(close(out, model(x)) for out in outs)


@pytest.mark.parametrize("tokens", [16, 64])
def test_a_llama_mlp_whose_weights_stay_runs_in_the_persistent_kernel_and_follows_them_all_the_same(tokens) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Gated(4096, 11008).cuda().half().eval()
    x = torch.randn(tokens, 4096, device="cuda", dtype=torch.float16)
    compiled = torch.compile(model, backend="tileprof", options={"use": "always", "frozen": True})
    with torch.no_grad():
        assert close(compiled(x), model(x))
        result = [m.pipeline for m in gc.get_objects() if type(m) is ChainRunner]
        pipeline = next(p for p in result if p.inputs["x"].shape == (tokens, 4096))
        assert pipeline.scheduler.name == "persistent"
        assert len(pipeline.chain.operators) == 2
        model.up.weight.mul_(2)
        assert close(compiled(x), model(x))
        model.load_state_dict({name: torch.randn_like(w) / 64 for name, w in model.state_dict().items()})
        assert close(compiled(x), model(x))
        model.gate.weight = nn.Parameter(torch.randn_like(model.gate.weight) / 64)
        assert close(compiled(x), model(x))
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            compiled(x)
            side.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                out = compiled(x)
            x.copy_(torch.randn_like(x))
            graph.replay()
            side.synchronize()
            assert close(out, model(x))
