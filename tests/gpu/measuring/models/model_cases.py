"""Whole models that `measure_models.py` times: classes of transformers, timm and torchvision as they are, with random
weights.

`TABLE` are those that kernels are made for. `HELD_OUT` was fixed before anything was measured on it, and nothing is
tuned for it: there a program has to be right, and not slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class Case:
    """A model, its arguments, and the tensors that a call changes. ``reference`` computes the same in float32."""

    model: nn.Module
    inputs: dict[str, Any]
    reference: Callable[[], torch.Tensor]
    changed: list[torch.Tensor] = field(default_factory=list)
    args: tuple[Any, ...] = ()

    def call(self, model: Callable[..., Any]) -> torch.Tensor:
        return main_tensor(model(*self.args, **self.inputs))


def main_tensor(result: Any) -> torch.Tensor:
    """Return the result that is compared: logits, the last hidden state, or the tensor itself."""
    for name in ("logits", "last_hidden_state"):
        if getattr(result, name, None) is not None:
            return getattr(result, name)
    return result if isinstance(result, torch.Tensor) else result[0]


def in_float32(model: nn.Module, *args: Any, **inputs: Any) -> torch.Tensor:
    """Return the result of a float32 copy of a model, and delete the copy."""
    import copy

    exact = copy.deepcopy(model).float()
    args = tuple(a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)
    with torch.no_grad():
        return main_tensor(exact(*args, **inputs)).float()


def image(maker: Callable[[], nn.Module], batch: int, device: str, *, size: int = 224) -> Case:
    """A network for images, fp16, channels last; batch norm with statistics that are not its defaults."""
    model = maker().eval()
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low in (
                (module.running_mean, -0.1),
                (module.running_var, 0.8),
                (module.weight.data, 0.8),
                (module.bias.data, -0.1),
            ):
                tensor.copy_(low + 0.4 * torch.rand(tensor.shape, generator=generator))
    model = model.half().to(device, memory_format=torch.channels_last)
    x = torch.randn(batch, 3, size, size, generator=generator).half().to(device, memory_format=torch.channels_last)
    return Case(model, {}, lambda: in_float32(model, x), args=(x,))


def tokens(model: nn.Module, dtype: torch.dtype, count: int, device: str, *, batch: int = 1, **more: Any) -> Case:
    """A language model over ``count`` tokens at once, without a cache."""
    model = model.to(dtype).eval().to(device)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.config.vocab_size, (batch, count), generator=generator).to(device)
    inputs = {"input_ids": ids, **more}
    return Case(model, inputs, lambda: in_float32(model, **inputs))


def decoding(model: nn.Module, dtype: torch.dtype, batch: int, cached: int, room: int, device: str) -> Case:
    """One token per sequence with a static cache that holds ``cached`` tokens and has ``room`` for more."""
    from transformers import StaticCache

    model = model.to(dtype).eval().to(device)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.config.vocab_size, (batch, cached + 1), generator=generator).to(device)
    cache = StaticCache(config=model.config, max_cache_len=room)
    with torch.no_grad():
        model(input_ids=ids[:, :cached], past_key_values=cache, use_cache=True)
    state_tensors = [t for layer in cache.layers for t in (layer.keys, layer.values, layer.cumulative_length)]
    inputs = {"input_ids": ids[:, cached:].contiguous(), "past_key_values": cache, "use_cache": True}
    return Case(model, inputs, lambda: in_float32(model, input_ids=ids, use_cache=False)[:, -1:], state_tensors)


def llama_1b(device: str, *, tiny: bool) -> nn.Module:
    """LLaMA-3.2-1B's shape."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = (
        {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "vocab_size": 512,
        }
        if tiny
        else {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "vocab_size": 128256,
        }
    )
    with torch.device(device):
        return LlamaForCausalLM(
            LlamaConfig(**sizes, max_position_embeddings=2048, rope_theta=500000.0, tie_word_embeddings=True)
        )


def of_transformers(name: str, config: str, device: str, tiny_sizes: dict[str, int] | None, **sizes: Any) -> nn.Module:
    """Return a model of transformers from its configuration; ``tiny_sizes`` replace the default sizes."""
    import transformers

    with torch.device(device):
        return getattr(transformers, name)(getattr(transformers, config)(**(sizes | (tiny_sizes or {}))))


def timm_model(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False)

    return make


def torchvision_model(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import torchvision

        return getattr(torchvision.models, name)(weights=None)

    return make


TINY_BERT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
}
TINY_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 512}
TINY_DISTILBERT = {"dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 128, "vocab_size": 512}
TINY_T5 = {"d_model": 64, "d_kv": 32, "d_ff": 128, "num_layers": 2, "num_heads": 2, "vocab_size": 512}
TINY_OPT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "ffn_dim": 128,
    "num_attention_heads": 2,
    "word_embed_proj_dim": 64,
    "vocab_size": 512,
}
TINY_QWEN = TINY_BERT | {"num_key_value_heads": 1}
QWEN = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
PYTHIA = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "vocab_size": 50304,
}
HALF, BF16 = torch.float16, torch.bfloat16

TABLE: dict[str, Callable[[str, bool], Case]] = {
    "LLaMA-1B, 1 token": lambda d, t: decoding(llama_1b(d, tiny=t), BF16, 1, 16 if t else 512, 64 if t else 1024, d),
    "LLaMA-1B, 1 token, batch 8": lambda d, t: decoding(
        llama_1b(d, tiny=t), BF16, 8, 16 if t else 512, 64 if t else 1024, d
    ),
    "LLaMA-1B, 64 tokens": lambda d, t: tokens(llama_1b(d, tiny=t), BF16, 64, d, use_cache=False),
    "LLaMA-1B, 512 tokens": lambda d, t: tokens(llama_1b(d, tiny=t), BF16, 512, d, use_cache=False),
    "GPT-2, 128 tokens": lambda d, t: tokens(
        of_transformers("GPT2Model", "GPT2Config", d, TINY_GPT2 if t else None), HALF, 128, d, use_cache=False
    ),
    "BERT base, 128 tokens": lambda d, t: tokens(
        of_transformers("BertModel", "BertConfig", d, TINY_BERT if t else None), HALF, 128, d
    ),
    "ViT-B/16": lambda d, t: image(
        timm_model("test_vit" if t else "vit_base_patch16_224"), 1, d, size=160 if t else 224
    ),
    "ResNet-18": lambda d, _: image(torchvision_model("resnet18"), 1, d),
    "ResNet-18, batch 8": lambda d, t: image(torchvision_model("resnet18"), 2 if t else 8, d),
    "ResNet-50": lambda d, t: image(torchvision_model("resnet18" if t else "resnet50"), 1, d),
    "VGG-16": lambda d, t: image(torchvision_model("vgg11" if t else "vgg16"), 1, d),
}

HELD_OUT: dict[str, Callable[[str, bool], Case]] = {
    "ConvNeXt-T": lambda d, t: image(
        timm_model("test_convnext" if t else "convnext_tiny"), 1, d, size=160 if t else 224
    ),
    "EfficientNet-B0": lambda d, t: image(
        timm_model("test_efficientnet" if t else "efficientnet_b0"), 1, d, size=160 if t else 224
    ),
    "MobileNetV3-L": lambda d, _: image(timm_model("mobilenetv3_large_100"), 1, d),
    "Swin-T": lambda d, _: image(timm_model("swin_tiny_patch4_window7_224"), 1, d),
    "DeiT-S/16": lambda d, _: image(timm_model("deit_small_patch16_224"), 1, d),
    "DenseNet-121": lambda d, _: image(timm_model("densenet121"), 1, d),
    "DistilBERT, 64 tokens": lambda d, t: tokens(
        of_transformers("DistilBertModel", "DistilBertConfig", d, TINY_DISTILBERT if t else None), HALF, 64, d
    ),
    "RoBERTa base, 96 tokens": lambda d, t: tokens(
        of_transformers("RobertaModel", "RobertaConfig", d, TINY_BERT if t else None), HALF, 96, d
    ),
    "T5 small encoder, 128 tokens": lambda d, t: tokens(
        of_transformers("T5EncoderModel", "T5Config", d, TINY_T5 if t else None), BF16, 128, d
    ),
    "OPT-125M, 128 tokens": lambda d, t: tokens(
        of_transformers("OPTModel", "OPTConfig", d, TINY_OPT if t else None), HALF, 128, d, use_cache=False
    ),
    "Pythia-160M, 128 tokens": lambda d, t: tokens(
        of_transformers("GPTNeoXModel", "GPTNeoXConfig", d, TINY_BERT if t else None, **PYTHIA),
        HALF,
        128,
        d,
        use_cache=False,
    ),
    "Qwen2-0.5B, 1 token": lambda d, t: decoding(
        of_transformers("Qwen2ForCausalLM", "Qwen2Config", d, TINY_QWEN if t else None, **QWEN),
        BF16,
        1,
        16 if t else 128,
        64 if t else 256,
        d,
    ),
}

AUTOTUNED = ("LLaMA-1B, 1 token", "GPT-2, 128 tokens", "ResNet-18", "VGG-16")
"""Models that are also measured with ``max-autotune-no-cudagraphs``."""
