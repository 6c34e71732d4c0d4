"""The prefill kernel on a GPU: compared with plain PyTorch, and bit for bit with itself under delays; waits that time
out; whole models.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[4]))
from tests.support.runtime.prefill_model import HostModel
from tileprof.errors import UserError
from tileprof.runtime.persistent.model_kernel import LaunchOptions
from tileprof.runtime.prefill.prefill_launch import Prefill
from tileprof.runtime.prefill.shape import PrefillShape

try:
    import transformers

    GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
except ImportError:
    GPU = False
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="needs a GPU of sm_90 and transformers")]

SMALL = PrefillShape(
    "bfloat16",
    batch=1,
    length=40,
    layers=2,
    hidden=512,
    intermediate=1024,
    heads=8,
    kv_heads=2,
    head_dim=64,
    vocabulary=2048,
    epsilon=1e-5,
    scale=0.125,
    cache=48,
)
LLAMA_1B = replace(SMALL, length=64, hidden=2048, intermediate=8192, heads=32, kv_heads=8, vocabulary=4096, cache=64)
CASES: dict[str, PrefillShape] = {
    "small": SMALL,
    "two tokens, nothing kept": replace(SMALL, length=2, cache=0),
    "float16, two sequences": replace(SMALL, batch=2, length=32, dtype="float16"),
    "more heads than blocks": replace(SMALL, heads=70, kv_heads=70, batch=8, length=8),
    "layers of LLaMA-1B": LLAMA_1B,
    "an odd number of layers, a wide gate": replace(SMALL, layers=3, intermediate=14336, hidden=4096),
}


def logits_of(model: HostModel, prefill: Prefill) -> torch.Tensor:
    logits = model.logits()
    prefill.launch(model.layers, model.tensors, logits)
    return logits


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", CASES)
def test_results_are_pytorchs_and_the_same_bits_in_every_launch(name):
    shape = CASES[name]
    model, prefill = HostModel(shape, "cuda"), Prefill(shape, "cuda")
    expected, cache = model.expected()
    first = logits_of(model, prefill)
    tolerance = {"float16": 5e-3, "bfloat16": 3e-2}[shape.dtype]
    assert error(first, expected) < tolerance
    if shape.cache:
        for layer, reference in zip(model.layers, cache, strict=True):
            for role, rows in zip(("keys", "values"), reference, strict=True):
                assert error(layer[role][:, :, : shape.length], rows) < tolerance
                assert layer[role][:, :, shape.length :].isnan().all()
    for _ in range(5):
        assert torch.equal(logits_of(model, prefill), first)
    prefill.check()


def test_ten_thousand_delayed_launches_give_the_same_bits():
    shape = replace(LLAMA_1B, layers=1, cache=0)
    model = HostModel(shape, "cuda")
    plain = logits_of(model, Prefill(shape, "cuda"))
    prefill, logits = Prefill(shape, "cuda", LaunchOptions(delay_ns=20_000)), model.logits()
    different = torch.zeros((), dtype=torch.int64, device="cuda")

    def step() -> None:
        logits.zero_()
        prefill.launch(model.layers, model.tensors, logits)
        different.add_((logits != plain).any())

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    different.zero_()
    for _ in range(10_000):
        graph.replay()
    prefill.check()
    assert int(different) == 0


def test_a_wait_that_cannot_end_is_named_and_the_next_launch_is_right():
    model = HostModel(SMALL, "cuda")
    plain = logits_of(model, Prefill(SMALL, "cuda"))
    prefill = Prefill(SMALL, "cuda", LaunchOptions(timeout_ns=20_000_000, delay_ns=200_000_000))
    logits_of(model, prefill)
    with pytest.raises(RuntimeError, match=r"stage \w+ of layer \d.* waited for (flag|vector) \d+ of "):
        prefill.check()
    assert torch.equal(logits_of(model, Prefill(SMALL, "cuda")), plain)
    prefill.check()


def test_two_streams_have_prefills_of_their_own():
    shape = replace(LLAMA_1B, cache=0)
    model = HostModel(shape, "cuda")
    expected = logits_of(model, Prefill(shape, "cuda"))
    streams = [torch.cuda.Stream() for _ in range(2)]
    twins = [Prefill(shape, "cuda") for _ in streams]
    torch.cuda.synchronize()
    results: list[torch.Tensor] = []
    for _ in range(20):
        for stream, twin in zip(streams, twins, strict=True):
            with torch.cuda.stream(stream):
                results.append(logits_of(model, twin))
    torch.cuda.synchronize()
    for twin in twins:
        twin.check()
    assert all(torch.equal(result, expected) for result in results)


def test_what_the_kernel_does_not_take_is_refused_with_a_sentence():
    with pytest.raises(UserError, match="65 rows of tokens"):
        Prefill(replace(SMALL, length=65), "cuda")


@pytest.mark.parametrize("cached", [False, True])
def test_a_whole_model_is_taken_and_right(cached):
    torch.manual_seed(0)
    torch._dynamo.reset()
    config = transformers.LlamaConfig(
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=2048,
    )
    model = transformers.LlamaForCausalLM(config).bfloat16().cuda().eval()
    ids = torch.randint(0, 2048, (2, 24), device="cuda")
    kinds: list[str] = []

    def call(step: Any) -> Any:
        with torch.no_grad():
            return step(ids, use_cache=cached)

    launch = Prefill.launch

    def count_launch(self: Prefill, *args: Any) -> None:
        kinds.append("prefill")
        launch(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Prefill, "launch", count_launch)
        actual = call(torch.compile(model, backend="tileprof", dynamic=False, options={"use": "always"}))
    assert kinds
    eager, exact = call(model), call(model.float())
    assert error(actual.logits, exact.logits) < 1.3 * error(eager.logits, exact.logits)
    if cached:
        for layer, expected in zip(actual.past_key_values.layers, exact.past_key_values.layers, strict=True):
            assert error(layer.keys, expected.keys) < 2e-2
            assert error(layer.values, expected.values) < 2e-2
