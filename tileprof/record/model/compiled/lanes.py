"""Integers of a Triton kernel, for all programs of a grid at once: exact where they are affine in the lane.

A value has one number per program and lane. Index arithmetic nearly always gives ``base[program] + sum(coefficient *
lane)``; division and remainder keep that form where no lane of a program wraps, which is known exactly. Programs for
which the form does not hold are evaluated lane by lane (`Lanes.dense`), and every value has bounds per program. So
what is said of an address is exact or a superset, never a guess.

Arrays of programs have length ``programs`` or 1 (the same for all). Dimensions are counted from the last one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64

Bools = NDArray[np.bool_]

Clip = dict[int, tuple[I64, I64]]
"""The first lane of each program for which a mask holds, and one past the last, by dimension (negative)."""

MAYBE = 2
"""The value of a mask's lane that is not known."""

_ONE: Bools = np.ones(1, bool)
_NONE: Bools = np.zeros(1, bool)


class Unknowable(Exception):  # noqa: N818 (an answer, not an error)
    """A lane's value depends on what is in memory."""


class NotUniform(Exception):  # noqa: N818 (as above)
    """Programs take different ways: ``groups`` gives each program the number of its way."""

    def __init__(self, groups: I64) -> None:
        super().__init__()
        self.groups = groups


class Chunk:
    """Programs that are evaluated lane by lane together; what was computed is kept."""

    def __init__(self, rows: I64) -> None:
        self.rows = rows
        self.memo: dict[int, NDArray[Any]] = {}

    def column(self, values: NDArray[Any], rank: int) -> NDArray[Any]:
        """Return the programs' values, to be broadcast against lanes of ``rank`` dimensions."""
        own = values if len(values) == 1 else values[self.rows]
        return own.reshape((-1,) + (1,) * rank)


Shape = tuple[int, ...]
Dense = Callable[[Chunk], NDArray[Any]]


class Value:
    """The base of integers, masks and unknown values: a shape, and the operators of Python (`lane_arithmetic`)."""

    __slots__ = ("shape",)
    shape: Shape

    def to(self, dtype: Any, *_: Any, **__: Any) -> Any:
        """Return the value as another type: integers keep their values (indices do not overflow)."""
        name = getattr(dtype, "name", str(dtype))
        if isinstance(self, Lanes) and "int" in name:
            return self
        if isinstance(self, Mask) and "int" in name:
            return self if name == "int1" else as_integers(self)
        return Unknown(self.shape)

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        shape: list[int] = []
        source: list[int | None] = []
        old = 0
        for word in index:
            if word is None or old >= len(self.shape):
                shape.append(1)
                source.append(None)
            else:
                shape.append(self.shape[old])
                source.append(old)
                old += 1
        rest = range(old, len(self.shape))
        return self._reshaped(tuple(shape) + tuple(self.shape[n] for n in rest), [*source, *rest])

    def broadcast_to(self, *shape: Any) -> Any:
        """Return the value in a larger shape."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return broadcast(self, tuple(int(n) for n in sizes))

    def __getattr__(self, name: str) -> Any:
        if name == "T":
            return Unknown(self.shape[::-1])
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: Unknown(self.shape)

    def _reshaped(self, shape: Shape, source: list[int | None]) -> Any:
        """Return the value with dimensions of size one put in: ``source`` tells where each dimension was."""
        raise NotImplementedError


Value.__hash__ = object.__hash__  # type: ignore[method-assign]  # comparing gives masks


class Unknown(Value):
    """A value that is not known: what was loaded, and all that is computed with it."""

    __slots__ = ()

    def __init__(self, shape: Shape = ()) -> None:
        self.shape = shape

    def _reshaped(self, shape: Shape, source: list[int | None]) -> Unknown:  # noqa: ARG002 (as all values)
        return Unknown(shape)

    def _decide(self, *_: Any) -> Any:
        raise Unknowable

    __bool__ = __int__ = __index__ = __iter__ = _decide

    def __neg__(self) -> Unknown:
        return self

    __invert__ = __abs__ = __neg__


class Lanes(Value):
    """Integers. ``ok`` says for which programs ``base + sum(coefficients * lane)`` holds; ``low`` and ``high`` bound
    the lanes of each program.
    """

    __slots__ = ("base", "coefficients", "high", "low", "maker", "ok")

    def __init__(
        self,
        shape: Shape,
        base: I64,
        coefficients: tuple[int, ...],
        ok: Bools = _ONE,
        low: I64 | None = None,
        high: I64 | None = None,
        maker: Dense | None = None,
    ) -> None:
        self.shape, self.base, self.ok, self.maker = shape, base, ok, maker
        self.coefficients = tuple(0 if n == 1 else c for n, c in zip(shape, coefficients, strict=True))
        below = sum(min(0, c * (n - 1)) for n, c in zip(shape, self.coefficients, strict=True))
        above = sum(max(0, c * (n - 1)) for n, c in zip(shape, self.coefficients, strict=True))
        self.low: I64 = base + below if low is None else np.where(ok, base + below, low)
        self.high: I64 = base + above if high is None else np.where(ok, base + above, high)

    @classmethod
    def bounded(cls, shape: Shape, low: I64, high: I64, maker: Dense) -> Lanes:
        """Return lanes that are not affine."""
        return cls(shape, np.zeros(1, np.int64), (0,) * len(shape), _NONE, low, high, maker)

    def dense(self, chunk: Chunk) -> NDArray[np.int64]:
        """Return the lanes, ``[programs of the chunk or 1, *shape or 1]``. Raises `Unknowable`."""
        cached = chunk.memo.get(id(self))
        if cached is None:
            cached = self._affine(chunk) if self.maker is None else self.maker(chunk)
            chunk.memo[id(self)] = cached
        return cached

    def _affine(self, chunk: Chunk) -> I64:
        rank = len(self.shape)
        total: I64 = chunk.column(self.base, rank)
        for axis, (size, step) in enumerate(zip(self.shape, self.coefficients, strict=True)):
            if step:
                total = total + (step * np.arange(size)).reshape((-1,) + (1,) * (rank - axis - 1))
        return total

    @property
    def flat(self) -> bool:
        """True if all lanes of a program are equal, for every program."""
        return not any(self.coefficients) and bool(self.ok.all())

    @property
    def constant(self) -> int | None:
        """The number that all lanes of all programs are; None where they differ."""
        return int(self.base[0]) if self.flat and bool((self.base == self.base[0]).all()) else None

    def _reshaped(self, shape: Shape, source: list[int | None]) -> Lanes:
        coefficients = tuple(0 if s is None else self.coefficients[s] for s in source)
        maker = None if self.maker is None else _reshaping(self, shape)
        return Lanes(shape, self.base, coefficients, self.ok, self.low, self.high, maker)

    def __neg__(self) -> Any:
        return operator.sub(0, self)

    def __index__(self) -> int:
        if not self.flat:
            raise Unknowable
        number = self.constant
        if number is None:
            raise NotUniform(np.unique(self.base, return_inverse=True)[1].astype(np.int64))
        return number

    __int__ = __index__

    def __bool__(self) -> bool:
        return bool(operator.ne(self, 0))


class Mask(Value):
    """Truths. For programs in ``ok`` the lanes inside ``clip`` are true and the others false; ``never`` and ``always``
    say for which programs none and all are true.
    """

    __slots__ = ("always", "clip", "maker", "never", "ok")

    def __init__(
        self, shape: Shape, never: Bools, always: Bools, maker: Dense, clip: Clip | None = None, ok: Bools | None = None
    ) -> None:
        self.shape, self.never, self.always, self.maker = shape, never, always, maker
        self.clip: Clip = clip or {}
        self.ok: Bools = (never | always) if ok is None else ok

    def dense(self, chunk: Chunk) -> NDArray[np.int8]:
        """Return the lanes: 0, 1 or `MAYBE`."""
        cached = chunk.memo.get(id(self))
        if cached is None:
            cached = chunk.memo[id(self)] = self.maker(chunk)
        return cached

    def _reshaped(self, shape: Shape, source: list[int | None]) -> Mask:
        rank, old = len(shape), len(self.shape)
        clip = {n - rank: self.clip[s - old] for n, s in enumerate(source) if s is not None and s - old in self.clip}
        return Mask(shape, self.never, self.always, _reshaping(self, shape), clip, self.ok)

    def __bool__(self) -> bool:
        if bool(self.always.all()):
            return True
        if bool(self.never.all()):
            return False
        if not bool((self.always | self.never).all()):
            raise Unknowable
        raise NotUniform(np.broadcast_to(self.always, np.broadcast_shapes(self.always.shape, self.never.shape)) + 0)

    def __invert__(self) -> Mask:
        clip: Clip = {}
        ok = self.never | self.always
        if len(self.clip) == 1:
            ((axis, (first, last)),) = self.clip.items()
            size = np.array([self.shape[axis]])
            if not first.any():
                clip, ok = {axis: (last, size)}, self.ok
            elif bool((last == size).all()):
                clip, ok = {axis: (np.zeros(1, np.int64), first)}, self.ok
        return Mask(self.shape, self.always, self.never, lambda c: _NOT[self.dense(c)], clip, ok)


_NOT = np.array([1, 0, MAYBE], np.int8)


def lanes(value: Any) -> Any:
    """Return a number as a value of every program and lane, a value as it is, and anything else as `Unknown`."""
    if isinstance(value, Value):
        return value
    if isinstance(value, bool | np.bool_):
        return truth(bool(value))
    if isinstance(value, int | np.integer):
        return Lanes((), np.array([int(value)], np.int64), ())
    return Unknown()


def truth(value: bool, shape: Shape = ()) -> Mask:
    """Return a mask that is the same in every lane."""
    filled = np.full((1,) * (len(shape) + 1), value, np.int8)
    return Mask(shape, np.array([not value]), np.array([value]), lambda _: filled)


def maybe(shape: Shape) -> Mask:
    """Return a mask of which nothing is known."""
    filled = np.full((1,) * (len(shape) + 1), MAYBE, np.int8)
    return Mask(shape, _NONE, _NONE, lambda _: filled)


def broadcast(value: Any, shape: Shape) -> Any:
    """Return the value with a larger shape."""
    value = lanes(value)
    shape = tuple(np.broadcast_shapes(value.shape, shape))
    missing = len(shape) - len(value.shape)
    if isinstance(value, Unknown):
        return Unknown(shape)
    if isinstance(value, Mask):
        clip = {axis: ends for axis, ends in value.clip.items() if value.shape[axis] == shape[axis]}
        single_lanes = [axis for axis in value.clip if axis not in clip]  # one lane that is there or not, for many
        ok = value.ok & (value.never | value.always) if single_lanes else value.ok
        return Mask(shape, value.never, value.always, _reshaping(value, shape), clip, ok)
    coefficients = (0,) * missing + value.coefficients
    maker = None if value.maker is None else _reshaping(value, shape)
    return Lanes(shape, value.base, coefficients, value.ok, value.low, value.high, maker)


def _reshaping(value: Lanes | Mask, shape: Shape) -> Dense:
    """Return the dense lanes with dimensions of size one where the new shape has more of them."""
    sizes = [n for n in value.shape if n != 1]

    def maker(chunk: Chunk) -> NDArray[Any]:
        dense = value.dense(chunk)
        if len(shape) == len(value.shape) and all(a in (1, b) for a, b in zip(value.shape, shape, strict=True)):
            return dense
        full = np.broadcast_to(dense, (len(dense), *value.shape))
        if len(shape) > len(value.shape) and shape[len(shape) - len(value.shape) :] == value.shape:
            return full.reshape((len(dense),) + (1,) * (len(shape) - len(value.shape)) + value.shape)
        if [n for n in shape if n != 1] != sizes:
            return np.broadcast_to(
                full.reshape((len(dense),) + (1,) * (len(shape) - len(value.shape)) + value.shape),
                (len(dense), *shape),
            )
        return full.reshape((len(dense), *shape))

    return maker


def as_integers(mask: Mask) -> Lanes:
    """Return the truths as 0 and 1."""
    certain = mask.always | mask.never
    low, high = mask.always.astype(np.int64), 1 - mask.never.astype(np.int64)

    def maker(chunk: Chunk) -> NDArray[Any]:
        truths = mask.dense(chunk)
        if bool((truths == MAYBE).any()):
            raise Unknowable
        return truths.astype(np.int64)

    return Lanes(mask.shape, low, (0,) * len(mask.shape), certain, low, high, maker)


def elements(shape: Shape) -> int:
    """Return the number of lanes."""
    return math.prod(shape)
