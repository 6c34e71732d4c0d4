"""A mixture-of-experts layer whose router really routes: which tokens meet which expert depends on the data.

Shapes follow Mixtral's layer (8 experts, 2 per token, SwiGLU), narrower by default so that a laptop runs it at once.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from tileprof.examples.parts.common import building, positive, print_result, stepped, stepping, torch

nn = torch.nn


class Expert(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A SwiGLU MLP."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Any) -> Any:
        """``[tokens, width]`` to ``[tokens, width]``."""
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class MixtureOfExperts(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Each token goes to its ``top`` experts; their outputs are summed, weighted by the router."""

    def __init__(self, options: Namespace) -> None:
        super().__init__()
        self.top = options.top
        self.router = nn.Linear(options.width, options.experts, bias=False)
        self.experts = nn.ModuleList(Expert(options.width, options.inner) for _ in range(options.experts))

    def forward(self, x: Any) -> Any:
        """``[tokens, width]`` to ``[tokens, width]``."""
        weights, chosen = torch.topk(self.router(x).softmax(dim=-1), self.top, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            if len(token):
                routed = expert(x.index_select(0, token)) * weights[token, rank, None]
                result.index_add_(0, token, routed)
        return result


def main(argv: Sequence[str] | None = None) -> None:
    """Run the layer as ``argv`` asks and print one line."""
    options = _options(argv)
    with building(options):
        model = MixtureOfExperts(options)
        tokens = torch.randn(options.batch * options.tokens, options.width)
    print_result("moe", stepped("moe", options, lambda: model(tokens)))


def _options(argv: Sequence[str] | None) -> Namespace:
    options = stepping(__doc__, capturable=False)
    options.add_argument("--experts", type=positive, default=8, help="experts")
    options.add_argument("--top", type=positive, default=2, help="experts per token")
    options.add_argument("--tokens", type=positive, default=128, help="tokens of each input")
    options.add_argument("--width", type=positive, default=512, help="width of a token (Mixtral 8x7B: 4096)")
    options.add_argument("--inner", type=positive, default=1792, help="width inside an expert (Mixtral 8x7B: 14336)")
    values = options.parse_args(argv)
    if values.top > values.experts:
        options.error(f"--top {values.top}: expected at most --experts {values.experts}")
    return values


if __name__ == "__main__":
    main()
