"""Autocast as on a GPU: which operators it runs in float32, in the lower type, or in the widest type of their inputs.

PyTorch has another list for the CPU: there, layer norms, softmaxes, sums and powers keep bfloat16, and a cross entropy
runs in float32 as a whole. Inside a session autocast on the CPU follows the lists for CUDA.

Source: `autocast_mode.h` and `autocast_mode.cpp` of PyTorch 2.11.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOWER: Final = frozenset({
    "_convolution", "_convolution.deprecated", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention"
})  # fmt: skip
"""Operators in the type that autocast is entered with."""
FLOAT: Final = frozenset({
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div",
    "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist",
    "pdist", "cdist", "renorm", "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d",
    "_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bicubic2d_aa"
})  # fmt: skip
"""Operators in float32."""
FLOAT_RESULT: Final = frozenset({
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList", "norm.Scalar", "norm.ScalarOpt_dim"
})  # fmt: skip
"""Operators whose result is float32, unless the caller names its type; the operator casts."""
WIDEST: Final = frozenset({
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add"
})  # fmt: skip
"""Operators in the widest type of their inputs."""
_WITH_TYPE: Final = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
"""Overloads that take the type of the result."""
_NOT_ON_CPU: Final = "_scaled_dot_product_flash_attention"
_CPU_REFUSES: Final = "binary_cross_entropy"
"""CUDA refuses it under autocast."""
_AUTOCAST: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)  # noqa: SLF001 - has no public name


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Let autocast on the CPU cast what it casts on a GPU."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kernels that are replaced
        for name, kernel in _kernels():
            library.impl(name, kernel, "AutocastCPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()  # noqa: SLF001 - the only way to take kernels back


@cache
def _kernels() -> tuple[tuple[str, Any], ...]:
    return tuple(_new_kernels())


def _new_kernels() -> Iterator[tuple[str, Any]]:
    has = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001 - has no public name
    for name in sorted(FLOAT):
        yield name, _kernel(name, _to_float)
    for name in sorted(WIDEST):
        yield name, _kernel(name, _to_widest)
    for name in sorted(FLOAT_RESULT):
        yield name, _with_float_result(name)
    for name in sorted(LOWER - {_NOT_ON_CPU}):
        if not has(f"aten::{name}", "AutocastCPU"):
            yield name, _kernel(name, _to_lower)
    ours = LOWER | FLOAT | FLOAT_RESULT | WIDEST | {_CPU_REFUSES}
    for full_name in torch._C._dispatch_get_all_op_names():  # noqa: SLF001 - has no public name
        name = full_name.removeprefix("aten::")
        if full_name != name and name not in ours and has(full_name, "AutocastCPU"):
            yield name, torch.library.fallthrough_kernel


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _kernel(name: str, cast: Callable[[Any], Any]) -> Any:
    """Return a kernel that casts all floating-point inputs first."""
    operator = _operator(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):  # noqa: SLF001 - has no public name
            args, kwargs = cast((args, kwargs))
            return operator(*args, **kwargs)

    return kernel


def _with_float_result(name: str) -> Any:
    """Return a kernel that asks for a result in float32 if the caller names no type."""
    operator, typed = _operator(name), _operator(_WITH_TYPE.get(name, name))
    arguments = operator._schema.arguments  # noqa: SLF001 - has no public name
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):  # noqa: SLF001 - has no public name
            call = defaults | dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
            if not _eligible(args[0]) or call.get("dtype") is not None:
                return operator(*args, **kwargs)
            return typed(**call | {"dtype": torch.float32})

    return kernel


def _eligible(value: Any) -> bool:
    """Return whether autocast casts it."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64


def _cast(values: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda value: value.to(dtype) if _eligible(value) else value, values)


def _to_float(values: Any) -> Any:
    return _cast(values, torch.float32)


def _to_lower(values: Any) -> Any:
    return _cast(values, torch.get_autocast_dtype("cpu"))


def _to_widest(values: Any) -> Any:
    lower = torch.get_autocast_dtype("cpu")
    types = {value.dtype for value in tree_leaves(values) if _eligible(value)}
    return _cast(values, torch.float32 if torch.float32 in types else lower)


def tf32_allowed() -> bool:
    """Return whether products of float32 may run on tensor cores now: a program may change it at any time."""
    return bool(torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32")  # noqa: SLF001 - the public way is slow
