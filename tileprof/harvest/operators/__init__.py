"""PyTorch's own kernels (ATen's): a grid of shapes per operator, in three types.

A case is (operator, type, a, b, c): the operator by its place in `OPERATORS`, and up to three sizes that its builder
takes. A builder's tensors are warm in L2, as they are after the launch before. Its instructions are not in the SMs'
caches: a product, a norm and a reduction run before each repetition, as other kernels run before one in a program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.harvest.operators import elementwise, indexing, layers, norms, reductions, registry
from tileprof.harvest.products.product_cases import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tileprof.harvest.operators.registry import Entry

COLUMNS: Final = ("operator", "dtype", "a", "b", "c")
_REPETITIONS: Final = 5
OPERATORS: Final[list[Entry]] = [
    *norms.OPERATORS,
    *indexing.OPERATORS,
    *reductions.OPERATORS,
    *layers.OPERATORS,
    *elementwise.OPERATORS,
]
"""All operators. Harvests on disk hold their places here: their digest tells lists apart."""
_FREQUENT: Final = frozenset((
    "add", "mul", "silu", "gelu", "square", "rsqrt", "add_row", "mul_column", "mul_channels", "mul_channels_last",
    "add_mask", "cast_to_fp32_or_bf16", "cast_strided", "cast_heads", "compare", "where", "fill", "zeros", "arange",
    "dropout", "heads_copy", "matrix_copy", "transposed_copy", "strided_copy", "to_channels_last",
    "from_channels_last", "layer_norm", "group_norm", "batch_norm", "batch_norm_channels_last", "sum_columns",
    "sum_rows", "mean_rows", "mean_of_planes", "softmax_rows", "log_softmax_rows", "cat_2_rows", "cat_2_columns",
    "cat_heads", "cat_channels", "index_rows", "index_select", "index_put", "embedding",
    "embedding_backward", "topk_rows", "topk_many", "sort_rows", "sort_integers", "scatter_add", "scatter_reduce",
    "nms", "roi_align", "grouped_mm", "foreach_mul", "foreach_add_lists", "foreach_addcmul", "foreach_sqrt", "max_pool",
    "attention_plain", "attention_backward",
))  # fmt: skip
"""Operators that programs launch most (`tests/golden/clients.py`): they are measured first, in case time runs out."""


class Operators:
    """The family; see the module."""

    name = "operators"
    columns = COLUMNS

    def __init__(self) -> None:
        self._torch: Any = None
        self.before: Callable[[], object] | None = None

    def cases(self) -> NDArray[np.int64]:
        """Return all cases, frequent operators first, and mixed, so that a cut harvest has some of each operator."""
        rows = [
            (number, dtype, *sizes)
            for number, (_, _, types, some) in enumerate(OPERATORS)
            for dtype in types
            for sizes in some
        ]
        cases = np.array(rows, np.int64)
        cases = cases[np.random.default_rng(0).permutation(len(cases))]
        later = np.array([name not in _FREQUENT for name, *_ in OPERATORS])
        return cases[np.argsort(later[cases[:, 0]], kind="stable")]

    def prepare(self) -> None:
        """Fix the random numbers, and make operands of the kernels that run between repetitions."""
        import torch  # noqa: PLC0415 - heavy

        self._torch = torch
        torch.manual_seed(0)
        self.before = registry.other_kernels(torch)

    def calls(self, case: tuple[int, ...]) -> Sequence[Callable[[], object]]:
        """Return the repetitions of a case."""
        number, dtype, a, b, c = case
        torch = self._torch
        types = {Dtype.FP32: torch.float32, Dtype.FP16: torch.float16, Dtype.BF16: torch.bfloat16}
        call = OPERATORS[number][1](torch, types[Dtype(dtype)], a, b, c)
        return [call] * _REPETITIONS


FAMILY: Final = Operators()
