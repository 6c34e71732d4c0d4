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

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

Clip = dict[int, tuple[Ints, Ints]]
"""The first lane of each program for which a mask holds, and one past the last, by dimension (negative)."""

MAYBE = 2
"""The value of a mask's lane that is not known."""

_ONE: Bools = np.ones(1, bool)
_NONE: Bools = np.zeros(1, bool)


class Unknowable(Exception):  # noqa: N818 (an answer, not an error)
    """A lane's value depends on what is in memory."""


class NotUniform(Exception):  # noqa: N818 (as above)
    """Programs take different ways: ``groups`` gives each program the number of its way."""

    def __init__(self, groups: Ints) -> None:
        super().__init__()
        self.groups = groups


class Chunk:
    """Programs that are evaluated lane by lane together; what was computed is kept."""

    def __init__(self, rows: Ints) -> None:
        self.rows = rows
        self.memo: dict[int, NDArray[Any]] = {}

    def column(self, values: NDArray[Any], rank: int) -> NDArray[Any]:
        """Return the programs' values, to be broadcast against lanes of ``rank`` dimensions."""
        own = values if len(values) == 1 else values[self.rows]
        return own.reshape((-1,) + (1,) * rank)


Shape = tuple[int, ...]
Dense = Callable[[Chunk], NDArray[Any]]


class _Value:
    """The base of integers, masks and unknown values: a shape, and the operators of Python."""

    __slots__ = ("shape",)
    shape: Shape

    def to(self, dtype: Any, *_: Any, **__: Any) -> Any:
        """Return the value as another type: integers keep their values (indices do not overflow)."""
        name = getattr(dtype, "name", str(dtype))
        if isinstance(self, Lanes) and "int" in name:
            return self
        if isinstance(self, Mask) and "int" in name:
            return self if name == "int1" else _as_integers(self)
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


def _binary(symbol: str, *, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return combine(symbol, other, self) if swapped else combine(symbol, self, other)

    return method


for _symbol, _name in {
    "+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "/": "truediv", "&": "and", "|": "or",
    "^": "xor", "<<": "lshift", ">>": "rshift",
}.items():  # fmt: skip
    setattr(_Value, f"__{_name}__", _binary(_symbol))
    setattr(_Value, f"__r{_name}__", _binary(_symbol, swapped=True))
for _symbol, _name in {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}.items():
    setattr(_Value, f"__{_name}__", _binary(_symbol))
_Value.__hash__ = object.__hash__  # type: ignore[method-assign]  # comparing gives masks


class Unknown(_Value):
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


class Lanes(_Value):
    """Integers. ``ok`` says for which programs ``base + sum(coefficients * lane)`` holds; ``low`` and ``high`` bound
    the lanes of each program.
    """

    __slots__ = ("base", "coefficients", "high", "low", "maker", "ok")

    def __init__(
        self,
        shape: Shape,
        base: Ints,
        coefficients: tuple[int, ...],
        ok: Bools = _ONE,
        low: Ints | None = None,
        high: Ints | None = None,
        maker: Dense | None = None,
    ) -> None:
        self.shape, self.base, self.ok, self.maker = shape, base, ok, maker
        self.coefficients = tuple(0 if n == 1 else c for n, c in zip(shape, coefficients, strict=True))
        below = sum(min(0, c * (n - 1)) for n, c in zip(shape, self.coefficients, strict=True))
        above = sum(max(0, c * (n - 1)) for n, c in zip(shape, self.coefficients, strict=True))
        self.low: Ints = base + below if low is None else np.where(ok, base + below, low)
        self.high: Ints = base + above if high is None else np.where(ok, base + above, high)

    @classmethod
    def bounded(cls, shape: Shape, low: Ints, high: Ints, maker: Dense) -> Lanes:
        """Return lanes that are not affine."""
        return cls(shape, np.zeros(1, np.int64), (0,) * len(shape), _NONE, low, high, maker)

    def dense(self, chunk: Chunk) -> NDArray[np.int64]:
        """Return the lanes, ``[programs of the chunk or 1, *shape or 1]``. Raises `Unknowable`."""
        cached = chunk.memo.get(id(self))
        if cached is None:
            cached = self._affine(chunk) if self.maker is None else self.maker(chunk)
            chunk.memo[id(self)] = cached
        return cached

    def _affine(self, chunk: Chunk) -> Ints:
        rank = len(self.shape)
        total: Ints = chunk.column(self.base, rank)
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
        return combine("-", 0, self)

    def __index__(self) -> int:
        if not self.flat:
            raise Unknowable
        number = self.constant
        if number is None:
            raise NotUniform(np.unique(self.base, return_inverse=True)[1].astype(np.int64))
        return number

    __int__ = __index__

    def __bool__(self) -> bool:
        return bool(combine("!=", self, 0))


class Mask(_Value):
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
_AND = np.array([[0, 0, 0], [0, 1, MAYBE], [0, MAYBE, MAYBE]], np.int8)
_OR = np.array([[0, 1, MAYBE], [1, 1, 1], [MAYBE, 1, MAYBE]], np.int8)
_XOR = np.array([[0, 1, MAYBE], [1, 0, MAYBE], [MAYBE, MAYBE, MAYBE]], np.int8)


def lanes(value: Any) -> Any:
    """Return a number as a value of every program and lane; values as they are, and what is no integer as `Unknown`."""
    if isinstance(value, _Value):
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


_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def combine(symbol: str, left: Any, right: Any) -> Any:
    """Return ``left symbol right``, for two values or numbers, as Triton computes it."""
    left, right = lanes(left), lanes(right)
    shape = tuple(np.broadcast_shapes(left.shape, right.shape))
    left, right = broadcast(left, shape), broadcast(right, shape)
    if symbol in "&|^" and (isinstance(left, Mask) or isinstance(right, Mask)):
        return _logic(symbol, _as_mask(left, shape), _as_mask(right, shape))
    if symbol in _ORDERS and isinstance(left, Mask) and isinstance(right, Mask):
        return _logic("^", left, right) if symbol == "!=" else maybe(shape)
    left, right = (_as_integers(one) if isinstance(one, Mask) else one for one in (left, right))
    if not (isinstance(left, Lanes) and isinstance(right, Lanes)):
        return maybe(shape) if symbol in _ORDERS else Unknown(shape)
    if symbol in _ORDERS:
        return _compare(symbol, left, right)
    function = _ARITHMETIC.get(symbol)
    return Unknown(shape) if function is None else function(left, right)


def _as_mask(value: Any, shape: Shape) -> Mask:
    if isinstance(value, Mask):
        return value
    return _compare("!=", value, lanes(0)) if isinstance(value, Lanes) else maybe(shape)


def _as_integers(mask: Mask) -> Lanes:
    """Return the truths as 0 and 1."""
    certain = mask.always | mask.never
    low, high = mask.always.astype(np.int64), 1 - mask.never.astype(np.int64)

    def maker(chunk: Chunk) -> NDArray[Any]:
        truths = mask.dense(chunk)
        if bool((truths == MAYBE).any()):
            raise Unknowable
        return truths.astype(np.int64)

    return Lanes(mask.shape, low, (0,) * len(mask.shape), certain, low, high, maker)


def _bounded(left: Lanes, right: Lanes, corners: list[Ints], function: Callable[[Any, Any], Any]) -> Lanes:
    low, high = corners[0], corners[0]
    for corner in corners[1:]:
        low, high = np.minimum(low, corner), np.maximum(high, corner)
    return Lanes.bounded(left.shape, low, high, lambda c: function(left.dense(c), right.dense(c)))


def _sum(left: Lanes, right: Lanes, sign: int) -> Lanes:
    low = left.low + (right.low if sign > 0 else -right.high)
    high = left.high + (right.high if sign > 0 else -right.low)
    coefficients = tuple(a + sign * b for a, b in zip(left.coefficients, right.coefficients, strict=True))
    ok = left.ok & right.ok
    maker: Dense | None = None
    if not ok.all():
        maker = lambda c: left.dense(c) + sign * right.dense(c)  # noqa: E731
    return Lanes(left.shape, left.base + sign * right.base, coefficients, ok, low, high, maker)


def _product(left: Lanes, right: Lanes) -> Lanes:
    for one, other in ((left, right), (right, left)):
        factor = one.constant
        if factor is not None:
            coefficients = tuple(factor * c for c in other.coefficients)
            ends = other.low * factor, other.high * factor
            maker = None if other.maker is None else _scaling(other, factor)
            return Lanes(
                left.shape, other.base * factor, coefficients, other.ok, np.minimum(*ends), np.maximum(*ends), maker
            )
    if left.flat and right.flat:
        return Lanes(left.shape, left.base * right.base, (0,) * len(left.shape))
    corners = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
    return _bounded(left, right, corners, np.multiply)


def _scaling(value: Lanes, factor: int) -> Dense:
    return lambda chunk: value.dense(chunk) * factor


def _truncated(left: Any, right: Any) -> Any:
    """Return the quotient as C rounds it."""
    divisor = np.where(right == 0, 1, right)
    return np.sign(left) * np.sign(divisor) * (np.abs(left) // np.abs(divisor))


def _remainder(left: Any, right: Any) -> Any:
    return left - _truncated(left, right) * np.where(right == 0, 1, right)


def _parts(left: Lanes, divisor: int) -> tuple[tuple[int, ...], tuple[int, ...], Bools]:
    """Return the coefficients that the divisor divides, the others, and for which programs no lane wraps."""
    whole = tuple(c if c % divisor == 0 else 0 for c in left.coefficients)
    rest = tuple(c - w for c, w in zip(left.coefficients, whole, strict=True))
    at = left.base % divisor
    below = sum(min(0, c * (n - 1)) for n, c in zip(left.shape, rest, strict=True))
    above = sum(max(0, c * (n - 1)) for n, c in zip(left.shape, rest, strict=True))
    return whole, rest, left.ok & (at + below >= 0) & (at + above < divisor)


def _quotient(left: Lanes, right: Lanes, *, floor: bool = False) -> Any:
    divide: Callable[[Any, Any], Any] = (lambda a, b: a // np.where(b == 0, 1, b)) if floor else _truncated
    if left.flat and right.flat:
        return Lanes(left.shape, divide(left.base, right.base), (0,) * len(left.shape))
    divisor = right.constant
    if divisor is None or divisor <= 0:
        magnitude = np.maximum(np.abs(left.low), np.abs(left.high))
        return _bounded(left, right, [-magnitude, magnitude], divide)
    whole, _, ok = _parts(left, divisor)
    if not floor:
        ok &= left.low >= 0
    return Lanes(
        left.shape, left.base // divisor, tuple(c // divisor for c in whole), ok,
        divide(left.low, divisor), divide(left.high, divisor),
        None if ok.all() else lambda c: divide(left.dense(c), divisor),
    )  # fmt: skip


def _modulo(left: Lanes, right: Lanes, *, floor: bool = False) -> Any:
    rest_of: Callable[[Any, Any], Any] = (lambda a, b: a % np.where(b == 0, 1, b)) if floor else _remainder
    if left.flat and right.flat:
        return Lanes(left.shape, rest_of(left.base, right.base), (0,) * len(left.shape))
    divisor = right.constant
    if divisor is None or divisor <= 0:
        magnitude = np.maximum(np.abs(right.low), np.abs(right.high))
        return _bounded(left, right, [-magnitude, magnitude], rest_of)
    _, rest, ok = _parts(left, divisor)
    if not floor:
        ok &= left.low >= 0
    same = (left.low // divisor == left.high // divisor) & (left.low >= 0)
    lowest = 0 if floor else -(divisor - 1) * (left.low < 0)
    return Lanes(
        left.shape, left.base % divisor, rest, ok,
        np.where(same, left.low % divisor, lowest), np.where(same, left.high % divisor, divisor - 1),
        None if ok.all() else lambda c: rest_of(left.dense(c), divisor),
    )  # fmt: skip


def floor_quotient(left: Any, right: Any) -> Any:
    """Return the quotient rounded down, as Inductor's helper does."""
    return _floored(left, right, _quotient)


def floor_remainder(left: Any, right: Any) -> Any:
    """Return the remainder with the sign of the divisor, as Inductor's helper does."""
    return _floored(left, right, _modulo)


def _floored(left: Any, right: Any, function: Callable[..., Any]) -> Any:
    left, right = lanes(left), lanes(right)
    shape = tuple(np.broadcast_shapes(left.shape, right.shape))
    if not (isinstance(left, Lanes) and isinstance(right, Lanes)):
        return Unknown(shape)
    return function(broadcast(left, shape), broadcast(right, shape), floor=True)


def least(left: Any, right: Any) -> Any:
    """Return the smaller one of two values, lane by lane."""
    return _extreme(left, right, np.minimum)


def greatest(left: Any, right: Any) -> Any:
    """Return the larger one of two values, lane by lane."""
    return _extreme(left, right, np.maximum)


def _extreme(left: Any, right: Any, function: Callable[[Any, Any], Any]) -> Any:
    left, right = lanes(left), lanes(right)
    shape = tuple(np.broadcast_shapes(left.shape, right.shape))
    if not (isinstance(left, Lanes) and isinstance(right, Lanes)):
        return Unknown(shape)
    left, right = broadcast(left, shape), broadcast(right, shape)
    if left.flat and right.flat:
        return Lanes(shape, function(left.base, right.base), (0,) * len(shape))
    low, high = function(left.low, right.low), function(left.high, right.high)
    return Lanes.bounded(shape, low, high, lambda c: function(left.dense(c), right.dense(c)))


def where(mask: Any, left: Any, right: Any) -> Any:
    """Return ``left`` in the lanes of the mask and ``right`` in the others."""
    mask, left, right = lanes(mask), lanes(left), lanes(right)
    shape = tuple(np.broadcast_shapes(mask.shape, left.shape, right.shape))
    mask, left, right = _as_mask(broadcast(mask, shape), shape), broadcast(left, shape), broadcast(right, shape)
    if bool(mask.always.all()):
        return left
    if bool(mask.never.all()):
        return right
    if isinstance(left, Mask) and isinstance(right, Mask):
        return _logic("|", _logic("&", mask, left), _logic("&", ~mask, right))
    if not (isinstance(left, Lanes) and isinstance(right, Lanes)):
        return Unknown(shape)
    ok = (mask.always & left.ok) | (mask.never & right.ok)
    base, coefficients = np.where(mask.always, left.base, right.base), left.coefficients
    if left.coefficients != right.coefficients:
        ok, base = mask.always & left.ok, left.base
    if left is right:
        return left

    def maker(chunk: Chunk) -> NDArray[Any]:
        truths, one, other = mask.dense(chunk), left.dense(chunk), right.dense(chunk)
        if bool(((truths == MAYBE) & (one != other)).any()):
            raise Unknowable
        return np.where(truths != 0, one, other)

    low, high = np.minimum(left.low, right.low), np.maximum(left.high, right.high)
    return Lanes(shape, base, coefficients, ok, low, high, maker)


def _compare(symbol: str, left: Lanes, right: Lanes) -> Mask:
    shape = tuple(np.broadcast_shapes(left.shape, right.shape))
    left, right = broadcast(left, shape), broadcast(right, shape)
    function = _ORDERS[symbol]

    def maker(chunk: Chunk) -> NDArray[Any]:
        try:
            truths: NDArray[np.int8] = function(left.dense(chunk), right.dense(chunk)).astype(np.int8)
        except Unknowable:
            truths = np.full((1,) * (len(shape) + 1), MAYBE, np.int8)
        return truths

    if symbol in ("==", "!="):
        apart = (left.low > right.high) | (left.high < right.low)
        alike = (left.low == left.high) & (right.low == right.high) & (left.low == right.low)
        return Mask(shape, apart, alike, maker) if symbol == "==" else Mask(shape, alike, apart, maker)
    # Each order is ``difference < 0``.
    one, other = (left, right) if symbol in ("<", "<=") else (right, left)
    difference = _sum(one, other, -1)
    if symbol in ("<=", ">="):
        difference = _sum(difference, broadcast(1, shape), -1)
    never, always = difference.low >= 0, difference.high < 0
    steps = [(axis - len(shape), c) for axis, c in enumerate(difference.coefficients) if c]
    if len(steps) != 1:
        return Mask(shape, never, always, maker)
    ((axis, step),) = steps
    size = shape[axis]
    if step > 0:
        ends = np.zeros(1, np.int64), np.clip(-(difference.base // step), 0, size)
    else:
        ends = np.clip(difference.base // -step + 1, 0, size), np.array([size], np.int64)
    first, last = np.where(always, 0, ends[0]), np.where(always, size, ends[1])
    return Mask(shape, never, always, maker, {axis: (first, last)}, difference.ok | never | always)


def _logic(symbol: str, left: Mask, right: Mask) -> Mask:
    shape = tuple(np.broadcast_shapes(left.shape, right.shape))
    left, right = broadcast(left, shape), broadcast(right, shape)
    table = {"&": _AND, "|": _OR, "^": _XOR}[symbol]

    def maker(chunk: Chunk) -> NDArray[Any]:
        return table[left.dense(chunk), right.dense(chunk)]

    if symbol == "&":
        clip = dict(left.clip)
        for axis, (first, last) in right.clip.items():
            mine = clip.get(axis)
            clip[axis] = (first, last) if mine is None else (np.maximum(mine[0], first), np.minimum(mine[1], last))
        # Where one is always true, its clip holds all lanes; where one is never true, the program is left out.
        never = left.never | right.never
        return Mask(shape, never, left.always & right.always, maker, clip, (left.ok & right.ok) | never)
    if symbol == "^":
        never = (left.never & right.never) | (left.always & right.always)
        return Mask(shape, never, (left.never & right.always) | (left.always & right.never), maker)
    always = left.always | right.always
    ok = always | (left.never & right.ok) | (right.never & left.ok)
    clip = {}
    for axis in {*left.clip, *right.clip}:
        size = np.array([shape[axis]], np.int64)
        full = np.zeros(1, np.int64), size
        mine, theirs = left.clip.get(axis, full), right.clip.get(axis, full)
        first, last = (np.where(left.never, theirs[n], mine[n]) for n in (0, 1))
        clip[axis] = np.where(always, 0, first), np.where(always, size, last)
    return Mask(shape, left.never & right.never, always, maker, clip, ok)


_ARITHMETIC: dict[str, Callable[[Lanes, Lanes], Any]] = {
    "+": lambda a, b: _sum(a, b, 1), "-": lambda a, b: _sum(a, b, -1), "*": _product, "//": _quotient, "%": _modulo,
}  # fmt: skip


def elements(shape: Shape) -> int:
    """Return the number of lanes."""
    return math.prod(shape)
