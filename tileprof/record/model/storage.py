"""Which buffer a tensor lies in: PyTorch's storages, from the moment they are seen to the moment they die.

A storage is known by its C++ object. PyTorch keeps one Python object for it as long as the C++ object lives, so a
weak reference with a callback tells when memory is really given back, also when only autograd held it.
Addresses come from `CachingAllocator`, so that recycled memory shows as it would on a GPU.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tileprof.record.model.allocator import CachingAllocator

if TYPE_CHECKING:
    from collections.abc import Callable

    from tileprof.trace.writer import TraceWriter

_ABSENT = -1
"""The id of a buffer that no kept launch has touched so far: it is not in the trace."""


@dataclass(slots=True)
class Buffer:
    """A live allocation. ``made_at`` counts the launches kept before it; ``made`` says an operator made it."""

    base: int
    bytes: int
    kind: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    made_at: int
    made: bool
    name: str = ""
    id: int = _ABSENT
    external: int = 0
    """The address of memory that no operator made, 0 for others."""
    holders: int = 1
    """Storages that stand for this memory: more than one for `from_numpy` of one array, twice."""


class Buffers:
    """The live buffers of a recording; the session's lock guards every call."""

    def __init__(self, writer: TraceWriter) -> None:
        self.writer = writer
        self.allocator = CachingAllocator()
        self._live: dict[int, Buffer] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._dead: deque[int] = deque()
        self._external: dict[int, Buffer] = {}

    def restart(self, writer: TraceWriter) -> None:
        """Write to another trace from now on: no buffer is in it yet, all live ones are older than it."""
        self.writer = writer
        for buffer in self._live.values():
            buffer.id, buffer.made_at = _ABSENT, 0

    def bury(self) -> None:
        """Free the buffers of storages that died since the last call."""
        while self._dead:
            key = self._dead.popleft()
            del self._references[key]
            self._free(self._live.pop(key))

    def _free(self, buffer: Buffer) -> None:
        buffer.holders -= 1
        if buffer.holders:
            return
        self.allocator.free(buffer.base)
        self._external.pop(buffer.external, None)
        if buffer.id != _ABSENT:
            self.writer.free_buffer(buffer.id)

    def of(self, tensor: torch.Tensor, *, made: bool) -> Buffer | None:
        """The buffer ``tensor`` lies in, None for memory of no size; ``made``: an operator just returned it."""
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001 - the only stable identity of a storage
        buffer = self._live.get(key)
        size = storage.nbytes()
        if buffer is not None and buffer.bytes == size:
            return buffer
        if buffer is not None:  # resized: on a GPU a new allocation, and the old one is freed
            del self._live[key]
            self._free(buffer)
        if not size:
            return None
        buffer = self._live[key] = self._known_outside(storage, made) or self._make(tensor, size, made)
        if key not in self._references:
            self._references[key] = weakref.ref(storage, partial(self._died, key))
        return buffer

    def _died(self, key: int, _: object) -> None:
        self._dead.append(key)

    def _make(self, tensor: torch.Tensor, size: int, made: bool) -> Buffer:
        kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "activation" if made else "input"
        buffer = Buffer(
            base=self.allocator.allocate(size),
            bytes=size,
            kind=kind,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            strides=tensor.stride(),
            made_at=self.writer.launches,
            made=made,
        )
        if not made and type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu":
            buffer.external = tensor.untyped_storage().data_ptr()
            self._external[buffer.external] = buffer
        return buffer

    def _known_outside(self, storage: torch.UntypedStorage, made: bool) -> Buffer | None:
        """Memory from outside that another storage stands for already (two `from_numpy` of one array)."""
        if made or not self._external:
            return None
        try:
            found = self._external.get(storage.data_ptr())
        except RuntimeError:  # a fake tensor has no address
            return None
        if found is None or found.bytes != storage.nbytes():
            return None
        found.holders += 1
        return found

    def bind(self, buffer: Buffer, *, new: bool) -> int:
        """The buffer's id in the trace, which it enters now if need be; ``new``: the launch's own output."""
        if buffer.id == _ABSENT:
            buffer.id = self.writer.add_buffer(
                base=buffer.base,
                bytes=buffer.bytes,
                kind=buffer.kind,
                name=buffer.name,
                dtype=buffer.dtype,
                shape=buffer.shape,
                strides=buffer.strides,
                before_start=buffer.made_at == 0 and not new,
            )
        return buffer.id

    def describe(self, tensor: torch.Tensor, kind: str, name: Callable[[], str]) -> None:
        """Say what a tensor is; the first name of a storage stays (tied weights)."""
        if not _has_storage(tensor):
            return
        buffer = self.of(tensor, made=False)
        if buffer is None or (buffer.kind == kind and buffer.name):
            return
        buffer.kind, buffer.name = kind, buffer.name or name()
        if buffer.id != _ABSENT:
            self.writer.describe_buffer(buffer.id, kind=kind, name=buffer.name)

    def is_parameter(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies in a parameter's memory."""
        buffer = self.of(tensor, made=False)
        return buffer is not None and buffer.kind == "parameter"

    def scratch(self, size: int) -> Buffer:
        """Workspace that lives until `release`."""
        base = self.allocator.allocate(size)
        return Buffer(base, size, "workspace", "uint8", (size,), (1,), self.writer.launches, made=True)

    def release(self, scratch: Buffer) -> None:
        """Free a workspace."""
        self._free(scratch)


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The strided tensors that hold a tensor's data: itself, or the components of a sparse or nested one.

    Empty where they cannot be had (opaque layouts).
    """
    if _has_storage(tensor):
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()  # noqa: SLF001 - the public ones refuse uncoalesced tensors
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor.values(),) if tensor.is_nested else ()
