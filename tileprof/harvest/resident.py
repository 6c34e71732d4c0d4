"""Products and convolutions whose operands are all in L2: as in programs whose weights stay there between two runs.

The families themselves read each weight from another place of a pool, so that it is cold. Here a call repeats with the
same operands, and other kernels run before each repetition, as in a program. The cases are the small ones of the lists
of the families, so that each has a time with a cold weight, too (`docs/harvest.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.harvest.convolutions import convolution_cases
from tileprof.harvest.convolutions.convolution_calls import Convolutions
from tileprof.harvest.operators.registry import other_kernels
from tileprof.harvest.products import product_cases
from tileprof.harvest.products.product_calls import Products

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

CASES: Final = 60_000
"""Cases of a family's list, small or not."""
MOST_BYTES: Final = 20 << 20
"""Bytes of all operands of a call, less than half of an H200's L2."""
_MOST_NS: Final = 60_000.0
_FLOPS_PER_NS: Final = (40e3, 300e3, 600e3, 600e3, 600e3)
"""By type, as both families number them."""
_POOL: Final = 1 << 26
"""Elements: more than `MOST_BYTES` of any type."""
_REPETITIONS: Final = 5


class Resident:
    """A family of calls with operands in L2; ``inner`` makes the calls."""

    def __init__(self, inner: Products | Convolutions) -> None:
        self.name = f"resident_{inner.name}"
        self.columns = inner.columns
        self.before: Callable[[], object] | None = None
        self._inner = inner

    def cases(self) -> NDArray[np.int64]:
        """Return the small cases of the family's list, in its order."""
        if isinstance(self._inner, Products):
            cases = product_cases.harvested(CASES)
            flops, touched = _product_costs(cases)
        else:
            cases = convolution_cases.harvested(CASES)
            flops, touched = convolution_cases.costs(cases[:, 3:])
            touched = touched * np.where(cases[:, 1] <= convolution_cases.Dtype.TF32, 4, 2)
        ns = flops / np.array(_FLOPS_PER_NS)[cases[:, 1]]
        return cases[np.flatnonzero((ns <= _MOST_NS) & (touched <= MOST_BYTES))]

    def use(self, torch: Any, device: str) -> None:
        """Take operands from memory on a device, without other kernels."""
        self._inner.use(torch, device)

    def prepare(self) -> None:
        """Prepare the family, and the kernels between repetitions."""
        import torch  # noqa: PLC0415 - heavy

        self._inner.prepare()
        self.before = other_kernels(torch)

    def calls(self, case: tuple[int, ...]) -> Sequence[Callable[[], object]]:
        """Return a call and its repetitions, with the same operands; it has run once."""
        call: Any = self._inner.calls(case)[0]
        call()
        return [call] * _REPETITIONS


def _product_costs(cases: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return FLOPs and bytes of operands and results of products."""
    op, dtype, _, _, batch, m, n, k, _ = cases.T.astype(np.float64)
    grouped = op == product_cases.Op.GROUPED
    stacked = np.where((op == product_cases.Op.BMM) | (op == product_cases.Op.BADDBMM), batch, 1.0)
    size = np.array([4, 4, 2, 2, 1])[dtype.astype(np.int64)]
    weights = np.where(grouped, batch, stacked) * k * n
    return 2.0 * stacked * m * n * k, (stacked * (m * k + m * n) + weights) * size


PRODUCTS: Final = Resident(Products(_POOL))
CONVOLUTIONS: Final = Resident(Convolutions(_POOL))
