"""Finds the buffer that a tensor lies in: PyTorch's storages, from the first time they are seen to their release.

A storage is known by its C++ object. PyTorch keeps one Python object for it as long as the C++ object lives, so a
weak reference with a callback tells when memory is really given back, also when only autograd held it.
Addresses come from `CachingAllocator`, so that recycled memory shows as it would on a GPU.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy

from tileprof.record.model.memory.allocator import CachingAllocator
from tileprof.record.model.tile_model import PINNED, Kernel, Operand
from tileprof.record.model.tiles.elementwise.pointwise import elementwise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tileprof.trace.writer import TraceWriter

ABSENT = -1
"""The id of a buffer that no kept launch has touched so far: it is not in the trace."""

_AGAIN = (
    "Memory from outside PyTorch (numpy, DLPack, a file) was used again after its last tensor had died, and is taken "
    "to be the same memory still: where it was new memory at the same address, there are dependencies too many."
)

_UNORDERED = (
    "Memory from outside PyTorch was written to, and such memory was read before by tensors that have died since: where"
    " both are the same, the write does not wait for those reads here."
)

LIBRARY_BYTES = 32 << 20
"""The workspace that PyTorch gives cuBLAS on sm_90 (``getChosenWorkspaceSize``), one for a stream's products."""
PINNED_BYTES = 512
"""The host memory that counts are copied to: the least that PyTorch's allocator gives."""

_COPIED_BYTES = 8
"""Bytes that a thread copies at a time, where the size allows it."""


@dataclass(slots=True, eq=False)
class Buffer:
    """A live allocation. ``made_at`` counts the launches kept before it."""

    base: int
    bytes: int
    kind: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    made_at: int
    name: str = ""
    id: int = ABSENT
    address: int = 0
    """The real address of its first byte, if the memory came from outside (numpy, DLPack, a file); 0 for others."""
    is_written: bool = False
    """True if a launch may have written to it; known of memory from outside only."""
    writes: int = 0
    """Number of launches so far that may have written to it."""
    holders: int = 1
    """Storages that stand for this memory: more than one for `from_numpy` of one array, twice."""
    on_host: bool = False
    """True for Python's data that, as far as is known, would not be on the GPU yet."""
    host_copy: bool = False
    """True for a copy of the GPU's data to the host, and for what was computed from such copies: operators on it have
    no launch.
    """
    is_constant: bool = False
    """True if an operator without inputs made it, after the first copy to the host."""
    made_of_a_number: bool = False
    """PyTorch made it of a number of Python's, and nothing has copied it to the GPU."""
    is_weight: bool = False
    """True if it is among `Buffers.weight_bytes`."""


@dataclass(slots=True, eq=False)
class _LiveStorage:
    """A live storage: byte 0 of its ``bytes`` is byte ``at`` of the buffer; ``real``: it has an address."""

    buffer: Buffer
    bytes: int
    real: bool
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Bytes ``at`` to ``at + bytes`` of ``old`` are the first ones from ``to`` on of ``new``.

    A storage that was resized is copied, as on a GPU. Two buffers that prove to be one memory are not, there: the
    launch that stands between them reads and writes all of the old one, so that what touches the new one comes after
    whatever touched the old one.
    """

    old: Buffer
    at: int
    new: Buffer
    to: int
    bytes: int
    copied: bool

    @property
    def op(self) -> str:
        """The operator that the launch is recorded under."""
        return "aten::resize_" if self.copied else "tileprof::same_memory"

    def kernel(self) -> Kernel:
        """Return the launch: operand 0 is the old buffer, operand 1 the new one."""
        item = math.gcd(self.bytes, _COPIED_BYTES)
        old, new = (Operand((self.bytes // item,), (1,), f"int{8 * item}", item, ref=ref) for ref in (0, 1))
        if self.copied:
            return elementwise("copy_", [old], [new])[0]
        why = "memory that was taken for a buffer of its own is part of a larger one: all that follows depends on it"
        return replace(elementwise("copy_", [old], [old, new])[0], coverage="conservative", note=why)


class Buffers:
    """The live buffers of a recording; the session's lock guards every call."""

    def __init__(self, writer: TraceWriter) -> None:
        self.writer = writer
        self.allocator = CachingAllocator()
        self._live: dict[int, _LiveStorage] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._dead: deque[int] = deque()
        self._outside: set[int] = set()
        """Storages of memory that PyTorch did not allocate, or does not own alone any more."""
        self._remaining: list[Buffer] = []
        """Memory from outside that launches wrote to and that no tensor shows now; its owner may show it again."""
        self._read_and_left = False
        """True if memory from outside that launches only read was given up with its last tensor."""
        self._workspaces: dict[str, Buffer] = {}
        """Workspaces of libraries."""
        self._moves: list[Move] = []
        self._merges = 0
        self.any_host_copy = False
        """True if anything was copied to the host that the program may compute with there."""
        self._shifted = False
        """True if some storage may begin elsewhere than its buffer does."""
        self.weight_bytes = 0
        """Bytes of all memory that got the name of a parameter, also of what was freed since, but tables: a run reads
        few of their rows.
        """

    def restart(self, writer: TraceWriter) -> None:
        """Write to another trace from now on: no buffer is in it yet, all live ones are older than it."""
        self.writer = writer
        for live in self._live.values():
            live.buffer.id, live.buffer.made_at = ABSENT, 0
        for buffer in self._workspaces.values():
            buffer.id, buffer.made_at = ABSENT, 0
        unseen = {id(b): b for move in self._moves for b in (move.old, move.new) if not b.holders}
        for old in (*self._remaining, *unseen.values()):
            self.allocator.free(old.base)
        self._remaining.clear()
        self._moves.clear()
        self._read_and_left = False

    def bury(self) -> None:
        """Free the buffers of storages that died since the last call."""
        while self._dead:
            key = self._dead.popleft()
            del self._references[key]
            self._outside.discard(key)
            entry = self._live.pop(key, None)
            if entry is not None:
                self._drop(entry.buffer)

    def _drop(self, buffer: Buffer) -> None:
        """Note that one storage less shows the buffer. Memory from outside is not known to be free when no
        tensor shows it.
        """
        buffer.holders -= 1
        if buffer.holders:
            return
        outside = buffer.address and buffer.id != ABSENT
        self._read_and_left |= bool(outside and not buffer.is_written)
        if outside and buffer.is_written:
            self._remaining.append(buffer)
        elif not self._moves or not self._moving(buffer):
            self._free(buffer)

    def _moving(self, buffer: Buffer) -> bool:
        return any(buffer in (move.old, move.new) for move in self._moves)

    def _free(self, buffer: Buffer) -> None:
        self.allocator.free(buffer.base)
        if buffer.id != ABSENT:
            self.writer.free_buffer(buffer.id)

    def places(self, tensors: Sequence[torch.Tensor], made_from: int) -> list[Buffer | None]:
        """Return the buffers of an operator's tensors; those from ``made_from`` on it just returned."""
        merges, live = self._merges, self._live
        buffers: list[Buffer | None] = []
        for n, tensor in enumerate(tensors):
            storage = tensor.untyped_storage()
            entry = live.get(storage._cdata)  # noqa: SLF001
            if entry is not None and entry.bytes == storage.nbytes():  # nearly always: `of` without a call
                buffers.append(entry.buffer)
            else:
                buffers.append(self.of(tensor, is_result=n >= made_from))
        if self._merges != merges:  # a tensor showed that an earlier one lies in a larger memory
            buffers = [self.of(t, is_result=False) for t in tensors]
        return buffers

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor lies in a live buffer, whose size has not changed since."""
        if not _has_storage(tensor):
            return False
        storage = tensor.untyped_storage()
        entry = self._live.get(storage._cdata)  # noqa: SLF001
        return entry is not None and entry.bytes == storage.nbytes()

    def is_number(self, tensor: torch.Tensor) -> bool:
        """Return whether PyTorch made the tensor of a number of Python's, which is still on the host."""
        buffer = self.of(tensor, is_result=False)
        return buffer is not None and buffer.made_of_a_number

    def of(self, tensor: torch.Tensor, *, is_result: bool) -> Buffer | None:
        """Return the buffer ``tensor`` lies in, None for memory of no size; ``is_result``: an operator just returned
        it.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001 - the only stable identity of a storage
        entry = self._live.get(key)
        size = storage.nbytes()
        if entry is not None and entry.bytes == size:
            return entry.buffer
        if entry is not None:
            del self._live[key]
        buffer = self._new(tensor, storage, key, size, is_result) if size else None
        if entry is not None:
            self._resized(entry, buffer, size)
        if buffer is not None and key not in self._references:
            self._references[key] = weakref.ref(storage, partial(self._died, key))
        return buffer

    def _died(self, key: int, _: object) -> None:
        self._dead.append(key)

    def _new(self, tensor: torch.Tensor, storage: torch.UntypedStorage, key: int, size: int, is_result: bool) -> Buffer:
        outside = not storage.resizable()
        entry = self._registered(storage, size, outside) if outside or not is_result else None
        if entry is None:
            if self._remaining and not outside:
                self._forget(storage, size)
            entry = _LiveStorage(self._make(tensor, size, is_result), size, bool(_address(storage)))
            if outside:
                entry.buffer.address, entry.buffer.is_written = _address(storage), is_result
        if outside:
            self._outside.add(key)
        self._live[key] = entry
        return entry.buffer

    def _resized(self, entry: _LiveStorage, buffer: Buffer | None, size: int) -> None:
        """A resized storage is a new allocation on a GPU: the contents are copied, and the old one is freed."""
        old = entry.buffer
        if buffer is not None:
            buffer.kind, buffer.name = old.kind, old.name
            if old.id != ABSENT or self._moving(old):
                self._moves.append(Move(old, entry.at, buffer, 0, min(size, entry.bytes), copied=True))
        self._drop(old)

    def shares(self, tensor: torch.Tensor, other: torch.Tensor) -> bool:
        """Let the storage of ``tensor``, which is new, stand for the memory of ``other``'s.

        Returns False where it is seen already, or larger than that memory.
        """
        buffer = self.of(other, is_result=False)
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()  # noqa: SLF001 - as in `of`
        if buffer is None:
            return not size
        at = self._live[other.untyped_storage()._cdata].at  # noqa: SLF001
        live_entry = self._live.get(key)
        if live_entry is not None and live_entry.bytes == size:
            return live_entry.buffer is buffer and live_entry.at == at
        if at + size > buffer.bytes or live_entry is not None:
            return False
        buffer.holders += 1
        self._shifted |= bool(at)
        self._live[key] = _LiveStorage(buffer, size, False, at)
        if key not in self._references:
            self._references[key] = weakref.ref(storage, partial(self._died, key))
        return True

    def writes(self, tensor: torch.Tensor) -> int:
        """Return how many launches may have written to the tensor's memory."""
        buffer = self.of(tensor, is_result=False)
        return 0 if buffer is None else buffer.writes

    def offset(self, tensor: torch.Tensor) -> int:
        """Return where the tensor's first element lies in its buffer, in bytes."""
        at = self._live[tensor.untyped_storage()._cdata].at if self._shifted else 0  # noqa: SLF001
        elements = tensor.storage_offset()
        return at + int(elements * tensor.element_size()) if elements else at

    def _make(self, tensor: torch.Tensor, size: int, is_result: bool) -> Buffer:
        # Parameter's own check of instances takes longer than all of the rest.
        parameter = type(tensor) is not torch.Tensor and isinstance(tensor, torch.nn.Parameter)
        kind = "parameter" if parameter else "activation" if is_result else "input"
        return Buffer(
            base=self.allocator.allocate(size),
            bytes=size,
            kind=kind,
            dtype=_name(tensor.dtype),
            shape=tuple(tensor.shape),
            strides=tensor.stride(),
            made_at=self.writer.launches,
        )

    # ---- memory that several storages show

    def _registered(self, storage: torch.UntypedStorage, size: int, outside: bool) -> _LiveStorage | None:
        """Return where in a known buffer the memory of a new storage lies; buffers that it joins become one.

        Two storages of memory that PyTorch allocated never overlap, so one of them must be from ``outside``.
        """
        begin = _address(storage)
        if not begin:
            return None
        ranges = self._address_ranges(self._live if outside else self._outside)
        ranges += [(old.address, old) for old in self._remaining]
        overlapping = {id(b): (start, b) for start, b in ranges if start < begin + size and begin < start + b.bytes}
        if not overlapping:
            return None
        if any(buffer in self._remaining for _, buffer in overlapping.values()):
            self.writer.note(_AGAIN)
        [(start, buffer), *others] = overlapping.values()
        if others or begin < start or start + buffer.bytes < begin + size:
            start, buffer = self._merge(list(overlapping.values()), begin, begin + size)
        elif buffer in self._remaining:
            self._remaining.remove(buffer)
        buffer.holders += 1
        self._shifted |= begin != start
        return _LiveStorage(buffer, size, True, begin - start)

    def _address_ranges(self, keys: Iterable[int]) -> list[tuple[int, Buffer]]:
        """Return the real addresses at which buffers begin now: a storage's memory can move, to be shared for
        instance.
        """
        ranges = []
        for key in keys:
            entry, storage = self._live.get(key), self._references[key]()
            if entry is not None and entry.real and storage is not None:
                ranges.append((storage.data_ptr() - entry.at, entry.buffer))
        return ranges

    def _merge(self, parts: list[tuple[int, Buffer]], begin: int, end: int) -> tuple[int, Buffer]:
        """Make one buffer in place of ``parts``, ``(address, buffer)``, and of what lies between ``begin`` and
        ``end``.
        """
        self._merges += 1
        self._shifted = True
        begin = min(begin, *(start for start, _ in parts))
        size = max(end, *(start + b.bytes for start, b in parts)) - begin
        representative = max((b for _, b in parts), key=lambda b: (b.kind == "parameter", bool(b.name)))
        merged = replace(
            representative, base=self.allocator.allocate(size), bytes=size, id=ABSENT, made_at=self.writer.launches,
            address=begin,
            holders=0, dtype="uint8", shape=(size,), strides=(1,), is_written=any(b.is_written for _, b in parts),
        )  # fmt: skip
        for start, old in parts:
            merged.holders += old.holders
            old.holders = 0
            if old.id != ABSENT or self._moving(old):
                self._moves.append(Move(old, 0, merged, start - begin, old.bytes, copied=False))
            else:
                self._free(old)
            for entry in self._live.values():
                if entry.buffer is old:
                    entry.buffer, entry.at = merged, entry.at + start - begin
            if old in self._remaining:
                self._remaining.remove(old)
        return begin, merged

    def _forget(self, storage: torch.UntypedStorage, size: int) -> None:
        """PyTorch allocated ``storage``: memory from outside that lay there was given back."""
        begin = _address(storage)
        for old in [b for b in self._remaining if begin and b.address < begin + size and begin < b.address + b.bytes]:
            self._remaining.remove(old)
            self._free(old)

    def wrote(self, tensors: Iterable[torch.Tensor]) -> None:
        """A launch may write to these tensors."""
        for tensor in tensors:
            entry = self._live.get(tensor.untyped_storage()._cdata)  # noqa: SLF001
            if entry is not None:
                entry.buffer.is_written = True
                entry.buffer.writes += 1
                if entry.buffer.address and self._read_and_left:
                    self.writer.note(_UNORDERED)

    def moves(self) -> Iterator[Move]:
        """Yield launches that come before the operator whose tensors were just looked up; each old buffer is freed
        after it.
        """
        while self._moves:
            move = self._moves[0]
            yield move
            del self._moves[0]
            for buffer in (move.old, move.new):
                if not buffer.holders and not self._moving(buffer) and buffer not in self._remaining:
                    self._free(buffer)

    def ends(self, move: Move, kernel: Kernel) -> tuple[tuple[int, int], ...]:
        """Return what each operand slot of a move's kernel is bound to."""
        ends = (move.old, move.at), (move.new, move.to)
        both = [(self.bind(buffer, new=True), at) for buffer, at in ends]
        return tuple(both[o.ref] for o in kernel.operands if isinstance(o, Operand))

    def bind(self, buffer: Buffer, *, new: bool) -> int:
        """Return the buffer's id in the trace, which it enters now if need be; ``new``: the launch's own output."""
        if buffer.id == ABSENT:
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

    def describe(self, tensor: torch.Tensor, kind: str, name: Callable[[], str], *, is_table: bool = False) -> None:
        """Say what a tensor is; the first name of a storage stays (tied weights). ``is_table``: for embeddings."""
        tensor = without_transforms(tensor)
        if is_lazy(tensor) or not _has_storage(tensor):
            return
        self.bury()
        buffer = self.of(tensor, is_result=False)
        if buffer is None:
            return
        named = buffer.kind == kind and buffer.name
        if not named:
            buffer.kind, buffer.name = kind, buffer.name or name()
        if kind == "parameter" and buffer.name and not is_table and not buffer.is_weight:
            buffer.is_weight = True
            self.weight_bytes += buffer.bytes
        if named:
            return
        if buffer.id != ABSENT:
            self.writer.describe_buffer(buffer.id, kind=kind, name=buffer.name)

    def is_parameter(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor lies in a parameter's memory."""
        buffer = self.of(tensor, is_result=False)
        return buffer is not None and buffer.kind == "parameter"

    def scratch(self, size: int, library: str = "") -> Buffer:
        """Return workspace that lives until `release`, or the library's own if that is large enough."""
        if library and size <= LIBRARY_BYTES:
            if library not in self._workspaces:
                is_pinned = library.startswith(PINNED)
                size = PINNED_BYTES if is_pinned else LIBRARY_BYTES
                self._workspaces[library] = self._workspace(size, library if is_pinned else f"workspace of {library}")
            return self._workspaces[library]
        return self._workspace(size)

    def _workspace(self, size: int, name: str = "") -> Buffer:
        base = self.allocator.allocate(size)
        return Buffer(base, size, "workspace", "uint8", (size,), (1,), self.writer.launches, name)

    def release(self, scratch: Buffer) -> None:
        """Free a workspace; a library's own stays."""
        if scratch not in self._workspaces.values():
            self._free(scratch)


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _address(storage: torch.UntypedStorage) -> int:
    """Return where the storage's bytes are; 0 if nowhere, as those of a fake tensor."""
    try:
        return int(storage.data_ptr()) if storage.device.type == "cpu" else 0
    except RuntimeError:  # a tensor subclass that has no memory of its own
        return 0


def without_transforms(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor below the wrappers of `torch.func`: inside ``grad`` and ``vmap`` a module's parameters are
    wrapped.
    """
    functorch = torch._C._functorch  # noqa: SLF001 - has no public name
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the strided tensors that hold a tensor's data: itself, or the components of a sparse or nested one.

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


def on_host(places: list[Buffer | None]) -> bool:
    """Return whether the first tensor is the host's."""
    return bool(places) and places[0] is not None and places[0].on_host


def only_aliases(places: list[Buffer | None], inputs: int) -> bool:
    """Return whether every output lies in an input's memory: a view, whatever its schema says."""
    if len(places) <= inputs:
        return False
    for output in places[inputs:]:
        for n in range(inputs):
            if output is places[n] and output is not None:
                break
        else:
            return False
    return True
