"""Shapes of DeepBench (Baidu, 2016-2018): one product, one recurrent layer or one convolution, with random values.

``--list`` prints the shapes: those of its tables for training and for inference on servers that differ in more than the
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tileprof.examples.parts.common import building, forward, parser, positive, print_result, torch
from tileprof.examples.parts.recurrent import Unrolled

nn = torch.nn

PRODUCTS = (
    (1760, 128, 1760), (2048, 64, 2048), (2560, 64, 2560), (4096, 16, 4096), (5124, 700, 2048), (35, 700, 2048),
    (5124, 1500, 2560), (7680, 4, 2560), (3072, 1500, 1024), (1024, 700, 512), (8448, 32, 2816), (512, 1500, 2816),
)  # fmt: skip
"""m, n, k."""

RECURRENT = (
    ("vanilla", 1760, 50), ("vanilla", 2048, 50), ("vanilla", 2560, 50), ("lstm", 512, 25), ("lstm", 1024, 25),
    ("lstm", 2048, 25), ("lstm", 1536, 50), ("lstm", 256, 150), ("gru", 2816, 187), ("gru", 2048, 187),
    ("gru", 1536, 187), ("gru", 512, 1),
)  # fmt: skip
"""Cell, width of the state, time steps."""

CONVOLUTIONS = (
    (700, 161, 1, 32, 20, 5, 0, 2), (341, 79, 32, 32, 10, 5, 0, 2), (480, 48, 1, 16, 3, 3, 1, 1),
    (240, 24, 16, 32, 3, 3, 1, 1), (120, 12, 32, 64, 3, 3, 1, 1), (60, 6, 64, 128, 3, 3, 1, 1),
    (108, 108, 3, 64, 3, 3, 1, 2), (54, 54, 64, 64, 3, 3, 1, 1), (224, 224, 3, 64, 7, 7, 3, 2),
    (112, 112, 64, 128, 3, 3, 1, 1), (56, 56, 128, 256, 3, 3, 1, 1), (28, 28, 192, 32, 5, 5, 2, 1),
    (28, 28, 256, 512, 3, 3, 1, 1), (14, 14, 512, 192, 1, 1, 0, 1), (7, 7, 832, 128, 5, 5, 2, 1),
    (7, 7, 512, 2048, 1, 1, 0, 1),
)  # fmt: skip
"""Width, height, channels, filters, width and height of a filter, padding, stride."""

CELLS: dict[str, Callable[[int, int], Any]] = {"vanilla": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}

SHAPES: dict[str, tuple[str, tuple[Any, ...]]] = {
    **{"gemm-" + "x".join(map(str, shape)): ("gemm", shape) for shape in PRODUCTS},
    **{"-".join(map(str, shape)): ("recurrent", shape) for shape in RECURRENT},
    **{"conv-{}x{}x{}-{}-{}x{}".format(*shape): ("conv", shape) for shape in CONVOLUTIONS},
}
"""Name to kind and numbers."""


class Product(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A matrix [m, k] that is multiplied with others."""

    def __init__(self, m: int, k: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(m, k))

    def forward(self, x: Any) -> Any:
        """``[k, n]`` to ``[m, n]``."""
        return self.weight @ x


def problem(name: str, batch: int, steps: int | None) -> tuple[Any, Any]:
    """Return the module of a shape, and its input; ``steps`` cuts a recurrent layer short."""
    kind, shape = SHAPES[name]
    if kind == "gemm":
        m, n, k = shape
        return Product(m, k), torch.randn(k, n)
    if kind == "recurrent":
        cell, hidden, length = shape
        return Unrolled(CELLS[cell], 1, hidden), torch.randn(min(steps or length, length), batch, hidden)
    width, height, channels, filters, across, down, padding, stride = shape
    layer = nn.Conv2d(channels, filters, (down, across), stride=stride, padding=padding, bias=False)
    return layer, torch.randn(batch, channels, height, width)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the shape that ``argv`` names and print one line, or the names of all shapes."""
    options = parser(__doc__)
    options.add_argument(
        "--shape",
        choices=list(SHAPES),
        default="gemm-5124x700x2048",
        metavar="NAME",
        help="shape to run (--list names all)",
    )
    options.add_argument("--steps", type=positive, help="time steps of a recurrent layer, instead of all")
    options.add_argument("--list", action="store_true", help="print the names of the shapes")
    values = options.parse_args(argv)
    if values.list:
        print("\n".join(SHAPES))
        return
    with building(values):
        model, inputs = problem(values.shape, values.batch, values.steps)
    print_result("deepbench", forward(model.eval(), inputs))


if __name__ == "__main__":
    main()
