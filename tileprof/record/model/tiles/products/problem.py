"""A matrix product as tables know it: what PyTorch was asked for, its type, sizes and layouts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.record.model.tile_model import Operand

PLAIN, BIAS, MATRIX, BATCHES, BATCHES_AND_MATRIX, GROUPED, SCALED = range(7)
"""Numbers of `tileprof.harvest.products.product_cases.Op`."""
_TYPES: Final = {"float32": 0, "tf32": 1, "float16": 2, "bfloat16": 3, "float8_e4m3fn": 4}
"""Numbers of `tileprof.harvest.products.product_cases.Dtype`."""
FP32, TF32, FP16, BF16, FP8 = range(5)
KEY: Final = ("op", "dtype", "column_a", "column_b", "batch", "m", "n", "k")
_TWINS: Final = {MATRIX: PLAIN, BATCHES_AND_MATRIX: BATCHES}


@dataclass(frozen=True, slots=True)
class Problem:
    """``d[m, n] = a[m, k] @ b[k, n]``, ``batch`` times. ``column_a``: a's columns are contiguous, not its rows."""

    op: int
    dtype: int
    column_a: int
    column_b: int
    batch: int
    m: int
    n: int
    k: int

    @classmethod
    def of(cls, op: int, a: Operand, b: Operand, *, tf32: bool = False) -> Problem | None:
        """Return the problem of operands of three dimensions; None for types and layouts that no table has."""
        dtype = _TYPES.get("tf32" if tf32 and a.dtype == "float32" else a.dtype)
        columns = [_column(operand) for operand in (a, b)]
        if dtype is None or columns[0] is None or columns[1] is None:
            return None
        n = b.shape[2]
        return cls(op, dtype, columns[0], 1 if n == 1 else columns[1], a.shape[0], a.shape[1], n, a.shape[2])

    @property
    def key(self) -> tuple[int, ...]:
        """The key in tables, in the order of `KEY`."""
        return self.op, self.dtype, self.column_a, self.column_b, self.batch, self.m, self.n, self.k

    @property
    def twin(self) -> Problem:
        """The product without a matrix to add: it gets the same kernels."""
        op = _TWINS.get(self.op)
        return self if op is None else replace(self, op=op)


def twins(keys: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the keys of the twins (`Problem.twin`) of problems ``[problems, 8]``."""
    alike = keys.astype(np.int64)
    for op, other in _TWINS.items():
        alike[keys[:, 0] == op, 0] = other
    return alike


def _column(operand: Operand) -> int | None:
    """Return 0 where rows are contiguous, 1 where columns are; None where neither is.

    Strides decide first, as in PyTorch, also where a side has one element and both would do.
    """
    _, rows, columns = operand.shape
    _, row, column = operand.strides
    if column == 1:
        return 0
    if row == 1:
        return 1
    return 0 if columns == 1 else 1 if rows == 1 else None
