"""Elementwise operators, fills, random numbers and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tileprof.harvest.operators import registry
from tileprof.harvest.operators.registry import (
    FLOATS,
    NUMBERS,
    ONE,
    ROWS,
    TWO,
    WIDTHS,
    Call,
    Registry,
    random_ids,
    random_tensor,
    sizes_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATORS: Final = Registry()


@OPERATORS.operator(FLOATS, NUMBERS)
def add(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x, y = random_tensor(torch, dtype, a), random_tensor(torch, dtype, a)
    return lambda: x + y


@OPERATORS.operator(FLOATS, NUMBERS)
def gelu(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a)
    return lambda: torch.nn.functional.gelu(x)


def of_each(name: str, compute: Callable[[Any, Any, Any], object]) -> None:
    def build(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x, y = random_tensor(torch, dtype, a), random_tensor(torch, dtype, a)
        return lambda: compute(torch, x, y)

    OPERATORS.append((name, build, TWO, sizes_of(NUMBERS)))


of_each("mul", lambda _, x, y: x * y)
of_each("div", lambda _, x, y: x / y)
of_each("sub", lambda _, x, y: x - y)
of_each("mul_number", lambda _, x, _y: x * 2.0)
of_each("silu", lambda torch, x, _: torch.nn.functional.silu(x))
of_each("hardswish", lambda torch, x, _: torch.nn.functional.hardswish(x))
of_each("relu", lambda _, x, _y: x.relu())
of_each("exp", lambda _, x, _y: x.exp())
of_each("rsqrt", lambda _, x, _y: x.rsqrt())
of_each("square", lambda _, x, _y: x.pow(2))
of_each("sigmoid", lambda _, x, _y: x.sigmoid())
of_each("tanh", lambda _, x, _y: x.tanh())


@OPERATORS.operator(TWO, NUMBERS)
def add_unaligned(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x, y = random_tensor(torch, dtype, a + 1)[1:], random_tensor(torch, dtype, a)
    return lambda: x + y


@OPERATORS.operator(TWO, NUMBERS)
def cast_to_fp32_or_bf16(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a)
    return lambda: x.to(torch.bfloat16 if dtype == torch.float32 else torch.float32)


@OPERATORS.operator(TWO, NUMBERS)
def mixed_types(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x, y = random_tensor(torch, dtype, a), random_tensor(torch, torch.float16, a)
    return lambda: x * y


@OPERATORS.operator(TWO, NUMBERS)
def compare(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a)
    return lambda: x > 0


@OPERATORS.operator(TWO, NUMBERS)
def where(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a)
    mask = x > 0
    return lambda: torch.where(mask, x, 0.0)


@OPERATORS.operator(TWO, NUMBERS)
def addcmul(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x, y, z = (random_tensor(torch, dtype, a) for _ in range(3))
    return lambda: torch.addcmul(x, y, z)


@OPERATORS.operator(TWO, NUMBERS)
def fill(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    return lambda: torch.full((a,), 2.0, device=registry.DEVICE, dtype=dtype)


@OPERATORS.operator(TWO, NUMBERS)
def zeros(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    return lambda: torch.zeros(a, device=registry.DEVICE, dtype=dtype)


@OPERATORS.operator(ONE, NUMBERS)
def arange(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
    return lambda: torch.arange(a, device=registry.DEVICE)


@OPERATORS.operator(ONE, NUMBERS)
def integers(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_ids(torch, 100, a)
    return lambda: x + 1


@OPERATORS.operator(ONE, NUMBERS)
def booleans(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_ids(torch, 2, a).bool()
    return lambda: x & x


@OPERATORS.operator(TWO, NUMBERS)
def dropout(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a)
    return lambda: torch.nn.functional.dropout(x, 0.1)


@OPERATORS.operator(TWO, NUMBERS)
def rand(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    return lambda: torch.rand(a, device=registry.DEVICE, dtype=dtype)


@OPERATORS.operator(TWO, NUMBERS)
def randn(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    return lambda: torch.randn(a, device=registry.DEVICE, dtype=dtype)


@OPERATORS.operator(TWO, ROWS, WIDTHS)
def add_row(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x, y = random_tensor(torch, dtype, a, b), random_tensor(torch, dtype, b)
    return lambda: x + y


@OPERATORS.operator(TWO, ROWS, WIDTHS)
def mul_column(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x, y = random_tensor(torch, dtype, a, b), random_tensor(torch, dtype, a, 1)
    return lambda: x * y


@OPERATORS.operator(TWO, ROWS, WIDTHS)
def transposed_copy(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a, b).t()
    call: Call = x.contiguous
    return call


@OPERATORS.operator(TWO, ROWS, WIDTHS)
def strided_copy(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a, 2 * b)[:, :b]
    call: Call = x.contiguous
    return call


@OPERATORS.operator(TWO, ROWS, WIDTHS)
def copy_into_columns(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x, y = random_tensor(torch, dtype, a, 2 * b)[:, :b], random_tensor(torch, dtype, a, b)
    return lambda: x.copy_(y)


@OPERATORS.operator(TWO, (1, 2, 8), (3, 32, 64, 256), (7, 14, 28, 56, 112))
def to_channels_last(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x = random_tensor(torch, dtype, a, b, c, c)
    return lambda: x.contiguous(memory_format=torch.channels_last)


@OPERATORS.operator(TWO, (1, 2, 8), (3, 32, 64, 256), (7, 14, 28, 56, 112))
def from_channels_last(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x = random_tensor(torch, dtype, a, b, c, c).contiguous(memory_format=torch.channels_last)
    call: Call = x.contiguous
    return call


@OPERATORS.operator(TWO, (1, 4), (8, 12), (16, 100, 512))
def heads_copy(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x = random_tensor(torch, dtype, a, c, b, 64).transpose(1, 2)
    call: Call = x.contiguous
    return call


@OPERATORS.operator(TWO, (1, 4), (8, 16), (16, 100, 512))
def cast_heads(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x = random_tensor(torch, dtype, a, c, b, 64).transpose(1, 2)
    return lambda: x.to(torch.bfloat16 if dtype == torch.float32 else torch.float32)


@OPERATORS.operator(TWO, ROWS, WIDTHS)
def cast_strided(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a, 2 * b)[:, :b]
    return lambda: x.to(torch.bfloat16 if dtype == torch.float32 else torch.float32)


@OPERATORS.operator(TWO, (1, 2, 8), (49, 196, 1000, 1500), (64, 384, 768))
def matrix_copy(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x = random_tensor(torch, dtype, a, b, c).transpose(1, 2)
    call: Call = x.contiguous
    return call


@OPERATORS.operator(TWO, (1, 2, 8), (64, 384, 768), (196, 1500))
def add_transposed(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x, y = random_tensor(torch, dtype, a, b, c), random_tensor(torch, dtype, a, c, b)
    return lambda: y + x.transpose(1, 2)


def on_channels(name: str, *, last: bool) -> None:
    def build(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x, y = random_tensor(torch, dtype, a, b, c, c), random_tensor(torch, dtype, a, b, 1, 1)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        return lambda: x * y

    OPERATORS.append((name, build, TWO, sizes_of((1, 2, 8), (16, 96, 256), (7, 14, 28, 56, 112))))


on_channels("mul_channels", last=False)
on_channels("mul_channels_last", last=True)


@OPERATORS.operator(TWO, (1, 4), (4, 8, 16), (16, 64, 100, 512))
def add_mask(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x, y = random_tensor(torch, dtype, a, b, c, c), random_tensor(torch, dtype, a, 1, c, c)
    return lambda: x + y


@OPERATORS.operator(TWO, NUMBERS)
def to_host(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a)
    call: Call = x.cpu
    return call


@OPERATORS.operator(TWO, ROWS, WIDTHS)
def tril(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a, b)
    return lambda: torch.tril(x)


@OPERATORS.operator(TWO, ROWS, (8, 100, 768))
def flip(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a, b)
    return lambda: x.flip(0)


@OPERATORS.operator(TWO, ROWS, (8, 100, 768))
def roll(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a, b)
    return lambda: x.roll(1, 1)
