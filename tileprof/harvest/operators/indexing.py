"""Indexing, gathering, scattering, concatenation and selection."""

from __future__ import annotations

from typing import Any, Final

from tileprof.harvest.operators import registry
from tileprof.harvest.operators.registry import (
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

OPERATORS: Final = Registry()


@OPERATORS.operator(TWO, (100, 2000), ROWS, (1, 8, 64, 256, 1000))
def index_rows(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x, i = random_tensor(torch, dtype, a, c), random_ids(torch, a, b)
    return lambda: x[i]


@OPERATORS.operator(TWO, (100, 2000), (*ROWS, 7200), (1, 8, 64, 256, 1000))
def index_select(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x, i = random_tensor(torch, dtype, a, c), random_ids(torch, a, b)
    return lambda: x.index_select(0, i)


@OPERATORS.operator(ONE, (100, 2000), ROWS, (8, 64, 256))
def index_add(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x, i, y = random_tensor(torch, dtype, a, c), random_ids(torch, a, b), random_tensor(torch, dtype, b, c)
    return lambda: x.index_add_(0, i, y)


@OPERATORS.operator(TWO, (100, 2000), ROWS, (1, 8, 64, 256))
def index_put(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x, i, y = random_tensor(torch, dtype, a, c), random_ids(torch, a, b), random_tensor(torch, dtype, b, c)
    return lambda: x.index_put_((i,), y)


@OPERATORS.operator(TWO, (100, 2000), ROWS, (1, 8, 64, 256))
def index_put_accumulate(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x, i, y = random_tensor(torch, dtype, a, c), random_ids(torch, a, b), random_tensor(torch, dtype, b, c)
    return lambda: x.index_put_((i,), y, accumulate=True)


@OPERATORS.operator(ONE, (100, 2000), (*ROWS, 7200), (1, 8, 64, 256))
def scatter_add(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x, i, y = (
        random_tensor(torch, dtype, a, c),
        random_ids(torch, a, b, 1).expand(b, c),
        random_tensor(torch, dtype, b, c),
    )
    return lambda: x.scatter_add_(0, i, y)


@OPERATORS.operator(ONE, (100, 2000), (*ROWS, 7200), (1, 8, 64, 256))
def scatter_reduce(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x, i, y = (
        random_tensor(torch, dtype, a, c),
        random_ids(torch, a, b, 1).expand(b, c),
        random_tensor(torch, dtype, b, c),
    )
    return lambda: x.scatter_reduce_(0, i, y, "amax")


@OPERATORS.operator(TWO, (100, 2000), ROWS, (64, 256, 1000))
def embedding(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x, i = random_tensor(torch, dtype, a, c), random_ids(torch, a, 2, b)
    return lambda: torch.nn.functional.embedding(i, x)


@OPERATORS.operator(TWO, (100, 2000, 32_000), (1, 16, 64, 128, 500, 1000, 3072, 3073, 4096, 20_000), (64, 256, 768))
def embedding_backward(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    g, i = random_tensor(torch, dtype, b, c), random_ids(torch, a, b)
    return lambda: torch.ops.aten.embedding_dense_backward(g, i, a, -1, False)


@OPERATORS.operator(ONE, NUMBERS)
def nonzero(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a) > 0
    return lambda: torch.nonzero(x)


@OPERATORS.operator(ONE, NUMBERS)
def masked_select(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a)
    mask = x > 0
    return lambda: x[mask]


@OPERATORS.operator(ONE, ROWS, (2, 4, 64))
def masked_rows(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a, b)
    mask = x[:, 0] > 0
    return lambda: x[mask]


@OPERATORS.operator(ONE, NUMBERS)
def masked_fill(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a)
    mask = x > 0
    return lambda: x.masked_fill(mask, 0.0)


@OPERATORS.operator(ONE, ROWS, (8, 100, 1000))
def one_hot(torch: Any, _dtype: Any, a: int, b: int, _c: int) -> Call:
    i = random_ids(torch, b, a)
    return lambda: torch.nn.functional.one_hot(i, b)


@OPERATORS.operator(ONE, ROWS, (1, 8, 100))
def repeat_interleave(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x = random_tensor(torch, dtype, a, b)
    return lambda: x.repeat_interleave(3, 0)


def cat(name: str, dim: int, parts: int) -> None:
    def build(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        xs = [random_tensor(torch, dtype, a, b) for _ in range(parts)]
        return lambda: torch.cat(xs, dim)

    OPERATORS.append((name, build, TWO, sizes_of(ROWS, WIDTHS)))


for dim, parts in ((0, 2), (1, 2), (0, 5), (1, 5), (1, 40)):
    cat(f"cat_{parts}_{'rows' if dim == 0 else 'columns'}", dim, parts)


@OPERATORS.operator(TWO, (1, 4), (4, 16), (16, 100, 256, 512))
def cat_heads(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x = random_tensor(torch, dtype, a, c, b, 64).transpose(1, 2)
    return lambda: torch.cat((-x[..., 32:], x[..., :32]), -1)


@OPERATORS.operator(TWO, (1, 2, 8), (3, 16, 64, 256), (7, 14, 28, 64))
def cat_channels(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x, y = random_tensor(torch, dtype, a, b, c, c), random_tensor(torch, dtype, a, b, c, c)
    return lambda: torch.cat((x, y), 1)


@OPERATORS.operator(TWO, (1, 2, 8), (16, 64, 256), (7, 14, 28, 64))
def cat_channels_last(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    x = random_tensor(torch, dtype, a, b, c, c).contiguous(memory_format=torch.channels_last)
    return lambda: torch.cat((x, x), 1)


@OPERATORS.operator(ONE, (1, 10, 100, 450, 1000, 4000))
def nms(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
    import torchvision  # noqa: PLC0415 - where it is installed

    x = torch.rand(a, 2, device=registry.DEVICE) * 100
    boxes, scores = torch.cat((x, x + 10), 1), torch.rand(a, device=registry.DEVICE)
    return lambda: torchvision.ops.nms(boxes, scores, 0.5)


@OPERATORS.operator(ONE, (1, 10, 100, 1000), (16, 256), (20, 40))
def roi_align(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    import torchvision  # noqa: PLC0415 - where it is installed

    x, r = random_tensor(torch, dtype, 1, b, c, c), torch.rand(a, 2, device=registry.DEVICE) * c / 2
    boxes = torch.cat((torch.zeros(a, 1, device=registry.DEVICE), r, r + c / 4), 1)
    return lambda: torchvision.ops.roi_align(x, boxes, 7, 1.0, 2)
