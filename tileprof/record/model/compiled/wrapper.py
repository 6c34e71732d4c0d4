"""The wrapper that Inductor writes, run on fake tensors: allocations, views, launches and extern kernels, in order.

What it allocates becomes buffers, its Triton kernels become launches, and its extern kernels are seen as the operators
that they are. The functions of C++ that it calls have counterparts here that know layouts only.
"""

from __future__ import annotations

import math
import re
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from tileprof.record.cuda.inprocess import tileprof_inductor
from tileprof.record.model.compiled.kernels import CompiledKernel

if TYPE_CHECKING:
    from collections.abc import Callable


class Listener:
    """The interface that a running wrapper calls: the operators and modules of the next launch, allocations, and
    launches.
    """

    def mark(self, op: str, module: str) -> None:
        """Hear which operators and modules what follows belongs to."""
        raise NotImplementedError

    def allocated(self, tensor: torch.Tensor) -> None:
        """Hear of new memory."""
        raise NotImplementedError

    def remark(self, text: str) -> None:
        """Note something about the trace."""
        raise NotImplementedError

    def launched(self, kernel: CompiledKernel, arguments: tuple[Any, ...]) -> None:
        """Hear of a launch."""
        raise NotImplementedError


def load(key: str, path: str, attributes: dict[str, Any] | None, listener: Listener) -> types.ModuleType:
    """Return the generated module at ``path``; a wrapper calls ``listener`` when it runs, others are not run."""
    text = tileprof_inductor.instrumented(Path(path).read_text(encoding="utf-8"))
    module = types.ModuleType(Path(path).stem)
    module.__file__ = path
    module.key = key  # type: ignore[attr-defined]
    if not _WRAPPER.search(text):
        return module
    hooks = types.SimpleNamespace(
        mark=listener.mark,
        extern=lambda _name, function, *arguments, **options: function(*arguments, **options),
        pointwise=lambda _name, function, *arguments, **options: function(*arguments, **options),
    )
    compiler: Any = __import__("torch._inductor.async_compile", fromlist=["AsyncCompile"]).AsyncCompile

    def triton(_self: Any, name: str, source: str, *_: Any, **__: Any) -> CompiledKernel:
        return CompiledKernel(name, source, listener.launched)

    with mock.patch.dict(sys.modules, {"tileprof_inductor": hooks}), mock.patch.object(compiler, "triton", triton):
        exec(compile(text, path, "exec"), vars(module))  # noqa: S102 - Inductor's own code, as it would run
    vars(module).update({name: value for name, value in _replacements(listener).items() if name in vars(module)})
    vars(module).update(attributes or {})
    return module


_WRAPPER = re.compile(r"^\s*def call\(", re.MULTILINE)
"""A template's candidate, which Inductor would measure, has none."""


def _replacements(listener: Listener) -> dict[str, Callable[..., Any]]:
    """Return counterparts of what the wrapper takes from C++."""

    def empty_on_gpu(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty_strided(size, stride, dtype=dtype)  # on the CPU: operators on fakes of a GPU want one
        listener.allocated(tensor)
        return tensor

    return {
        "empty_strided_cuda": empty_on_gpu,
        "empty_strided_cpu": lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype),
        "empty_strided_cpu_pinned": lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype),
        "reinterpret_tensor": _reinterpreted,
        "alloc_from_pool": _from_pool,
        "assert_size_stride": _assert_layout,
        "assert_alignment": _do_nothing,
        "copy_if_misaligned": lambda tensor: tensor,
        "copy_misaligned": lambda tensor: tensor,
        "get_raw_stream": lambda _device=0: 0,
        "start_graph": _do_nothing,
        "end_graph": _do_nothing,
        "run_intermediate_hooks": _do_nothing,
    }


def _assert_layout(tensor: torch.Tensor, size: Any, stride: Any, name: str = "") -> None:
    """Raise ValueError where a tensor lies otherwise than the code that follows takes it to lie: a library's kernel on
    the GPU may have another layout than PyTorch's on the CPU.
    """
    actual = [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]
    expected = [s for n, s in zip(size, stride, strict=True) if n > 1]
    if tuple(tensor.shape) != tuple(size) or (tensor.numel() and actual != expected):
        raise ValueError(
            f"{name or 'a tensor'} has layout {tuple(tensor.stride())} here and {tuple(stride)} on the GPU"
        )


def _do_nothing(*_: Any, **__: Any) -> None:
    return None


def _reinterpreted(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def _from_pool(pool: torch.Tensor, offset: int, dtype: torch.dtype, size: Any, stride: Any) -> torch.Tensor:
    flat = torch.as_strided(pool, (pool.untyped_storage().nbytes() // pool.element_size(),), (1,), 0)
    begin, need = int(offset), 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    flat = flat.view(torch.uint8)[begin : begin + need * dtype.itemsize].view(dtype)
    return torch.as_strided(flat, size, stride, flat.storage_offset()) if math.prod(size) else flat.reshape(size)
