"""Matrix products as PyTorch calls them: mm, addmm, bmm, baddbmm, _grouped_mm, _scaled_mm.

``b`` is read from another place of a pool at each repetition and so is cold in L2, as a weight or an activation of
long ago is; ``a`` and the result are warm, as after the launch before. Batches (attention) are warm on both sides.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.harvest.products.product_cases import COLUMNS, Dtype, Op, harvested, held_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

CASES: Final = 400_000
_POOL: Final = 1 << 30
"""Elements of a pool, unless fewer are asked for."""
_PLACES: Final = 128
"""Places begin at multiples of this many elements: of 256 bytes at least."""
_REPETITIONS, _LONG, _LONG_REPETITIONS = 3, 2e11, 2
"""Long products (FLOPs, 200 us of a tensor core) are repeated less."""


class Products:
    """The family; see the module."""

    name = "products"
    columns = COLUMNS
    before = None

    def __init__(self, elements: int = _POOL) -> None:
        self._elements = elements
        self._pools: dict[int, Any] = {}
        self._at = 0
        self._torch: Any = None
        self._tf32 = False

    def cases(self) -> NDArray[np.int64]:
        """Return the held-out cases first, then those of the table."""
        return np.concatenate([held_out(), harvested(CASES)])

    def prepare(self) -> None:
        """Fill a pool of random numbers per type."""
        import torch  # noqa: PLC0415 - heavy

        self.use(torch, "cuda")

    def use(self, torch: Any, device: str) -> None:
        """Take operands from pools on a device."""
        self._torch = torch
        types = {
            Dtype.FP32: torch.float32, Dtype.FP16: torch.float16, Dtype.BF16: torch.bfloat16, Dtype.FP8: torch.bfloat16,
        }  # fmt: skip
        for dtype, kind in types.items():
            if dtype == Dtype.FP8:
                self._pools[dtype] = self._pools[Dtype.BF16].to(torch.float8_e4m3fn)
            else:
                self._pools[dtype] = torch.empty(self._elements + (1 << 20), dtype=kind, device=device).normal_()
        self._pools[Dtype.TF32] = self._pools[Dtype.FP32]
        self._one = torch.ones((), device=device)

    def calls(self, case: tuple[int, ...]) -> Sequence[Callable[[], object]]:
        """Return the repetitions of a product."""
        op, dtype, column_a, column_b, batch, m, n, k, _ = case
        products = 1 if op == Op.GROUPED else batch
        long = 2.0 * products * m * n * k > _LONG * (0.1 if dtype == Dtype.FP32 else 1)
        batched = op in (Op.BMM, Op.BADDBMM)
        a = self._matrix(dtype, batch if batched else 0, m, k, column=column_a, at=0)
        calls: list[Callable[[], object]] = []
        for _repetition in range(_LONG_REPETITIONS if long else _REPETITIONS):
            stacked = batch if batched or op == Op.GROUPED else 0
            place = _rounded(m * k * batch) if batched else self._next(k * n * max(1, stacked))
            last = (
                max(0, self._elements - k * n * max(1, stacked)) // _PLACES * _PLACES
            )  # huge operands overlap: both are read
            b = self._matrix(dtype, stacked, k, n, column=column_b, at=min(place, last))
            calls.append(self._call(op, dtype, a, b, case))
        return calls

    def _call(self, op: int, dtype: int, a: Any, b: Any, case: tuple[int, ...]) -> Callable[[], object]:
        torch = self._torch
        _, _, _, _, batch, m, n, _, _ = case
        pool = self._pools[dtype]
        if op == Op.MM:
            call = partial(torch.mm, a, b)
        elif op == Op.ADDMM:
            call = partial(torch.addmm, pool[:n], a, b)
        elif op == Op.ADDMM_MATRIX:
            call = partial(torch.addmm, pool[: m * n].view(m, n), a, b)
        elif op == Op.BMM:
            call = partial(torch.bmm, a, b)
        elif op == Op.BADDBMM:
            call = partial(torch.baddbmm, pool[: batch * m * n].view(batch, m, n), a, b)
        elif op == Op.GROUPED:
            ends = torch.arange(1, batch + 1, device=self._one.device, dtype=torch.int64) * m // batch
            call = partial(torch._grouped_mm, a, b, offs=ends.to(torch.int32))  # noqa: SLF001 - public enough
        else:
            product = partial(torch._scaled_mm, a, b, out_dtype=torch.bfloat16)  # noqa: SLF001 - as above
            call = partial(product, scale_a=self._one, scale_b=self._one)
        return partial(self._in_mode, call, tf32=dtype == Dtype.TF32) if dtype <= Dtype.TF32 else call

    def _in_mode(self, call: Callable[[], object], *, tf32: bool) -> object:
        if tf32 != self._tf32:
            self._torch.backends.cuda.matmul.allow_tf32 = self._tf32 = tf32
        return call()

    def _matrix(self, dtype: int, batch: int, rows: int, columns: int, *, column: int, at: int) -> Any:
        strides = (1, rows) if column else (columns, 1)
        if batch:
            return self._pools[dtype].as_strided((batch, rows, columns), (rows * columns, *strides), at)
        return self._pools[dtype].as_strided((rows, columns), strides, at)

    def _next(self, elements: int) -> int:
        """Return the place of the next ``elements`` of the pool."""
        size = _rounded(elements)
        if self._at + size > self._elements:
            self._at = 0
        self._at += size
        return self._at - size


def _rounded(elements: int) -> int:
    return -(-elements // _PLACES) * _PLACES


FAMILY: Final = Products()
