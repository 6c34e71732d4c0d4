"""GPT-2 with random weights: one forward pass over random tokens, or with --train one optimiser step."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from tileprof.examples.parts.common import building, library, positive, print_result, stepped, stepping, torch

# layers, heads, width of the published models (Radford et al., 2019, table 2).
PRESETS = {"small": (12, 12, 768), "medium": (24, 16, 1024), "large": (36, 20, 1280), "xl": (48, 25, 1600)}


def main(argv: Sequence[str] | None = None) -> None:
    """Run GPT-2 as ``argv`` asks and print one line."""
    options = _options(argv)
    with building(options):
        model = build(options)
        tokens = torch.randint(0, model.config.vocab_size, (options.batch, options.tokens))
    print_result("gpt2", _output(model, tokens, options))


def build(options: Namespace) -> Any:
    """Return the model: weights are random, so nothing is downloaded; dropout is off."""
    layers, heads, width = PRESETS[options.preset]
    transformers = library("transformers")
    config = transformers.GPT2Config(
        n_layer=options.layers or layers,
        n_head=heads,
        n_embd=width,
        n_positions=max(1024, options.tokens),
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config).eval()


def _output(model: Any, tokens: Any, options: Namespace) -> Any:
    """Return the logits, or with ``--train`` the loss of next-token prediction before an optimiser step (AdamW)."""
    if not options.train:
        return stepped("gpt2", options, lambda: model(tokens).logits)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def once() -> Any:
        optimiser.zero_grad()
        with torch.enable_grad():
            logits = model(tokens[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
        optimiser.step()
        return loss

    return stepped("gpt2", options, once)


def _options(argv: Sequence[str] | None) -> Namespace:
    options = stepping(__doc__)
    options.add_argument("--preset", choices=list(PRESETS), default="small", help="size of the model")
    options.add_argument("--layers", type=positive, help="number of layers (default: that of the preset)")
    options.add_argument("--tokens", type=positive, default=128, help="tokens of each input")
    options.add_argument("--train", action="store_true", help="one optimiser step instead of one forward pass")
    values = options.parse_args(argv)
    if values.train and values.tokens < 2:
        options.error("--train predicts the next token: expected --tokens 2 or more, got 1")
    return values


if __name__ == "__main__":
    main()
