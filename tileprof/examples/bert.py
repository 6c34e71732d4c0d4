"""BERT with random weights: one encoder pass over random tokens."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from tileprof.examples.parts.common import building, forward, library, parser, positive, print_result, torch

# layers, heads, width, feed-forward width of the published models (Devlin et al., NAACL 2019, section 3).
PRESETS = {"base": (12, 12, 768, 3072), "large": (24, 16, 1024, 4096)}


def main(argv: Sequence[str] | None = None) -> None:
    """Run BERT as ``argv`` asks and print one line."""
    options = _options(argv)
    with building(options):
        model = build(options)
        tokens = torch.randint(0, model.config.vocab_size, (options.batch, options.tokens))
    print_result("bert", forward(model, tokens).last_hidden_state)


def build(options: Namespace) -> Any:
    """Return the encoder: weights are random, so nothing is downloaded; dropout is off."""
    layers, heads, width, inner = PRESETS[options.preset]
    transformers = library("transformers")
    config = transformers.BertConfig(
        num_hidden_layers=options.layers or layers,
        num_attention_heads=heads,
        hidden_size=width,
        intermediate_size=inner,
        max_position_embeddings=max(512, options.tokens),
    )
    return transformers.BertModel(config, add_pooling_layer=False).eval()


def _options(argv: Sequence[str] | None) -> Namespace:
    options = parser(__doc__)
    options.add_argument("--preset", choices=list(PRESETS), default="base", help="size of the model")
    options.add_argument("--layers", type=positive, help="number of layers (default: that of the preset)")
    options.add_argument("--tokens", type=positive, default=128, help="tokens of each input")
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
