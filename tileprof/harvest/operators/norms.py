"""Normalisations, forward and backward."""

from __future__ import annotations

from itertools import product
from typing import Any, Final

from tileprof.harvest.operators import registry
from tileprof.harvest.operators.registry import (
    FLOATS,
    ROWS,
    TWO,
    WIDTHS,
    Call,
    Registry,
    backward_of,
    random_tensor,
    sizes_of,
)

OPERATORS: Final = Registry()


@OPERATORS.operator(FLOATS, ROWS, WIDTHS)
def layer_norm(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x, w = random_tensor(torch, dtype, a, b), random_tensor(torch, dtype, b)
    return lambda: torch.nn.functional.layer_norm(x, (b,), w, w)


@OPERATORS.operator(TWO, ROWS, WIDTHS)
def layer_norm_backward(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x, w, v = (
        random_tensor(torch, dtype, a, b, grad=True),
        random_tensor(torch, dtype, b, grad=True),
        random_tensor(torch, dtype, b, grad=True),
    )
    return backward_of(torch.nn.functional.layer_norm(x, (b,), w, v), x, w, v)


@OPERATORS.operator(TWO, ROWS, WIDTHS)
def rms_norm(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x, w = random_tensor(torch, dtype, a, b), random_tensor(torch, dtype, b)
    return lambda: torch.nn.functional.rms_norm(x, (b,), w)


@OPERATORS.operator(TWO, (1, 2, 8), (16, 32, 64, 128, 256, 512), (7, 14, 28, 64, 128))
def group_norm(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x, w = random_tensor(torch, dtype, a, b, c, c), random_tensor(torch, dtype, b)
    return lambda: torch.nn.functional.group_norm(x, 8, w, w)


planes = (1, 2, 8), (16, 64, 128, 512), (7, 14, 28, 64)


def batch_norm(name: str, *, training: bool, last: bool, backward: bool = False) -> None:
    def build(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x = random_tensor(torch, dtype, a, b, c, c)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        x = x.requires_grad_(backward)
        norm = torch.nn.BatchNorm2d(b).to(registry.DEVICE).train(training)
        return backward_of(norm(x), x, norm.weight, norm.bias) if backward else lambda: norm(x)

    OPERATORS.append((name, build, TWO, sizes_of(*planes)))


for training, last in product((False, True), repeat=2):
    kind = f"batch_norm{'_training' * training}{'_channels_last' * last}"
    batch_norm(kind, training=training, last=last)
    if training:
        batch_norm(f"{kind}_backward", training=True, last=last, backward=True)
