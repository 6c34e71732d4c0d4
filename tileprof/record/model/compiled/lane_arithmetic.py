"""Arithmetic, comparison and selection of `lanes`, as Triton and Inductor's helpers compute them.

Results are affine where that can be shown, and otherwise evaluated lane by lane, with bounds. Importing this module
gives `lanes.Value` Python's operators.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.record.model.compiled.lanes import (
    MAYBE,
    Bools,
    Chunk,
    Dense,
    Lanes,
    Mask,
    Shape,
    Unknowable,
    Unknown,
    Value,
    as_integers,
    broadcast,
    lanes,
    maybe,
)

_AND = np.array([[0, 0, 0], [0, 1, MAYBE], [0, MAYBE, MAYBE]], np.int8)
_OR = np.array([[0, 1, MAYBE], [1, 1, 1], [MAYBE, 1, MAYBE]], np.int8)
_XOR = np.array([[0, 1, MAYBE], [1, 0, MAYBE], [MAYBE, MAYBE, MAYBE]], np.int8)

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
    left, right = (as_integers(one) if isinstance(one, Mask) else one for one in (left, right))
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


def _bounded(left: Lanes, right: Lanes, corners: list[I64], function: Callable[[Any, Any], Any]) -> Lanes:
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


def _binary(symbol: str, *, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return combine(symbol, other, self) if swapped else combine(symbol, self, other)

    return method


for _symbol, _name in {
    "+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "/": "truediv", "&": "and", "|": "or",
    "^": "xor", "<<": "lshift", ">>": "rshift",
}.items():  # fmt: skip
    setattr(Value, f"__{_name}__", _binary(_symbol))
    setattr(Value, f"__r{_name}__", _binary(_symbol, swapped=True))
for _symbol, _name in {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}.items():
    setattr(Value, f"__{_name}__", _binary(_symbol))
