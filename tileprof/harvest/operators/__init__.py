"""PyTorch's own kernels (ATen's): a grid of shapes per operator, in three types.

A case is (operator, type, a, b, c): the operator by its place in `OPERATORS`, and up to three sizes that its builder
takes. A builder's tensors are warm in L2, as they are after the launch before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.harvest.operators import elementwise, indexing, layers, norms, reductions
from tileprof.harvest.product_cases import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tileprof.harvest.operators.registry import Entry

COLUMNS: Final = ("operator", "dtype", "a", "b", "c")
_REPETITIONS: Final = 3
OPERATORS: Final[list[Entry]] = [
    *norms.OPERATORS,
    *indexing.OPERATORS,
    *reductions.OPERATORS,
    *layers.OPERATORS,
    *elementwise.OPERATORS,
]
"""All operators. Harvests on disk hold their places here: new ones go to the end of this list."""


class Operators:
    """The family; see the module."""

    name = "operators"
    columns = COLUMNS

    def __init__(self) -> None:
        self._torch: Any = None

    def cases(self) -> NDArray[np.int64]:
        """Return all cases, mixed, so that a cut harvest has some of each operator."""
        rows = [
            (number, dtype, *sizes)
            for number, (_, _, types, some) in enumerate(OPERATORS)
            for dtype in types
            for sizes in some
        ]
        cases = np.array(rows, np.int64)
        return cases[np.random.default_rng(0).permutation(len(cases))]

    def prepare(self) -> None:
        """Fix the random numbers."""
        import torch  # noqa: PLC0415 - heavy

        self._torch = torch
        torch.manual_seed(0)

    def calls(self, case: tuple[int, ...]) -> Sequence[Callable[[], object]]:
        """Return the repetitions of a case."""
        number, dtype, a, b, c = case
        torch = self._torch
        types = {Dtype.FP32: torch.float32, Dtype.FP16: torch.float16, Dtype.BF16: torch.bfloat16}
        call = OPERATORS[number][1](torch, types[Dtype(dtype)], a, b, c)
        return [call] * _REPETITIONS


FAMILY: Final = Operators()
