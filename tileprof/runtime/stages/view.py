"""An operand of a stage: a strided view of a named tensor, and the bytes of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from tileprof.errors import UserError

ITEM_BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 4}
_LARGEST: Final = 2**40
"""Elements; far above any tensor and far below what overflows."""

Spans = tuple[tuple[int, int], ...]
"""Half-open ``(begin, end)`` along each dimension."""


@dataclass(frozen=True, slots=True)
class View:
    """``shape``, ``strides`` and ``offset`` in elements; validates itself and raises `UserError`."""

    tensor: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    offset: int = 0

    def __post_init__(self) -> None:
        if not self.tensor:
            raise UserError("an operand names no tensor")
        if self.dtype not in ITEM_BYTES:
            raise UserError(f"tensor {self.tensor} is {self.dtype}; stages compute in {', '.join(ITEM_BYTES)}")
        if not self.shape or len(self.shape) != len(self.strides) or min(self.shape) < 1 or min(self.strides) < 0:
            raise UserError(
                f"tensor {self.tensor} has shape {self.shape} and strides {self.strides}: not a view that a stage can "
                "take"
            )
        if self.offset < 0 or self.elements > _LARGEST or max(self.strides) > _LARGEST:
            raise UserError(
                f"tensor {self.tensor} has offset {self.offset} and spans {self.elements} elements; at most {_LARGEST}"
            )

    @classmethod
    def contiguous(cls, tensor: str, shape: tuple[int, ...], dtype: str) -> View:
        strides = [1]
        for size in shape[:0:-1]:
            strides.append(strides[-1] * size)
        return cls(tensor, shape, tuple(strides[::-1]), dtype)

    @classmethod
    def parse(cls, value: Any) -> View:
        """Return a view from its JSON form; raises `UserError`."""
        keys = {"tensor", "shape", "strides", "dtype", "offset"}
        if not isinstance(value, dict) or not {"tensor", "shape", "strides", "dtype"} <= set(value) <= keys:
            raise UserError(
                f"{str(value)[:200]} is not an operand; it has tensor, shape, strides, dtype and perhaps offset"
            )
        numbers = [*_numbers(value["shape"]), *_numbers(value["strides"]), value.get("offset", 0)]
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
            raise UserError(f"operand {value['tensor']!r}: shape, strides and offset are whole numbers")
        shape, strides = tuple(value["shape"]), tuple(value["strides"])
        return cls(str(value["tensor"]), shape, strides, str(value["dtype"]), value.get("offset", 0))

    def describe(self) -> dict[str, Any]:
        """Return the JSON form."""
        document: dict[str, Any] = {
            "tensor": self.tensor, "shape": list(self.shape), "strides": list(self.strides), "dtype": self.dtype,
        }  # fmt: skip
        return document | ({"offset": self.offset} if self.offset else {})

    def overlaps(self) -> bool:
        """Return whether two of its elements may be one: a stride lies within what smaller strides span.

        Views that are interleaved count as such, which no stage needs.
        """
        span = 1
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)):
            if size > 1:
                if stride < span:
                    return True
                span = stride * size
        return False

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def elements(self) -> int:
        """Elements from the tensor's first to this view's last, both counted."""
        return self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + 1

    def whole(self) -> Spans:
        return tuple((0, n) for n in self.shape)

    def boxes(self, spans: Spans) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Yield a part of the view as boxes in bytes: offset, length, count_0, stride_0, count_1, stride_1."""
        if any(begin >= end for begin, end in spans):
            return
        begin = self.offset + sum(low * stride for (low, _), stride in zip(spans, self.strides, strict=True))
        levels = sorted(
            (stride, high - low)
            for (low, high), stride in zip(spans, self.strides, strict=True)
            if high - low > 1 and stride
        )
        run = 1
        while levels and levels[0][0] <= run:
            stride, count = levels.pop(0)
            run += (count - 1) * stride
        item = self.item_bytes
        (s0, n0), (s1, n1) = (*levels, (0, 1), (0, 1))[:2]
        for steps in product(*(range(count) for _, count in levels[2:])):
            far = sum(step * stride for step, (stride, _) in zip(steps, levels[2:], strict=True))
            yield (begin + far) * item, run * item, n0, s0 * item, n1, s1 * item


def _numbers(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [None]
