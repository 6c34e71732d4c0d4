"""Attention as PyTorch dispatches it on a GPU, where its CPU would choose otherwise.

A CPU has one fused kernel; the tile models know it as the GPU's (`tiles.attention`). It has no dropout, takes masks of
any strides, and none that needs a gradient. Inside a session the choice is made as on the GPU: a fused kernel that the
CPU lacks runs as one operator with the GPU's name, which is computed here; and dropout inside the written-out form is
one operator that keeps its mask.

Source: `sdp_utils.cpp` and `sdp_utils_cpp.h` of PyTorch 2.11.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import torch

from tileprof.record.model.observation.composites import replaced, written_out

if TYPE_CHECKING:
    from collections.abc import Iterator

_HALF: Final = (torch.float16, torch.bfloat16)
_CUDNN_WIDEST: Final = 128
"""The widest head of cuDNN's kernel."""
_FLASH_WIDEST: Final = 256
_FLASH_WIDTHS: Final = 8
"""FlashAttention's heads have multiples of this width."""
_MASK_ROWS: Final = 8
"""The memory-efficient kernel's rows of masks begin at multiples of this."""
_PREFER_CUDNN: Final = (9, 10)
"""Generations of GPUs on which PyTorch asks cuDNN first."""
_CPU_MATH: Final = 0
"""What `_fused_sdp_choice` returns for the written-out form."""
_FUSED: Final = ("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention",
                 "_scaled_dot_product_efficient_attention")  # fmt: skip


class Backend(Enum):
    """PyTorch's ways to compute attention on a GPU."""

    CUDNN = "cudnn"
    FLASH = "flash"
    EFFICIENT = "efficient"
    MATH = "math"


@contextmanager
def as_on_gpu(capability: tuple[int, int]) -> Iterator[None]:
    """Let attention choose as on a GPU of this capability, in eager programs and in those that are traced."""
    operator = torch.ops.aten.scaled_dot_product_attention.default

    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        inputs = (query, key, value, attn_mask, dropout_p, is_causal)
        choice = backend(*inputs, enable_gqa=enable_gqa, capability=capability)
        on_cpu = torch._fused_sdp_choice(*inputs, scale=scale, enable_gqa=enable_gqa)  # noqa: SLF001 - as PyTorch does
        if choice is Backend.MATH and on_cpu != _CPU_MATH:
            mask = _numbers(attn_mask, query)
            return torch.ops.aten._scaled_dot_product_attention_math(  # noqa: SLF001 - PyTorch's own name
                query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )[0]
        padded = choice is Backend.FLASH and query.shape[3] % _FLASH_WIDTHS != 0
        padded |= choice is Backend.EFFICIENT and attn_mask is not None and not _is_aligned(attn_mask)
        differs = padded or (choice is Backend.EFFICIENT and _heads_first(query))
        if choice is Backend.CUDNN and _learns(query, key, value):  # its gradients lie like the inputs, a CPU's do not
            differs |= any(_heads_first(t) for t in (query, key, value))
        if choice is Backend.MATH or (on_cpu != _CPU_MATH and _cpu_stands_for(choice, capability) and not differs):
            return written_out(operator, *inputs, scale=scale, enable_gqa=enable_gqa)
        return _fused_attention(choice, *inputs, scale=scale)

    library = torch.library.Library("aten", "IMPL")
    library.impl("dropout", _dropout, "AutogradCPU")
    for name in _FUSED:
        library.impl(name, _forward(getattr(torch.ops.aten, name).default), "CPU")
        library.impl(f"{name}_backward", _backward(getattr(torch.ops.aten, f"{name}_backward").default), "CPU")
    with replaced(operator, attention):
        try:
            yield
        finally:
            library._destroy()  # noqa: SLF001 - the only way to take kernels back


def backend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    *,
    enable_gqa: bool,
    capability: tuple[int, int],
) -> Backend:
    """Return what a GPU of this capability takes: the first kernel of its order that has what the call needs."""
    if not (query.dim() == key.dim() == value.dim() == 4) or not _alike(query, key, value, enable_gqa=enable_gqa):
        return Backend.MATH
    if 0 in (query.shape[2], key.shape[2]) or (mask is not None and mask.stride(-1) != 1):
        return Backend.MATH
    backends = torch.backends.cuda
    dense = all(t.stride(-1) == 1 for t in (query, key, value))
    half = query.dtype in _HALF
    widths = query.shape[3], value.shape[3]
    if (dense or query.shape[3] == 1) and half:
        cudnn = max(widths) <= _CUDNN_WIDEST and not any(w % 8 for w in widths) and key.shape[2] != 1
        cudnn = cudnn and not (dropout and query.shape[2] == 1)
        cudnn = cudnn and capability[0] in _PREFER_CUDNN and backends.cudnn_sdp_enabled()
        if cudnn and _mask_of_cudnn(mask, query, key):
            return Backend.CUDNN
        square = not causal or query.shape[2] == key.shape[2]
        flash = mask is None and max(widths) <= _FLASH_WIDEST and widths[0] == widths[1] and square
        if flash and capability >= (8, 0) and backends.flash_sdp_enabled():
            return Backend.FLASH
    heads_alike = query.shape[1] == key.shape[1]  # this kernel knows no grouped queries
    if dense and heads_alike and (half or query.dtype is torch.float32) and backends.mem_efficient_sdp_enabled():
        return Backend.EFFICIENT
    return Backend.MATH


def _cpu_stands_for(choice: Backend, capability: tuple[int, int]) -> bool:
    """Return whether tile models read the CPU's fused operator as this choice: cuDNN's where that is asked first."""
    return choice is Backend.CUDNN or capability[0] not in _PREFER_CUDNN or torch.backends.cuda.cudnn_sdp_enabled()


def _alike(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, enable_gqa: bool) -> bool:
    """Return whether batches are equal, and heads, too, or as grouped queries need them."""
    heads = query.shape[1], key.shape[1], value.shape[1]
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        return False
    if enable_gqa:
        return bool(heads[1] == heads[2] > 0 and heads[0] % heads[1] == 0)
    return bool(heads[0] == heads[1] == heads[2])


def _mask_of_cudnn(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> bool:
    """Return whether cuDNN's kernel takes the mask."""
    if mask is None:
        return True
    sizes = query.shape[0], query.shape[1], query.shape[2], key.shape[2]
    fits = all(n in {1, of} for n, of in zip(mask.shape[::-1], sizes[::-1], strict=False))
    return not mask.requires_grad and mask.dim() in {2, 4} and fits


def _numbers(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """Return the mask as numbers to be added."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    zero = torch.zeros((), dtype=query.dtype, device=mask.device)
    return torch.where(mask, zero, torch.full((), -math.inf, dtype=query.dtype, device=mask.device))


def _fused_attention(
    choice: Backend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    *,
    scale: float | None,
) -> Any:
    """Call the operator of a fused kernel."""
    operators: Any = torch.ops.aten
    learns = _learns(query, key, value)
    if choice is Backend.FLASH:
        width = query.shape[3]
        scale = 1 / math.sqrt(width) if scale is None else scale
        query, key, value = (_widened(t) for t in (query, key, value))
        out = operators._scaled_dot_product_flash_attention(  # noqa: SLF001 - PyTorch's own name
            query, key, value, dropout, causal, scale=scale
        )[0]
        return out if out.shape[3] == width else out[..., :width]
    numbers = _numbers(mask, query)
    if choice is Backend.CUDNN:  # its kernel broadcasts the mask
        return operators._scaled_dot_product_cudnn_attention(  # noqa: SLF001 - as above
            query, key, value, numbers, learns, dropout, causal, False, scale=scale
        )[0]
    bias = None if numbers is None else _aligned(numbers).expand(*query.shape[:3], key.shape[2])
    return operators._scaled_dot_product_efficient_attention(  # noqa: SLF001 - as above
        query, key, value, bias, learns, dropout, causal, scale=scale
    )[0]


def _learns(*inputs: torch.Tensor) -> bool:
    """Return whether there will be gradients."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in inputs)


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """Return numbers whose rows begin at multiples of eight: a padded copy, unless they do (``preprocess_mask``)."""
    if _is_aligned(mask):
        return mask
    keys = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, _MASK_ROWS - keys % _MASK_ROWS))[..., :keys]


def _is_aligned(mask: torch.Tensor) -> bool:
    return mask.stride(-1) == 1 and not any(stride % _MASK_ROWS for stride in mask.stride()[:-1])


def _heads_first(source: torch.Tensor) -> bool:
    """Return whether the rows of a head lie together: a CPU's result lies like the queries, that of the
    memory-efficient kernel has heads beside each other.
    """
    return bool(source.shape[1] > 1 and source.shape[2] > 1 and source.stride(1) > source.stride(2))


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return heads as wide as FlashAttention takes them, with zeros behind (``pad_last_dim``)."""
    missing = -tensor.shape[3] % _FLASH_WIDTHS
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _dropout(source: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Drop out as on a GPU: one operator, which keeps its mask."""
    if train and 0 < p < 1 and source.numel():
        return torch.native_dropout(source, p, train)[0]
    return written_out(torch.ops.aten.dropout.default, source, p, train)


# ---- the operators' values: kernels of a CPU that has none


def _forward(operator: Any) -> Any:
    """Return a CPU kernel of a fused forward operator: results laid out as on a GPU, the seed of dropout in
    ``philox_seed`` or ``rng_state``.
    """
    names = [r.name for r in operator._schema.returns]  # noqa: SLF001 - has no public name

    def kernel(*args: Any, **kwargs: Any) -> Any:
        call = _arguments_by_name(operator, args, kwargs)
        results = _laid_out(operator, args, kwargs)
        seed = int(torch.randint(1 << 31, ())) if call["dropout_p"] else 0
        out, sums = _value(call, seed)
        results[0].copy_(out)
        if results[1].numel():  # some kernels pad it
            results[1].zero_()
            results[1].reshape(*results[1].shape[:3])[:, :, : sums.shape[2]] = sums
        for name, one in zip(names, results, strict=True):
            if name in {"philox_seed", "rng_state"}:
                one.fill_(seed)
        return tuple(results)

    return kernel


def _backward(operator: Any) -> Any:
    """Return a CPU kernel of a fused backward operator: gradients of `_value` with the seed of the forward pass."""
    gradient_name = operator._schema.arguments[0].name  # noqa: SLF001 - has no public name

    def kernel(*args: Any, **kwargs: Any) -> Any:
        call = _arguments_by_name(operator, args, kwargs)
        seed = int(call["philox_seed"].flatten()[0]) if call["dropout_p"] else 0
        gradients = _gradients(call, call[gradient_name].float(), seed)
        results = _laid_out(operator, args, kwargs)
        for one, target in zip(gradients, results, strict=False):
            if target.numel():
                target.copy_(one.sum_to_size(target.shape))
        return tuple(results)

    return kernel


def _arguments_by_name(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    arguments = operator._schema.arguments  # noqa: SLF001 - has no public name
    values = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return values | {a.name: v for a, v in zip(arguments, args, strict=False)} | kwargs


def _laid_out(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return results without values, with shapes and strides as PyTorch has them on a GPU."""
    on_meta = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in args]
    results = []
    for one in operator(*on_meta, **kwargs):
        if isinstance(one, torch.Tensor):
            results.append(torch.empty_strided(one.shape, one.stride(), dtype=one.dtype))
        else:
            results.append(torch.empty(0) if one is None else one)
    return results


def _weights(call: dict[str, Any], seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return scores, weights and what dropout multiplies weights with, each ``[batch, heads, queries, keys]``."""
    query, key = call["query"].float(), _for_each_head(call, "key")
    scores = query @ key.transpose(-1, -2) * _scale(call)
    if call.get("attn_bias") is not None:
        scores = scores + call["attn_bias"]
    if call["is_causal"]:
        causal_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~causal_mask, -math.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)  # rows that see no key
    chance = torch.rand(weights.shape, generator=torch.Generator().manual_seed(seed))
    p = call["dropout_p"]
    return scores, weights, (chance >= p) / (1 - p)


def _scale(call: dict[str, Any]) -> float:
    return 1 / math.sqrt(call["query"].shape[-1]) if call["scale"] is None else float(call["scale"])


def _for_each_head(call: dict[str, Any], name: str) -> torch.Tensor:
    """Return keys or values with a head for each head of the queries."""
    group: int = call["query"].shape[1] // call[name].shape[1]
    result: torch.Tensor = call[name].float().repeat_interleave(group, 1)
    return result


def _value(call: dict[str, Any], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention and the log-sum-exp of its scores ``[batch, heads, queries]``."""
    scores, weights, dropout_mask = _weights(call, seed)
    return (weights * dropout_mask) @ _for_each_head(call, "value"), scores.logsumexp(-1)


def _gradients(call: dict[str, Any], gradient: torch.Tensor, seed: int) -> list[torch.Tensor]:
    """Return the gradients of query, key, value and the added numbers, in float32."""
    _, weights, dropout_mask = _weights(call, seed)
    value = _for_each_head(call, "value")
    of_weights = gradient @ value.transpose(-1, -2) * dropout_mask
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    of_query = of_scores @ _for_each_head(call, "key") * _scale(call)
    of_key = of_scores.transpose(-1, -2) @ call["query"].float() * _scale(call)
    of_value = (weights * dropout_mask).transpose(-1, -2) @ gradient
    groups = (call["key"].shape[1], -1)
    summed = [t.unflatten(1, groups).sum(2) for t in (of_key, of_value)]
    return [of_query, *summed, of_scores]
