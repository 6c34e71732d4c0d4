"""Reductions, softmax, scans and sorts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tileprof.harvest.operators.registry import (
    FLOATS,
    NUMBERS,
    ONE,
    ROWS,
    TWO,
    WIDTHS,
    Call,
    Registry,
    backward_of,
    random_ids,
    random_tensor,
    sizes_of,
)
from tileprof.harvest.products.product_cases import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATORS: Final = Registry()


def over(name: str, reduce: Callable[[Any, int], object], types: tuple[Dtype, ...]) -> None:
    def rows(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x = random_tensor(torch, dtype, a, b)
        return lambda: reduce(x, 1)

    def columns(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x = random_tensor(torch, dtype, a, b)
        return lambda: reduce(x, 0)

    OPERATORS.append((f"{name}_rows", rows, types, sizes_of(ROWS, WIDTHS)))
    OPERATORS.append((f"{name}_columns", columns, types, sizes_of(ROWS, WIDTHS)))


over("sum", lambda x, d: x.sum(d), FLOATS)
over("mean", lambda x, d: x.mean(d), TWO)
over("amax", lambda x, d: x.amax(d), TWO)
over("argmax", lambda x, d: x.argmax(d), TWO)
over("max", lambda x, d: x.max(d), TWO)
over("var", lambda x, d: x.var(d), TWO)
over("norm", lambda x, d: x.norm(dim=d), TWO)
over("any", lambda x, d: (x > 0).any(d), ONE)
over("logsumexp", lambda x, d: x.logsumexp(d), ONE)
over("cumsum", lambda x, d: x.cumsum(d), TWO)
over("softmax", lambda x, d: x.softmax(d), FLOATS)
over("log_softmax", lambda x, d: x.log_softmax(d), TWO)
over("topk", lambda x, d: x.topk(min(4, x.shape[d]), dim=d), TWO)
OPERATORS.append((
    "topk_many",
    lambda torch, dtype, a, b, c: partial(random_tensor(torch, dtype, a, b).topk, c),
    TWO,
    sizes_of((1, 4, 64), (1000, 1200, 4800, 20_000), (50, 1000)),
))  # fmt: skip
over("sort", lambda x, d: x.sort(dim=d), TWO)
over("stable_sort", lambda x, d: x.sort(dim=d, stable=True), ONE)
over("median", lambda x, d: x.median(d), ONE)
over("gather", lambda x, d: x.gather(d, x.argsort(d)), ONE)


@OPERATORS.operator(FLOATS, NUMBERS)
def sum_all(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a)
    return lambda: torch.sum(x)


@OPERATORS.operator(ONE, NUMBERS)
def any_all(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_ids(torch, 2, a).bool()
    return lambda: torch.any(x)


@OPERATORS.operator(ONE, NUMBERS)
def max_integers(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_ids(torch, 1000, a)
    return lambda: torch.max(x)


@OPERATORS.operator(TWO, (1, 2, 8), (3, 16, 64, 96, 256, 768), (1, 7, 14, 28, 56, 112))
def mean_of_planes(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x = random_tensor(torch, dtype, a, b, c, c)
    return lambda: x.mean((2, 3))


@OPERATORS.operator(TWO, (1, 2, 8), (3, 16, 64, 96, 256, 768), (1, 7, 14, 28, 56, 112))
def sum_to_channels(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x = random_tensor(torch, dtype, a, b, c, c)
    return lambda: x.sum((0, 2, 3))


@OPERATORS.operator(TWO, (1, 2, 8), (16, 64, 256, 768), (7, 14, 28, 56))
def mean_channels_last(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x = random_tensor(torch, dtype, a, b, c, c).contiguous(memory_format=torch.channels_last)
    return lambda: x.mean((2, 3))


@OPERATORS.operator(TWO, ROWS, WIDTHS)
def softmax_backward(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a, b, grad=True)
    return backward_of(x.softmax(1), x)


@OPERATORS.operator(TWO, ROWS, WIDTHS)
def log_softmax_backward(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a, b, grad=True)
    return backward_of(x.log_softmax(1), x)


@OPERATORS.operator(TWO, ROWS, WIDTHS)
def sort_integers(torch: Any, _dtype: Any, a: int, b: int, _c: int) -> Call:
    x = random_ids(torch, 1000, a, b)
    return lambda: torch.sort(x)


@OPERATORS.operator(ONE, NUMBERS)
def sort_flat(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a)
    return lambda: torch.sort(x)


@OPERATORS.operator(ONE, NUMBERS)
def unique(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_ids(torch, 1000, a)
    return lambda: torch.unique(x)


@OPERATORS.operator(ONE, NUMBERS)
def bincount(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_ids(torch, 1000, a)
    return lambda: torch.bincount(x)


@OPERATORS.operator(ONE, NUMBERS)
def histc(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a).abs()
    return lambda: x.histc(32, 0, 4)


@OPERATORS.operator(ONE, NUMBERS)
def cumsum_flat(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a)
    return lambda: x.cumsum(0)
