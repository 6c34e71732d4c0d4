"""Convolutions as PyTorch calls them, forward and both gradients.

They have no bias: PyTorch adds that by a launch of its own.

The weight is read from another place of a pool at each repetition and so is cold in L2; the other operand and the
result are warm, as after the launch before. All launches of a call count: layout copies, fills, reductions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.harvest.convolutions.convolution_cases import (
    COLUMNS,
    Dtype,
    Layout,
    Pass,
    costs,
    harvested,
    held_out,
    result_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

CASES: Final = 300_000
_POOL: Final = 1 << 30
"""Elements of two bytes for activations, and half as many for weights."""
_PLACES: Final = 256
"""Operands begin at multiples of this many elements of two bytes."""
_REPETITIONS, _LONG, _LONG_REPETITIONS = 4, 5e10, 2


class Convolutions:
    """The family; see the module."""

    name = "convolutions"
    columns = COLUMNS
    before = None

    def __init__(self, elements: int = _POOL) -> None:
        self._elements = elements
        self._pool: Any = None
        self._weights = 0
        self._torch: Any = None

    def cases(self) -> NDArray[np.int64]:
        """Return the held-out cases first, then those of the table."""
        return np.concatenate([held_out(), harvested(CASES)])

    def prepare(self) -> None:
        """Fill the pool: bits of small fp16 numbers, which are finite small numbers in all types."""
        import torch  # noqa: PLC0415 - heavy

        self.use(torch, "cuda")

    def use(self, torch: Any, device: str) -> None:
        """Take operands from a pool on a device."""
        self._torch = torch
        self._pool = torch.empty(self._elements + self._elements // 2, dtype=torch.float16, device=device).normal_()

    def calls(self, case: tuple[int, ...]) -> Sequence[Callable[[], object]]:
        """Return the repetitions of a convolution."""
        layer = np.array(case[3:], np.int64)
        flops, _ = costs(layer)
        count = _LONG_REPETITIONS if flops > _LONG * (0.2 if case[1] == Dtype.FP32 else 1) else _REPETITIONS
        return [self.call(case) for _ in range(count)]

    def call(self, case: tuple[int, ...]) -> Callable[[], object]:
        """Return the call of a case, its weight at the next place of the pool."""
        aten = self._torch.ops.aten
        what, dtype, layout = case[:3]
        rank, transposed, groups, images, inside, outside = case[3:9]
        size, taps, stride, padding, dilation, extra = (list(case[i + 3 - rank : i + 3]) for i in range(9, 27, 3))
        results = result_sizes(np.array(case[3:], np.int64)).tolist()[3 - rank :]
        first, second = (inside, outside // groups) if transposed else (outside, inside // groups)
        x, after = self._tensor((images, inside, *size), dtype, layout, 0)
        gradient, _ = self._tensor((images, outside, *results), dtype, layout, after)
        weight, self._weights = self._tensor((first, second, *taps), dtype, layout, self._elements + self._weights)
        self._weights -= self._elements
        if self._weights > self._elements // 4:
            self._weights = 0
        window = (stride, padding, dilation, bool(transposed), extra, groups)
        if what == Pass.FORWARD:
            call = partial(aten.convolution.default, x, weight, None, *window)
        else:
            mask = [what == Pass.INPUT_GRADIENT, what == Pass.WEIGHT_GRADIENT, False]
            call = partial(aten.convolution_backward.default, gradient, x, weight, None, *window, mask)
        return partial(self._in_mode, call, tf32=dtype == Dtype.TF32)

    def _in_mode(self, call: Callable[[], object], *, tf32: bool) -> object:
        self._torch._C._set_cudnn_allow_tf32(tf32)  # noqa: SLF001 - what torch.backends.cudnn.allow_tf32 calls
        return call()

    def _tensor(self, shape: tuple[int, ...], dtype: int, layout: int, at: int) -> tuple[Any, int]:
        """Return a tensor at a place of the pool, and the place behind it."""
        torch = self._torch
        kind = (torch.float32, torch.float32, torch.float16, torch.bfloat16)[dtype]
        elements = int(np.prod(shape))
        size = elements * kind.itemsize // 2
        flat = self._pool[at : at + size].view(kind)
        after = at + -(-size // _PLACES) * _PLACES
        if layout == Layout.CONTIGUOUS:
            return flat.view(shape), after
        return flat.view(shape[0], *shape[2:], shape[1]).movedim(-1, 1), after


FAMILY: Final = Convolutions()
