"""One GPU's share of a transformer's MLP under eight-way tensor parallelism, as in the cuSync paper (section V)."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from tileprof.examples.parts.common import building, forward, parser, positive, print_result, torch


class GeluMlp(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """GPT-3 175B / 8: 12288 to 6144, GELU, back to 12288."""

    width, inner = 12288, 6144

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(self.width, self.inner, bias=False)
        self.down = torch.nn.Linear(self.inner, self.width, bias=False)

    def forward(self, x: Any) -> Any:
        """``[tokens, width]`` to ``[tokens, width]``."""
        return self.down(torch.nn.functional.gelu(self.up(x)))


class SwigluMlp(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """LLaMA 65B / 8: 8192 to gate and up in one GEMM, SwiGLU, back to 8192.

    22016 / 8 = 2752 is padded to 2816, a multiple of 256, as in the cuSync authors' benchmark.
    """

    width, inner = 8192, 2816

    def __init__(self) -> None:
        super().__init__()
        self.gate_up = torch.nn.Linear(self.width, 2 * self.inner, bias=False)
        self.down = torch.nn.Linear(self.inner, self.width, bias=False)

    def forward(self, x: Any) -> Any:
        """``[tokens, width]`` to ``[tokens, width]``."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(torch.nn.functional.silu(gate) * up)


PRESETS: dict[str, type[GeluMlp | SwigluMlp]] = {"gpt3": GeluMlp, "llama": SwigluMlp}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the chain of MLPs that ``argv`` asks for and print one line."""
    options = _options(argv)
    with building(options):
        block = PRESETS[options.preset]
        model = torch.nn.Sequential(*(block() for _ in range(options.layers)))
        tokens = torch.randn(options.batch * options.tokens, block.width)
    print_result("mlp", forward(model, tokens))


def _options(argv: Sequence[str] | None) -> Namespace:
    options = parser(__doc__, dtype="float16")
    options.add_argument("--preset", choices=list(PRESETS), default="gpt3", help="model that the MLP is of")
    options.add_argument("--layers", type=positive, default=1, help="MLPs in a row")
    options.add_argument("--tokens", type=positive, default=512, help="tokens of each input")
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
