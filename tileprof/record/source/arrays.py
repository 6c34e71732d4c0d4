"""Finds the memory of an argument: PyTorch tensors, NumPy and CuPy arrays, and anything with the same interface."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

_DLPACK_HOST: Final = 1  # kDLCPU, https://dmlc.github.io/dlpack/latest/c_api.html


@dataclass(frozen=True, slots=True)
class Array:
    """A view of memory: its first element at ``address``, in an allocation ``[base, base + base_bytes)``.

    ``strides`` are in elements; ``owner`` keeps the memory alive; ``on_gpu`` says whose memory it is.
    """

    address: int
    base: int
    base_bytes: int
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    on_gpu: bool
    owner: Any

    @property
    def high(self) -> int:
        """The end of the allocation."""
        return self.base + self.base_bytes


def of(value: Any) -> Array | None:
    """Return the array that ``value`` is, or None when it is none."""
    if hasattr(value, "untyped_storage"):
        return _tensor(value)
    if hasattr(value, "__cuda_array_interface__"):
        return _array_of(value, value.__cuda_array_interface__, on_gpu=True)
    if isinstance(value, np.ndarray):
        return _array_of(value, value.__array_interface__, on_gpu=False)
    if hasattr(value, "__dlpack__"):
        return _dlpack(value)
    return None


def _tensor(tensor: Any) -> Array:
    """Return a PyTorch tensor; the allocation is its storage, which other views share."""
    storage = tensor.untyped_storage()
    return Array(
        address=tensor.data_ptr() or storage.data_ptr(),
        base=storage.data_ptr(),
        base_bytes=storage.nbytes(),
        dtype=str(tensor.dtype).removeprefix("torch."),
        itemsize=tensor.element_size(),
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        on_gpu=tensor.device.type == "cuda",
        owner=tensor,
    )


def _array_of(value: Any, interface: dict[str, Any], *, on_gpu: bool) -> Array:
    """Describe a value by NumPy's array interface, or CUDA's, which is the same; the allocation is the array's
    own where it tells.
    """
    dtype = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    steps = interface.get("strides") or _contiguous(shape, dtype.itemsize)
    address = int(interface["data"][0])
    base, base_bytes = _allocation(value) or _extent(address, shape, steps, dtype.itemsize)
    return Array(
        address=address,
        base=base,
        base_bytes=base_bytes,
        dtype=dtype.name,
        itemsize=dtype.itemsize,
        shape=shape,
        strides=tuple(s // dtype.itemsize for s in steps),
        on_gpu=on_gpu,
        owner=value,
    )


def _allocation(value: Any) -> tuple[int, int] | None:
    """Return where the memory that a view is cut from begins, and its size, as NumPy and CuPy know it."""
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        return _extent(value.ctypes.data, value.shape, value.strides, value.itemsize)
    memory = getattr(getattr(value, "data", None), "mem", None)
    return None if memory is None else (int(memory.ptr), int(memory.size))


def _extent(address: int, shape: tuple[int, ...], steps: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Return the first byte and the bytes of what a strided view can reach."""
    if not prod(shape):
        return address, 0
    spans = [(n - 1) * s for n, s in zip(shape, steps, strict=True)]
    low = sum(min(s, 0) for s in spans)
    return address + low, sum(max(s, 0) for s in spans) - low + itemsize


def _contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * prod(shape[i + 1 :]) for i in range(len(shape)))


def _dlpack(value: Any) -> Array:
    """Describe a value by DLPack: NumPy reads what lies in the CPU's memory, cuda.core what lies in a GPU's."""
    if value.__dlpack_device__()[0] == _DLPACK_HOST:
        described = of(np.from_dlpack(value))
        assert described is not None
        return described
    from cuda.core.utils import StridedMemoryView  # type: ignore[import-not-found] # noqa: PLC0415 - only GPU arrays need it

    view = StridedMemoryView.from_dlpack(value, stream_ptr=-1)  # -1: no synchronisation, launches do that
    shape, itemsize = tuple(view.shape), view.dtype.itemsize
    strides = tuple(view.strides or (s // itemsize for s in _contiguous(shape, itemsize)))
    base, base_bytes = _extent(view.ptr, shape, tuple(s * itemsize for s in strides), itemsize)
    return Array(
        view.ptr, base, base_bytes, str(view.dtype), itemsize, shape, strides, on_gpu=True, owner=(value, view)
    )
