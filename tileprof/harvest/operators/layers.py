"""Pooling, resampling, losses, optimisers, lists of tensors and attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tileprof.harvest.operators import registry
from tileprof.harvest.operators.registry import (
    FLOATS,
    NUMBERS,
    TWO,
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


def foreach(name: str, run: Callable[[Any, Any, Any], object]) -> None:
    def build(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        xs = [random_tensor(torch, dtype, b + i) for i in range(a)]
        ys = [x.clone() for x in xs]
        return lambda: run(torch, xs, ys)

    OPERATORS.append((name, build, TWO, sizes_of((1, 3, 30, 100, 400), (1, 100, 5000, 65_536, 300_000))))


foreach("foreach_mul", lambda torch, xs, _ys: torch._foreach_mul_(xs, 0.5))
foreach("foreach_add_lists", lambda torch, xs, ys: torch._foreach_add_(xs, ys))
foreach("foreach_lerp", lambda torch, xs, ys: torch._foreach_lerp_(xs, ys, 0.1))
foreach("foreach_addcmul", lambda torch, xs, ys: torch._foreach_addcmul_(xs, ys, ys, 0.1))
foreach("foreach_sqrt", lambda torch, xs, _ys: torch._foreach_sqrt(xs))  # noqa: SLF001 - public enough
foreach("foreach_norm", lambda torch, xs, _ys: torch._foreach_norm(xs))  # noqa: SLF001 - as above
foreach("foreach_zero", lambda torch, xs, _ys: torch._foreach_zero_(xs))

planes = (1, 2, 8), (16, 64, 256), (7, 14, 28, 56, 128)


def on_planes(name: str, run: Callable[[Any, Any], object], *, last: bool = False) -> None:
    def build(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
        x = random_tensor(torch, dtype, a, b, c, c)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        return lambda: run(torch.nn.functional, x)

    OPERATORS.append((f"{name}{'_channels_last' * last}", build, TWO, sizes_of(*planes)))


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


@OPERATORS.operator(TWO, (1, 16, 64, 512), (8, 1000, 4000, 32_000))
def cross_entropy(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x, i = random_tensor(torch, dtype, a, b), random_ids(torch, b, a)
    return lambda: torch.nn.functional.cross_entropy(x, i)


@OPERATORS.operator(TWO, (1, 16, 64, 512), (8, 1000, 4000, 32_000))
def cross_entropy_backward(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
    x, i = random_tensor(torch, dtype, a, b, grad=True), random_ids(torch, b, a)
    return backward_of(torch.nn.functional.cross_entropy(x, i), x)


@OPERATORS.operator(TWO, NUMBERS)
def mse_loss(torch: Any, dtype: Any, a: int, _b: int, _c: int) -> Call:
    x, y = random_tensor(torch, dtype, a), random_tensor(torch, dtype, a)
    return lambda: torch.nn.functional.mse_loss(x, y)


def steps(name: str, **options: Any) -> None:
    def build(torch: Any, dtype: Any, a: int, b: int, _c: int) -> Call:
        xs = [torch.nn.Parameter(random_tensor(torch, dtype, b + i)) for i in range(a)]
        for x in xs:
            x.grad = torch.randn_like(x)
        kind = options.get("kind", "AdamW")
        optimizer = getattr(torch.optim, kind)(xs, lr=1e-3, **{k: v for k, v in options.items() if k != "kind"})
        step: Call = optimizer.step
        return step

    OPERATORS.append((name, build, TWO, sizes_of((1, 30, 100), (100, 5000, 65_536))))


steps("adamw_fused", fused=True)
steps("adamw_foreach", foreach=True)
steps("sgd_foreach", kind="SGD", momentum=0.9, foreach=True)

attention = (1, 4), (16, 100, 512), (32, 64, 128)


@OPERATORS.operator(FLOATS, *attention)
def attention_plain(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    q = random_tensor(torch, dtype, a, 8, b, c)
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)


@OPERATORS.operator(FLOATS, *attention)
def attention_causal(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    q = random_tensor(torch, dtype, a, 8, b, c)
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


@OPERATORS.operator(FLOATS, *attention)
def attention_masked(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    q, mask = random_tensor(torch, dtype, a, 8, b, c), torch.ones(b, b, device=registry.DEVICE, dtype=torch.bool).tril()
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)


@OPERATORS.operator((Dtype.FP16, Dtype.BF16), *attention)
def attention_backward(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    q = random_tensor(torch, dtype, a, 8, b, c, grad=True)
    return backward_of(torch.nn.functional.scaled_dot_product_attention(q, q, q), q)


@OPERATORS.operator((Dtype.BF16,), (8, 32), (64, 256, 1024, 4096), (256, 768, 2048))
def grouped_mm(torch: Any, dtype: Any, a: int, b: int, c: int) -> Call:
    """Experts, tokens in all, and the width of a token; shares are random."""
    x, w = random_tensor(torch, dtype, b, c), random_tensor(torch, dtype, a, 512, c)
    ends = torch.bincount(random_ids(torch, a, b), minlength=a).cumsum(0).int()
    return lambda: torch._grouped_mm(x, w.transpose(1, 2), ends)  # noqa: SLF001 - what transformers calls
