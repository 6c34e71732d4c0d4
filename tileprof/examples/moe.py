"""A mixture-of-experts layer whose router really routes: which tokens meet which expert depends on the data.

Shapes follow Mixtral's layer (8 experts, 2 per token, SwiGLU), narrower by default so that a laptop runs it at once.
``--schedule`` runs it as one kernel whose tiles exist only once the tokens are routed (compute capability 9.0).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from tileprof.examples.common import building, positive, print_result, stepped, stepping, torch

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


def in_one_kernel(model: MixtureOfExperts, schedule: str, tokens: int) -> Any:
    """Return the layer as `tileprof.runtime.experts` runs it. Raises `UserError` where it cannot be."""
    from tileprof.runtime.experts.layer import Experts  # noqa: PLC0415 - needs a GPU, and only where it is asked for

    up = torch.stack([torch.cat([expert.gate.weight, expert.up.weight]) for expert in model.experts]).detach()
    down = torch.stack([expert.down.weight for expert in model.experts]).detach()
    return Experts(model.router.weight.detach(), up, down, tokens=tokens, top=model.top, schedule=schedule)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the layer as ``argv`` asks and print one line."""
    options = _options(argv)
    with building(options):
        model = MixtureOfExperts(options)
        tokens = torch.randn(options.batch * options.tokens, options.width)
    layer = in_one_kernel(model, options.schedule, len(tokens)) if options.schedule else model
    print_result("moe", stepped("moe", options, lambda: layer(tokens)))


def _options(argv: Sequence[str] | None) -> Namespace:
    options = stepping(__doc__, capturable=False)
    options.add_argument("--experts", type=positive, default=8, help="experts")
    options.add_argument("--top", type=positive, default=2, help="experts a token is sent to")
    options.add_argument("--tokens", type=positive, default=128, help="tokens of each input")
    options.add_argument("--width", type=positive, default=512, help="width of a token (Mixtral 8x7B: 4096)")
    options.add_argument("--inner", type=positive, default=1792, help="width inside an expert (Mixtral 8x7B: 14336)")
    options.add_argument(
        "--schedule",
        choices=("graph", "persistent-stages", "persistent", "persistent-dynamic", "ccks", "ccks-ready"),
        help="run the layer as one kernel under this schedule; needs --device cuda and 16-bit numbers",
    )
    values = options.parse_args(argv)
    if values.top > values.experts:
        options.error(f"--top {values.top}: expected at most --experts {values.experts}")
    return values


if __name__ == "__main__":
    main()
