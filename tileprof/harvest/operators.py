"""PyTorch's own kernels (ATen's): a grid of shapes per operator, in three types.

A case is (operator, type, a, b, c): the operator by its place in `OPERATORS`, and up to three sizes that its builder
takes. What a builder makes is warm in L2, as it is after the launch before.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from tileprof.harvest.product_cases import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

COLUMNS: Final = ("operator", "dtype", "a", "b", "c")
DEVICE = "cuda"
_REPETITIONS: Final = 3
_MOST_ELEMENTS: Final = 1 << 23
_FLOATS: Final = (Dtype.FP32, Dtype.FP16, Dtype.BF16)
_TWO: Final = (Dtype.FP32, Dtype.BF16)
_ONE: Final = (Dtype.FP32,)

Call: TypeAlias = "Callable[[], object]"
Builder: TypeAlias = "Callable[[Any, Any, int, int, int], Call]"
OPERATORS: Final[list[tuple[str, Builder, tuple[Dtype, ...], list[tuple[int, int, int]]]]] = []
"""Name, builder ``(torch, dtype, a, b, c) -> call``, types, sizes."""


def _sizes(*axes: Sequence[int]) -> list[tuple[int, int, int]]:
    padded = (*axes, *(((0,),) * (3 - len(axes))))
    return [(a, b, c) for a, b, c in product(*padded)]


def _operator(types: tuple[Dtype, ...], *axes: Sequence[int]) -> Callable[[Any], Any]:
    def register(build: Any) -> Any:
        OPERATORS.append((build.__name__.strip("_"), build, types, _sizes(*axes)))
        return build

    return register


def _x(torch: Any, dtype: Any, *shape: int, grad: bool = False) -> Any:
    if math.prod(shape) > _MOST_ELEMENTS:
        raise ValueError(f"{shape} is too large")
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_(grad)


def _ids(torch: Any, limit: int, *shape: int) -> Any:
    return torch.randint(0, limit, shape, device=DEVICE)


def _backward(out: Any, *inputs: Any) -> Callable[[], object]:
    """Return what computes gradients of ``inputs``, again and again."""
    import torch  # noqa: PLC0415 - heavy

    grad = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)


_NUMBERS: Final = (1, 31, 127, 512, 1000, 4096, 10_000, 65_536, 100_003, 262_144, 1 << 20, 3_000_001, 1 << 23)
_ROWS: Final = (1, 2, 7, 16, 64, 200, 1024, 4096)
_WIDTHS: Final = (1, 8, 31, 64, 100, 128, 256, 384, 768, 1000, 1024, 1025, 2048, 4096, 8192, 32_000)


def _elementwise() -> None:
    @_operator(_FLOATS, _NUMBERS)
    def add(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x, y = _x(torch, dtype, a), _x(torch, dtype, a)
        return lambda: x + y

    @_operator(_FLOATS, _NUMBERS)
    def gelu(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _x(torch, dtype, a)
        return lambda: torch.nn.functional.gelu(x)

    @_operator(_TWO, _NUMBERS)
    def add_unaligned(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x, y = _x(torch, dtype, a + 1)[1:], _x(torch, dtype, a)
        return lambda: x + y

    @_operator(_TWO, _NUMBERS)
    def cast_to_fp32_or_bf16(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _x(torch, dtype, a)
        return lambda: x.to(torch.bfloat16 if dtype == torch.float32 else torch.float32)

    @_operator(_TWO, _NUMBERS)
    def mixed_types(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x, y = _x(torch, dtype, a), _x(torch, torch.float16, a)
        return lambda: x * y

    @_operator(_TWO, _NUMBERS)
    def compare(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _x(torch, dtype, a)
        return lambda: x > 0

    @_operator(_TWO, _NUMBERS)
    def where(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _x(torch, dtype, a)
        mask = x > 0
        return lambda: torch.where(mask, x, 0.0)

    @_operator(_TWO, _NUMBERS)
    def addcmul(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x, y, z = (_x(torch, dtype, a) for _ in range(3))
        return lambda: torch.addcmul(x, y, z)

    @_operator(_TWO, _NUMBERS)
    def fill(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        return lambda: torch.full((a,), 2.0, device=DEVICE, dtype=dtype)

    @_operator(_TWO, _NUMBERS)
    def zeros(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        return lambda: torch.zeros(a, device=DEVICE, dtype=dtype)

    @_operator(_ONE, _NUMBERS)
    def arange(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
        return lambda: torch.arange(a, device=DEVICE)

    @_operator(_ONE, _NUMBERS)
    def integers(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _ids(torch, 100, a)
        return lambda: x + 1

    @_operator(_ONE, _NUMBERS)
    def booleans(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _ids(torch, 2, a).bool()
        return lambda: x & x

    @_operator(_TWO, _NUMBERS)
    def dropout(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _x(torch, dtype, a)
        return lambda: torch.nn.functional.dropout(x, 0.1)

    @_operator(_TWO, _NUMBERS)
    def rand(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        return lambda: torch.rand(a, device=DEVICE, dtype=dtype)

    @_operator(_TWO, _NUMBERS)
    def randn(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        return lambda: torch.randn(a, device=DEVICE, dtype=dtype)

    @_operator(_TWO, _ROWS, _WIDTHS)
    def add_row(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x, y = _x(torch, dtype, a, b), _x(torch, dtype, b)
        return lambda: x + y

    @_operator(_TWO, _ROWS, _WIDTHS)
    def mul_column(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x, y = _x(torch, dtype, a, b), _x(torch, dtype, a, 1)
        return lambda: x * y

    @_operator(_TWO, _ROWS, _WIDTHS)
    def transposed_copy(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x = _x(torch, dtype, a, b).t()
        call: Call = x.contiguous
        return call

    @_operator(_TWO, _ROWS, _WIDTHS)
    def strided_copy(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x = _x(torch, dtype, a, 2 * b)[:, :b]
        call: Call = x.contiguous
        return call

    @_operator(_TWO, _ROWS, _WIDTHS)
    def copy_into_columns(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x, y = _x(torch, dtype, a, 2 * b)[:, :b], _x(torch, dtype, a, b)
        return lambda: x.copy_(y)

    @_operator(_TWO, (1, 2, 8), (3, 32, 64, 256), (7, 14, 28, 56, 112))
    def to_channels_last(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x = _x(torch, dtype, a, b, c, c)
        return lambda: x.contiguous(memory_format=torch.channels_last)

    @_operator(_TWO, (1, 2, 8), (3, 32, 64, 256), (7, 14, 28, 56, 112))
    def from_channels_last(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x = _x(torch, dtype, a, b, c, c).contiguous(memory_format=torch.channels_last)
        call: Call = x.contiguous
        return call

    @_operator(_TWO, (1, 4), (8, 12), (16, 100, 512))
    def heads_copy(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x = _x(torch, dtype, a, c, b, 64).transpose(1, 2)
        call: Call = x.contiguous
        return call

    @_operator(_TWO, _NUMBERS)
    def to_host(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _x(torch, dtype, a)
        call: Call = x.cpu
        return call

    @_operator(_TWO, _ROWS, _WIDTHS)
    def tril(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x = _x(torch, dtype, a, b)
        return lambda: torch.tril(x)

    @_operator(_TWO, _ROWS, (8, 100, 768))
    def flip(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x = _x(torch, dtype, a, b)
        return lambda: x.flip(0)

    @_operator(_TWO, _ROWS, (8, 100, 768))
    def roll(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x = _x(torch, dtype, a, b)
        return lambda: x.roll(1, 1)


def _reductions() -> None:
    def over(name: str, reduce: Callable[[Any, int], object], types: tuple[Dtype, ...]) -> None:
        def rows(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
            x = _x(torch, dtype, a, b)
            return lambda: reduce(x, 1)

        def columns(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
            x = _x(torch, dtype, a, b)
            return lambda: reduce(x, 0)

        OPERATORS.append((f"{name}_rows", rows, types, _sizes(_ROWS, _WIDTHS)))
        OPERATORS.append((f"{name}_columns", columns, types, _sizes(_ROWS, _WIDTHS)))

    over("sum", lambda x, d: x.sum(d), _FLOATS)
    over("mean", lambda x, d: x.mean(d), _TWO)
    over("amax", lambda x, d: x.amax(d), _TWO)
    over("argmax", lambda x, d: x.argmax(d), _TWO)
    over("max", lambda x, d: x.max(d), _TWO)
    over("var", lambda x, d: x.var(d), _TWO)
    over("norm", lambda x, d: x.norm(dim=d), _TWO)
    over("any", lambda x, d: (x > 0).any(d), _ONE)
    over("logsumexp", lambda x, d: x.logsumexp(d), _ONE)
    over("cumsum", lambda x, d: x.cumsum(d), _TWO)
    over("softmax", lambda x, d: x.softmax(d), _FLOATS)
    over("log_softmax", lambda x, d: x.log_softmax(d), _TWO)
    over("topk", lambda x, d: x.topk(min(4, x.shape[d]), dim=d), _TWO)
    over("sort", lambda x, d: x.sort(dim=d), _TWO)
    over("stable_sort", lambda x, d: x.sort(dim=d, stable=True), _ONE)
    over("median", lambda x, d: x.median(d), _ONE)
    over("gather", lambda x, d: x.gather(d, x.argsort(d)), _ONE)

    @_operator(_FLOATS, _NUMBERS)
    def sum_all(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _x(torch, dtype, a)
        return lambda: torch.sum(x)

    @_operator(_ONE, _NUMBERS)
    def any_all(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _ids(torch, 2, a).bool()
        return lambda: torch.any(x)

    @_operator(_ONE, _NUMBERS)
    def max_integers(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _ids(torch, 1000, a)
        return lambda: torch.max(x)

    @_operator(_TWO, (1, 2, 8), (3, 16, 64, 96, 256, 768), (1, 7, 14, 28, 56, 112))
    def mean_of_planes(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x = _x(torch, dtype, a, b, c, c)
        return lambda: x.mean((2, 3))

    @_operator(_TWO, (1, 2, 8), (3, 16, 64, 96, 256, 768), (1, 7, 14, 28, 56, 112))
    def sum_to_channels(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x = _x(torch, dtype, a, b, c, c)
        return lambda: x.sum((0, 2, 3))

    @_operator(_TWO, (1, 2, 8), (16, 64, 256, 768), (7, 14, 28, 56))
    def mean_channels_last(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x = _x(torch, dtype, a, b, c, c).contiguous(memory_format=torch.channels_last)
        return lambda: x.mean((2, 3))

    @_operator(_TWO, _ROWS, _WIDTHS)
    def softmax_backward(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x = _x(torch, dtype, a, b, grad=True)
        return _backward(x.softmax(1), x)

    @_operator(_TWO, _ROWS, _WIDTHS)
    def log_softmax_backward(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x = _x(torch, dtype, a, b, grad=True)
        return _backward(x.log_softmax(1), x)

    @_operator(_TWO, _ROWS, _WIDTHS)
    def sort_integers(torch: Any, _dtype: Any, a: int, b: int, _c: int) -> Call:
        x = _ids(torch, 1000, a, b)
        return lambda: torch.sort(x)

    @_operator(_ONE, _NUMBERS)
    def sort_flat(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _x(torch, dtype, a)
        return lambda: torch.sort(x)

    @_operator(_ONE, _NUMBERS)
    def unique(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _ids(torch, 1000, a)
        return lambda: torch.unique(x)

    @_operator(_ONE, _NUMBERS)
    def bincount(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _ids(torch, 1000, a)
        return lambda: torch.bincount(x)

    @_operator(_ONE, _NUMBERS)
    def histc(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _x(torch, dtype, a).abs()
        return lambda: x.histc(32, 0, 4)

    @_operator(_ONE, _NUMBERS)
    def cumsum_flat(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _x(torch, dtype, a)
        return lambda: x.cumsum(0)


def _norms() -> None:
    @_operator(_FLOATS, _ROWS, _WIDTHS)
    def layer_norm(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x, w = _x(torch, dtype, a, b), _x(torch, dtype, b)
        return lambda: torch.nn.functional.layer_norm(x, (b,), w, w)

    @_operator(_TWO, _ROWS, _WIDTHS)
    def layer_norm_backward(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x, w, v = _x(torch, dtype, a, b, grad=True), _x(torch, dtype, b, grad=True), _x(torch, dtype, b, grad=True)
        return _backward(torch.nn.functional.layer_norm(x, (b,), w, v), x, w, v)

    @_operator(_TWO, _ROWS, _WIDTHS)
    def rms_norm(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x, w = _x(torch, dtype, a, b), _x(torch, dtype, b)
        return lambda: torch.nn.functional.rms_norm(x, (b,), w)

    @_operator(_TWO, (1, 2, 8), (16, 32, 64, 128, 256, 512), (7, 14, 28, 64, 128))
    def group_norm(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x, w = _x(torch, dtype, a, b, c, c), _x(torch, dtype, b)
        return lambda: torch.nn.functional.group_norm(x, 8, w, w)

    planes = (1, 2, 8), (16, 64, 128, 512), (7, 14, 28, 64)

    def batch_norm(name: str, *, training: bool, last: bool, backward: bool = False) -> None:
        def build(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
            x = _x(torch, dtype, a, b, c, c)
            x = x.contiguous(memory_format=torch.channels_last) if last else x
            x = x.requires_grad_(backward)
            norm = torch.nn.BatchNorm2d(b).to(DEVICE).train(training)
            return _backward(norm(x), x, norm.weight, norm.bias) if backward else lambda: norm(x)

        OPERATORS.append((name, build, _TWO, _sizes(*planes)))

    for training, last in product((False, True), repeat=2):
        kind = f"batch_norm{'_training' * training}{'_channels_last' * last}"
        batch_norm(kind, training=training, last=last)
        if training:
            batch_norm(f"{kind}_backward", training=True, last=last, backward=True)


def _indexing() -> None:
    @_operator(_TWO, (100, 2000), _ROWS, (1, 8, 64, 256, 1000))
    def index_rows(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x, i = _x(torch, dtype, a, c), _ids(torch, a, b)
        return lambda: x[i]

    @_operator(_TWO, (100, 2000), _ROWS, (1, 8, 64, 256, 1000))
    def index_select(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x, i = _x(torch, dtype, a, c), _ids(torch, a, b)
        return lambda: x.index_select(0, i)

    @_operator(_ONE, (100, 2000), _ROWS, (8, 64, 256))
    def index_add(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x, i, y = _x(torch, dtype, a, c), _ids(torch, a, b), _x(torch, dtype, b, c)
        return lambda: x.index_add_(0, i, y)

    @_operator(_TWO, (100, 2000), _ROWS, (1, 8, 64, 256))
    def index_put(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x, i, y = _x(torch, dtype, a, c), _ids(torch, a, b), _x(torch, dtype, b, c)
        return lambda: x.index_put_((i,), y)

    @_operator(_TWO, (100, 2000), _ROWS, (1, 8, 64, 256))
    def index_put_accumulate(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x, i, y = _x(torch, dtype, a, c), _ids(torch, a, b), _x(torch, dtype, b, c)
        return lambda: x.index_put_((i,), y, accumulate=True)

    @_operator(_ONE, (100, 2000), _ROWS, (1, 8, 64, 256))
    def scatter_add(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x, i, y = _x(torch, dtype, a, c), _ids(torch, a, b, 1).expand(b, c), _x(torch, dtype, b, c)
        return lambda: x.scatter_add_(0, i, y)

    @_operator(_ONE, (100, 2000), _ROWS, (1, 8, 64, 256))
    def scatter_reduce(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x, i, y = _x(torch, dtype, a, c), _ids(torch, a, b, 1).expand(b, c), _x(torch, dtype, b, c)
        return lambda: x.scatter_reduce_(0, i, y, "amax")

    @_operator(_TWO, (100, 2000), _ROWS, (64, 256, 1000))
    def embedding(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x, i = _x(torch, dtype, a, c), _ids(torch, a, 2, b)
        return lambda: torch.nn.functional.embedding(i, x)

    @_operator(_TWO, (100, 2000, 32_000), (1, 16, 64, 128, 500, 1000, 3072, 3073, 4096, 20_000), (64, 256, 768))
    def embedding_backward(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        g, i = _x(torch, dtype, b, c), _ids(torch, a, b)
        return lambda: torch.ops.aten.embedding_dense_backward(g, i, a, -1, False)

    @_operator(_ONE, _NUMBERS)
    def nonzero(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _x(torch, dtype, a) > 0
        return lambda: torch.nonzero(x)

    @_operator(_ONE, _NUMBERS)
    def masked_select(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _x(torch, dtype, a)
        mask = x > 0
        return lambda: x[mask]

    @_operator(_ONE, _ROWS, (2, 4, 64))
    def masked_rows(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x = _x(torch, dtype, a, b)
        mask = x[:, 0] > 0
        return lambda: x[mask]

    @_operator(_ONE, _NUMBERS)
    def masked_fill(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x = _x(torch, dtype, a)
        mask = x > 0
        return lambda: x.masked_fill(mask, 0.0)

    @_operator(_ONE, _ROWS, (8, 100, 1000))
    def one_hot(torch: Any, _dtype: Any, a: int, b: int, _c: int) -> Call:
        i = _ids(torch, b, a)
        return lambda: torch.nn.functional.one_hot(i, b)

    @_operator(_ONE, _ROWS, (1, 8, 100))
    def repeat_interleave(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x = _x(torch, dtype, a, b)
        return lambda: x.repeat_interleave(3, 0)

    def cat(name: str, dim: int, parts: int) -> None:
        def build(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
            xs = [_x(torch, dtype, a, b) for _ in range(parts)]
            return lambda: torch.cat(xs, dim)

        OPERATORS.append((name, build, _TWO, _sizes(_ROWS, _WIDTHS)))

    for dim, parts in ((0, 2), (1, 2), (0, 5), (1, 5), (1, 40)):
        cat(f"cat_{parts}_{'rows' if dim == 0 else 'columns'}", dim, parts)

    @_operator(_TWO, (1, 2, 8), (3, 16, 64, 256), (7, 14, 28, 64))
    def cat_channels(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x, y = _x(torch, dtype, a, b, c, c), _x(torch, dtype, a, b, c, c)
        return lambda: torch.cat((x, y), 1)

    @_operator(_TWO, (1, 2, 8), (16, 64, 256), (7, 14, 28, 64))
    def cat_channels_last(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x = _x(torch, dtype, a, b, c, c).contiguous(memory_format=torch.channels_last)
        return lambda: torch.cat((x, x), 1)

    @_operator(_ONE, (1, 10, 100, 450, 1000, 4000))
    def nms(torch: Any, _dtype: Any, a: int, _b: int, _c: int) -> Call:
        import torchvision  # noqa: PLC0415 - where it is installed

        x = torch.rand(a, 2, device=DEVICE) * 100
        boxes, scores = torch.cat((x, x + 10), 1), torch.rand(a, device=DEVICE)
        return lambda: torchvision.ops.nms(boxes, scores, 0.5)

    @_operator(_ONE, (1, 10, 100, 1000), (16, 256), (20, 40))
    def roi_align(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        import torchvision  # noqa: PLC0415 - where it is installed

        x, r = _x(torch, dtype, 1, b, c, c), torch.rand(a, 2, device=DEVICE) * c / 2
        boxes = torch.cat((torch.zeros(a, 1, device=DEVICE), r, r + c / 4), 1)
        return lambda: torchvision.ops.roi_align(x, boxes, 7, 1.0, 2)


def _others() -> None:
    def foreach(name: str, run: Callable[[Any, Any, Any], object]) -> None:
        def build(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
            xs = [_x(torch, dtype, b + i) for i in range(a)]
            ys = [x.clone() for x in xs]
            return lambda: run(torch, xs, ys)

        OPERATORS.append((name, build, _TWO, _sizes((1, 3, 30, 100, 400), (1, 100, 5000, 65_536, 300_000))))

    foreach("foreach_mul", lambda torch, xs, _ys: torch._foreach_mul_(xs, 0.5))
    foreach("foreach_add_lists", lambda torch, xs, ys: torch._foreach_add_(xs, ys))
    foreach("foreach_lerp", lambda torch, xs, ys: torch._foreach_lerp_(xs, ys, 0.1))
    foreach("foreach_addcmul", lambda torch, xs, ys: torch._foreach_addcmul_(xs, ys, ys, 0.1))
    foreach("foreach_sqrt", lambda torch, xs, _ys: torch._foreach_sqrt(xs))  # noqa: SLF001 - public enough
    foreach("foreach_norm", lambda torch, xs, _ys: torch._foreach_norm(xs))  # noqa: SLF001 - as above
    foreach("foreach_zero", lambda torch, xs, _ys: torch._foreach_zero_(xs))

    planes = (1, 2, 8), (16, 64, 256), (7, 14, 28, 56)

    def on_planes(name: str, run: Callable[[Any, Any], object], *, last: bool = False) -> None:
        def build(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
            x = _x(torch, dtype, a, b, c, c)
            x = x.contiguous(memory_format=torch.channels_last) if last else x
            return lambda: run(torch.nn.functional, x)

        OPERATORS.append((f"{name}{'_channels_last' * last}", build, _TWO, _sizes(*planes)))

    for last in (False, True):
        on_planes("max_pool", lambda f, x: f.max_pool2d(x, 2), last=last)
        on_planes("max_pool_3", lambda f, x: f.max_pool2d(x, 3, 2, 1), last=last)
        on_planes("avg_pool", lambda f, x: f.avg_pool2d(x, 2), last=last)
        on_planes("adaptive_avg_pool", lambda f, x: f.adaptive_avg_pool2d(x, 1), last=last)
        on_planes("adaptive_avg_pool_3", lambda f, x: f.adaptive_avg_pool2d(x, 3), last=last)
        on_planes("nearest", lambda f, x: f.interpolate(x, scale_factor=2), last=last)
        on_planes("bilinear", lambda f, x: f.interpolate(x, scale_factor=2, mode="bilinear"), last=last)
    on_planes("bicubic", lambda f, x: f.interpolate(x, scale_factor=2, mode="bicubic"))
    on_planes("pad", lambda f, x: f.pad(x, (1, 1, 1, 1)))
    on_planes("reflection_pad", lambda f, x: f.pad(x, (1, 1, 1, 1), mode="reflect"))
    on_planes("unfold", lambda f, x: f.unfold(x, 3, padding=1))
    on_planes("pixel_shuffle", lambda f, x: f.pixel_shuffle(x, 2))
    on_planes("glu", lambda f, x: f.glu(x, 1))
    on_planes("avg_pool_ceil", lambda f, x: f.avg_pool2d(x, 3, 2, 1, count_include_pad=False))

    @_operator(_TWO, (1, 16, 64, 512), (8, 1000, 4000, 32_000))
    def cross_entropy(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x, i = _x(torch, dtype, a, b), _ids(torch, b, a)
        return lambda: torch.nn.functional.cross_entropy(x, i)

    @_operator(_TWO, (1, 16, 64, 512), (8, 1000, 4000, 32_000))
    def cross_entropy_backward(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        x, i = _x(torch, dtype, a, b, grad=True), _ids(torch, b, a)
        return _backward(torch.nn.functional.cross_entropy(x, i), x)

    @_operator(_TWO, _NUMBERS)
    def mse_loss(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
        x, y = _x(torch, dtype, a), _x(torch, dtype, a)
        return lambda: torch.nn.functional.mse_loss(x, y)

    def steps(name: str, **options: Any) -> None:
        def build(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
            xs = [torch.nn.Parameter(_x(torch, dtype, b + i)) for i in range(a)]
            for x in xs:
                x.grad = torch.randn_like(x)
            kind = options.get("kind", "AdamW")
            optimizer = getattr(torch.optim, kind)(xs, lr=1e-3, **{k: v for k, v in options.items() if k != "kind"})
            step: Call = optimizer.step
            return step

        OPERATORS.append((name, build, _TWO, _sizes((1, 30, 100), (100, 5000, 65_536))))

    steps("adamw_fused", fused=True)
    steps("adamw_foreach", foreach=True)
    steps("sgd_foreach", kind="SGD", momentum=0.9, foreach=True)

    attention = (1, 4), (16, 100, 512), (32, 64, 128)

    @_operator(_FLOATS, *attention)
    def attention_plain(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        q = _x(torch, dtype, a, 8, b, c)
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)

    @_operator(_FLOATS, *attention)
    def attention_causal(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        q = _x(torch, dtype, a, 8, b, c)
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    @_operator(_FLOATS, *attention)
    def attention_masked(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        q, mask = _x(torch, dtype, a, 8, b, c), torch.ones(b, b, device=DEVICE, dtype=torch.bool).tril()
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)


for _family in (_norms, _indexing, _reductions, _others, _elementwise):
    _family()


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
