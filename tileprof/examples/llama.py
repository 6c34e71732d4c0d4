"""LLaMA with random weights: the forward pass over a prompt. `tileprof record --fake` runs 70b without its memory."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from tileprof.examples.parts.common import building, forward, library, parser, positive, print_result, torch

# layers, heads, key-value heads, width, feed-forward width. 7b, 13b and 70b as in LLaMA 2 (Touvron et al., 2023);
# 65b as in the first LLaMA, the size that the cuSync paper uses; tiny is ours, for a plain run in seconds.
PRESETS = {
    "tiny": (2, 8, 4, 512, 1376),
    "7b": (32, 32, 32, 4096, 11008),
    "13b": (40, 40, 40, 5120, 13824),
    "65b": (80, 64, 64, 8192, 22016),
    "70b": (80, 64, 8, 8192, 28672),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run LLaMA as ``argv`` asks and print one line."""
    options = _options(argv)
    with building(options):
        model = build(options)
        tokens = torch.randint(0, model.config.vocab_size, (options.batch, options.tokens))
    print_result("llama", forward(model, tokens).logits)


def build(options: Namespace) -> Any:
    """Return the model: weights are random, so nothing is downloaded; no key-value cache is kept."""
    layers, heads, kv_heads, width, inner = PRESETS[options.preset]
    transformers = library("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=options.layers or layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        hidden_size=width,
        intermediate_size=inner,
        max_position_embeddings=max(4096, options.tokens),
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config).eval()


def _options(argv: Sequence[str] | None) -> Namespace:
    options = parser(__doc__, dtype="bfloat16")
    options.add_argument("--preset", choices=list(PRESETS), default="tiny", help="size of the model")
    options.add_argument("--layers", type=positive, help="number of layers (default: that of the preset)")
    options.add_argument("--tokens", type=positive, default=128, help="tokens of each prompt")
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
