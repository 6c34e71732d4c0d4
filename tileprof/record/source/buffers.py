"""The buffers of a recording: whatever memory the arrays given to it lie in, kept alive until they are released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tileprof.errors import UserError
from tileprof.record.source.arrays import Array

if TYPE_CHECKING:
    from tileprof.trace import TraceWriter


@dataclass(slots=True)
class Buffer:
    """One allocation, ``[base, high)``; ``origin`` is where the first array that showed it begins."""

    id: int
    base: int
    high: int
    origin: int
    name: str
    used: bool
    owner: Any

    @property
    def bytes(self) -> int:
        return self.high - self.base


class Buffers:
    """Live buffers, by address. Holding on to the arrays keeps an address from being handed out twice unnoticed."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self.live: list[Buffer] = []

    def of(self, array: Array, name: str = "", kind: str = "") -> Buffer | None:
        """Return the buffer that an array lies in, new if need be; None for an array without elements.

        Raises UserError when its memory overlaps a known buffer without lying in it.
        """
        if array.base_bytes == 0:
            return None
        for buffer in self.live:
            if buffer.base <= array.base and array.high <= buffer.high:
                self._describe(buffer, name, kind)
                return buffer
            if array.base < buffer.high and buffer.base < array.high:
                raise UserError(
                    f"An array of {array.base_bytes:,} bytes at {array.base:#x} overlaps {buffer.name or 'an array'} "
                    f"of {buffer.bytes:,} bytes at {buffer.base:#x}, which was given before. Give the whole array "
                    "first: recording.buffer(whole)."
                )
        new = Buffer(
            id=self._writer.add_buffer(
                base=array.base,
                bytes=array.base_bytes,
                kind=kind or "unknown",
                name=name,
                dtype=array.dtype,
                shape=array.shape,
                strides=array.strides,
                before_start=self._writer.launches == 0,
            ),
            base=array.base,
            high=array.high,
            origin=array.address,
            name=name,
            used=bool(kind),
            owner=array.owner,
        )
        self.live.append(new)
        return new

    def use(self, buffer: Buffer, *, written: bool) -> None:
        """A launch touches a buffer: what the first one writes is an activation, what it reads an input."""
        if not buffer.used:
            self._writer.describe_buffer(buffer.id, kind="activation" if written else "input")
            buffer.used = True

    def release(self, array: Array) -> None:
        """The array's buffer is freed now, and no longer kept alive."""
        for buffer in [b for b in self.live if b.base <= array.base and array.high <= b.high and array.base_bytes]:
            self._writer.free_buffer(buffer.id)
            self.live.remove(buffer)

    def _describe(self, buffer: Buffer, name: str, kind: str) -> None:
        if name:
            buffer.name = name
            self._writer.describe_buffer(buffer.id, name=name)
        if kind:
            buffer.used = True
            self._writer.describe_buffer(buffer.id, kind=kind)
