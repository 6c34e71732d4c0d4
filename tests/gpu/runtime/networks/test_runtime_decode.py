"""The decoder's kernel on a GPU: compared with plain PyTorch, and bit for bit with itself under delays; waits that time
out; whole models.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from tests.support.runtime.decoder_shapes import SMALL
from tileprof.errors import UserError
from tileprof.runtime.decode.decoder_launch import Decoder
from tileprof.runtime.decode.shape import DecoderShape
from tileprof.runtime.persistent.model_kernel import LaunchOptions

try:
    import transformers

    GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
except ImportError:
    GPU = False
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="needs a GPU of sm_90 and transformers")]

LLAMA_1B = replace(
    SMALL, layers=1, hidden=2048, intermediate=8192, heads=32, kv_heads=8, vocabulary=4096, cache=1024
)  # fmt: skip
QWEN2 = replace(SMALL, batch=2, hidden=896, intermediate=4864, heads=14, kv_heads=2, biased=True, dtype="float16")
QWEN3 = replace(
    SMALL, batch=2, hidden=1024, intermediate=3072, heads=16, kv_heads=8, head_dim=128, head_norms=True, scale=128**-0.5
)  # fmt: skip
CASES: dict[str, tuple[DecoderShape, int]] = {
    "small": (SMALL, 9),
    "the first token": (SMALL, 0),
    "the last position": (replace(SMALL, batch=8), 255),
    "float16, three sequences": (replace(SMALL, batch=3, dtype="float16"), 31),
    "more heads than blocks": (replace(SMALL, batch=8, hidden=2048, heads=32, kv_heads=32), 250),
    "LLaMA-1B's layer": (LLAMA_1B, 512),
    "LLaMA-1B's layer, eight sequences": (replace(LLAMA_1B, batch=8), 700),
    "a long context": (replace(SMALL, cache=8192), 8000),
    "Qwen2": (QWEN2, 200),
    "Qwen3": (QWEN3, 200),
    "a mask": (replace(SMALL, batch=2, masked=-65504.0), 100),
}


class Model:
    """Return random weights and a cache, on the GPU, for a shape."""

    def __init__(self, shape: DecoderShape, position: int) -> None:
        self.shape, self.position = shape, position
        self.generator = torch.Generator("cuda").manual_seed(0)
        self.layers = [self._layer() for _ in range(shape.layers)]
        embedding = self.random(shape.vocabulary, shape.hidden, scale=1.0)
        angles = torch.cat(
            2 * [position / 10000 ** (torch.arange(0, shape.head_dim, 2, device="cuda") / shape.head_dim)]
        )[None]
        self.tensors: dict[str, Any] = {
            "embedding": embedding,
            "norm": 1 + self.random(shape.hidden, scale=0.1),
            "head": self.random(shape.vocabulary, shape.hidden),
            "tokens": torch.randint(0, shape.vocabulary, (shape.batch,), device="cuda", generator=self.generator),
            "cosine": angles.cos().to(embedding.dtype),
            "sine": angles.sin().to(embedding.dtype),
        }
        mask_bits = torch.arange(shape.cache, device="cuda") <= position
        if shape.masked is not None:
            mask_bits = mask_bits & (
                torch.rand(shape.batch, shape.cache, device="cuda", generator=self.generator) < 0.7
            )
            self.tensors["mask"] = mask_bits
        else:
            self.tensors["last"] = self.layers[0]["counter"]
        self.allowed = mask_bits.expand(shape.batch, shape.cache)

    def random(self, *sizes: int, scale: float = 0.0) -> torch.Tensor:
        values = torch.randn(*sizes, generator=self.generator, device="cuda") * (scale or sizes[-1] ** -0.5)
        return values.to(getattr(torch, self.shape.dtype))

    def _layer(self) -> dict[str, Any]:
        shape = self.shape
        hidden, wide, keys = shape.hidden, shape.intermediate, shape.kv_heads * shape.head_dim
        layer: dict[str, Any] = {
            "norm": 1 + self.random(hidden, scale=0.1),
            "middle_norm": 1 + self.random(hidden, scale=0.1),
            "query": self.random(shape.query, hidden),
            "key": self.random(keys, hidden),
            "value": self.random(keys, hidden),
            "output": self.random(hidden, shape.query),
            "gate": self.random(wide, hidden),
            "up": self.random(wide, hidden),
            "down": self.random(hidden, wide),
            "counter": torch.tensor(self.position, device="cuda"),
        }
        for role in ("keys", "values"):
            layer[role] = self.random(shape.batch, shape.kv_heads, shape.cache, shape.head_dim, scale=1.0)
        if shape.biased:
            layer |= {
                f"{r}_bias": self.random(n, scale=0.3)
                for r, n in (("query", shape.query), ("key", keys), ("value", keys))
            }
        if shape.head_norms:
            layer |= {role: 1 + self.random(shape.head_dim, scale=0.1) for role in ("query_norm", "key_norm")}
        return layer

    def decode(self, decoder: Decoder) -> torch.Tensor:
        """Return logits of one launch; counters are restored, so that every launch computes the same."""
        for layer in self.layers:
            layer["counter"].fill_(self.position)
        logits = torch.full(
            (self.shape.batch, self.shape.vocabulary), torch.nan, device="cuda", dtype=getattr(torch, self.shape.dtype)
        )
        decoder.launch(self.layers, self.tensors, logits)
        return logits

    def expected(self) -> torch.Tensor:
        """Return logits in float32, by PyTorch's operations."""
        shape, position = self.shape, self.position
        tensors = {name: t.float() if t.is_floating_point() else t for name, t in self.tensors.items()}
        x = F.embedding(tensors["tokens"], tensors["embedding"])
        for inputs in self.layers:
            layer = {name: t.float() for name, t in inputs.items()}
            h = rms(x, layer["norm"], shape)
            q, k, v = (
                F.linear(h, layer[r], layer.get(f"{r}_bias")).view(shape.batch, -1, shape.head_dim)
                for r in ("query", "key", "value")
            )
            if shape.head_norms:
                q, k = rms(q, layer["query_norm"], shape), rms(k, layer["key_norm"], shape)
            q, k = (t * tensors["cosine"] + rotated_half(t) * tensors["sine"] for t in (q, k))
            keys, values = layer["keys"].clone(), layer["values"].clone()
            keys[:, :, position], values[:, :, position] = k, v
            keys, values = (t.repeat_interleave(shape.sharers, 1) for t in (keys, values))
            attention_out = F.scaled_dot_product_attention(
                q[:, :, None], keys, values, self.allowed[:, None, None], scale=shape.scale
            )
            x = x + F.linear(attention_out.reshape(shape.batch, -1), layer["output"])
            h = rms(x, layer["middle_norm"], shape)
            x = x + F.linear(F.silu(F.linear(h, layer["gate"])) * F.linear(h, layer["up"]), layer["down"])
        return F.linear(rms(x, tensors["norm"], shape), tensors["head"])


def rms(x: torch.Tensor, weight: torch.Tensor, shape: DecoderShape) -> torch.Tensor:
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + shape.epsilon)


def rotated_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


@pytest.mark.parametrize("name", CASES)
def test_results_are_pytorchs(name):
    shape, position = CASES[name]
    model, decoder = Model(shape, position), Decoder(shape, "cuda")
    before = [{role: layer[role].clone() for role in ("keys", "values")} for layer in model.layers]
    expected = model.expected()
    actual = model.decode(decoder)
    decoder.check()
    error = float((actual.float() - expected).norm() / expected.norm())
    assert error < {"float16": 5e-3, "bfloat16": 3e-2}[shape.dtype]
    for layer, old in zip(model.layers, before, strict=True):
        assert int(layer["counter"]) == position + 1
        for role, cache in old.items():
            written_positions = (layer[role] != cache).any(-1).any(0).any(0).nonzero().flatten().tolist()
            assert written_positions == [position]


@pytest.mark.parametrize("name", ["LLaMA-1B's layer", "Qwen3"])
def test_ten_thousand_delayed_launches_give_the_same_bits(name):
    shape, position = CASES[name]
    model = Model(replace(shape, layers=1), position)
    plain = model.decode(Decoder(model.shape, "cuda"))
    decoder = Decoder(model.shape, "cuda", LaunchOptions(delay_ns=20_000))
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    model.decode(decoder)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        different += (model.decode(decoder) != plain).any()
    different.zero_()
    for _ in range(10_000):
        graph.replay()
    decoder.check()
    assert int(different) == 0


def test_a_context_that_grows_and_starts_again_finds_no_old_words():
    shape = replace(SMALL, cache=1024)
    models = {position: Model(shape, position) for position in (3, 40, 700, 1023)}
    decoder = Decoder(shape, "cuda")
    first = {position: model.decode(decoder) for position, model in models.items()}
    for position in (1023, 3, 700, 40, 1023, 1023, 3, 3, 700):
        assert torch.equal(models[position].decode(decoder), first[position])
    decoder.check()


def test_a_wait_that_cannot_end_names_stage_layer_and_words_and_the_next_launch_is_right():
    shape = replace(SMALL, layers=2)
    model = Model(shape, 9)
    plain = model.decode(Decoder(shape, "cuda"))
    decoder = Decoder(shape, "cuda", LaunchOptions(timeout_ns=20_000_000, delay_ns=200_000_000))
    model.decode(decoder)
    with pytest.raises(RuntimeError, match=r"stage \w+ of layer \d.* waited for word \d+ of '\w+'"):
        decoder.check()
    patient = Decoder(shape, "cuda")
    assert torch.equal(model.decode(patient), plain)
    decoder.check()


def test_two_streams_have_decoders_of_their_own():
    model = Model(LLAMA_1B, 512)
    expected = model.decode(Decoder(LLAMA_1B, "cuda"))
    streams = [torch.cuda.Stream() for _ in range(2)]
    twins = [(Model(LLAMA_1B, 512), Decoder(LLAMA_1B, "cuda")) for _ in streams]
    torch.cuda.synchronize()
    results: list[torch.Tensor] = []
    for _ in range(20):
        for stream, (twin, decoder) in zip(streams, twins, strict=True):
            with torch.cuda.stream(stream):
                results.append(twin.decode(decoder))
    torch.cuda.synchronize()
    for _, decoder in twins:
        decoder.check()
    assert all(torch.equal(result, expected) for result in results)


def test_what_the_kernel_does_not_take_is_refused_with_a_sentence():
    with pytest.raises(UserError, match="9 sequences"):
        Decoder(replace(SMALL, batch=9), "cuda")


def tokens_of(
    model: Any, step: Any, ids: torch.Tensor, count: int, forced: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return greedily decoded tokens, and how far the best logit of each is above the second.

    ``forced`` are tokens to continue with instead.
    """
    cache = transformers.StaticCache(config=model.config, max_cache_len=320)
    tokens, margins = [], []
    with torch.no_grad():
        logits = model(ids, past_key_values=cache, use_cache=True).logits[:, -1]
        for number in range(count):
            best = logits.float().topk(2).values
            tokens.append(logits.argmax(-1, keepdim=True))
            margins.append((best[:, :1] - best[:, 1:]) / best[:, :1].abs())
            going_on = tokens[-1] if forced is None else forced[:, number : number + 1]
            logits = step(going_on.clone(), past_key_values=cache, use_cache=True).logits[:, -1]
    return torch.cat(tokens, 1), torch.cat(margins, 1)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("Llama", "float16"), ("Llama", "bfloat16"), ("Qwen2", "float16"), ("Qwen3", "bfloat16")]
)
def test_a_whole_model_decodes_eagers_tokens(kind, dtype):
    torch.manual_seed(0)
    torch._dynamo.reset()
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=2048,
        initializer_range=0.06,  # with transformers' own 0.02 the tokens soon repeat
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(getattr(torch, dtype)).cuda().eval()
    ids = torch.randint(0, 2048, (1, 17), device="cuda")
    expected, margins = tokens_of(model, model, ids, 256)
    compiled = torch.compile(model, backend="tileprof", dynamic=False, options={"use": "always"})
    actual, _ = tokens_of(model, compiled, ids, 256, expected)
    assert len(expected.unique()) > 150
    tie, agreeing = {"float16": (2e-3, 0.98), "bfloat16": (2e-2, 0.9)}[dtype]
    assert (margins[actual != expected] < tie).all()
    assert (actual == expected).float().mean() > agreeing
