"""Affine expressions with div and mod over tile coordinates: how a policy says which semaphore is whose.

Grammar: integers, the variables of the place where the expression stands, ``+ - *`` (one side of ``*`` constant),
``//`` and ``%`` by a positive constant, ``min(a, b)``, ``max(a, b)`` and parentheses. Division rounds towards minus
infinity, as in Python. ``max(0, y - 1)`` and ``(3*x + 2) // 4`` are expressions.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import UserError

_MOST_CHARACTERS: Final = 400
_MOST_LEVELS: Final = 64
"""Most levels of a tree. This is far below what any interpreter's stack takes, so that what is accepted does not depend
on the caller's.
"""
_LARGEST: Final = 2**62
"""Values beyond this could leave int64 in the next operation."""

_SYMBOLS: Final = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}


class ExpressionError(UserError):
    """A text that is not an expression of this grammar, or one that leaves 62 bits."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression; equal if the texts are. Make one with `parse`."""

    text: str
    tree: ast.expr = field(compare=False, repr=False)

    def __call__(self, variables: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return the value on every row of ``variables`` (int64 columns of one length), as int64 of that length.

        Raises `ExpressionError` if a value on the way could exceed 62 bits.
        """
        spans = {name: (int(v.min()), int(v.max())) if len(v) else (0, 0) for name, v in variables.items()}
        _bounds(self.tree, spans, self.text)
        rows = len(next(iter(variables.values())))
        return np.broadcast_to(np.asarray(_value(self.tree, variables), np.int64), (rows,))

    def cpp(self) -> str:
        """Return the same as a C++ expression on ``int`` variables, with ``floor_div`` and ``floor_mod`` for
        division.
        """
        return _cpp(self.tree)

    def names(self) -> frozenset[str]:
        """Return the variables that it uses."""
        calls = {id(n.func) for n in ast.walk(self.tree) if isinstance(n, ast.Call)}
        return frozenset(n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and id(n) not in calls)


def parse(text: str, variables: tuple[str, ...]) -> Expression:
    """Return the expression in ``text``, which may use ``variables``; raises `ExpressionError` with the place that is
    wrong.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ExpressionError(f"an expression of {len(text)} characters; at most {_MOST_CHARACTERS} are read")
    try:
        with warnings.catch_warnings(action="ignore"):  # of `1if x else 2`: it is refused below
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"{text!r} is not an expression; write for example (x + 1) // 2") from None
    if _levels(tree) > _MOST_LEVELS:
        raise ExpressionError(f"{text!r} is nested more than {_MOST_LEVELS} levels deep")
    _check(tree, variables, text)
    return Expression(text.strip(), tree)


def _levels(tree: ast.expr) -> int:
    """Return the depth of ``tree``, counted level by level and so without recursion."""
    levels, level = 0, [tree]
    while level:
        levels += 1
        level = [child for node in level for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return levels


def _check(node: ast.expr, variables: tuple[str, ...], text: str) -> None:
    match node:
        case ast.Constant(value=int()) if not isinstance(node.value, bool):
            return
        case ast.Name(id=name):
            if name not in variables:
                raise ExpressionError(f"{text!r} uses {name}; known here: {', '.join(variables)}")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            _check(operand, variables, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SYMBOLS:
            _check(left, variables, text)
            _check(right, variables, text)
            _check_operator(op, left, right, text)
        case ast.Call(func=ast.Name(id="min" | "max"), args=[first, second], keywords=[]):
            _check(first, variables, text)
            _check(second, variables, text)
        case _:
            raise ExpressionError(f"{text!r} holds {ast.unparse(node)!r}, which is not + - * // % min max")


def _check_operator(op: ast.operator, left: ast.expr, right: ast.expr, text: str) -> None:
    if isinstance(op, ast.Mult) and _constant(left) is None and _constant(right) is None:
        raise ExpressionError(f"{text!r} multiplies two variables; one side of * must be a number")
    if isinstance(op, ast.FloorDiv | ast.Mod):
        divisor = _constant(right)
        if divisor is None or divisor <= 0:
            raise ExpressionError(f"{text!r} divides by {ast.unparse(right)}; only positive numbers divide")


def _constant(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant):
        return int(node.value) if isinstance(node.value, int) else None
    if isinstance(node, ast.UnaryOp):
        inner = _constant(node.operand)
        return None if inner is None else -inner
    return None


def _bounds(node: ast.expr, spans: Mapping[str, tuple[int, int]], text: str) -> tuple[int, int]:
    """Compute bounds by interval arithmetic in unbounded integers, which finds overflow before numpy would hide it."""
    match node:
        case ast.Constant(value=value):
            corners = [int(str(value))]
        case ast.Name(id=name):
            corners = list(spans[name])
        case ast.UnaryOp(operand=operand):
            corners = [-b for b in _bounds(operand, spans, text)]
        case ast.BinOp(left=left, op=op, right=right):
            first, second = _bounds(left, spans, text), _bounds(right, spans, text)
            corners = [_apply(op, a, b) for a in first for b in second]
            if isinstance(op, ast.Mod):
                corners = [0, second[0] - 1]
        case ast.Call(args=[left, right]):
            corners = [*_bounds(left, spans, text), *_bounds(right, spans, text)]
        case _:
            raise AssertionError(ast.dump(node))
    if max(abs(c) for c in corners) >= _LARGEST:
        raise ExpressionError(f"{text!r} exceeds 62 bits on this grid")
    return min(corners), max(corners)


def _apply(op: ast.operator, a: int, b: int) -> int:
    match op:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case _:
            return a // b


def _value(node: ast.expr, variables: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    match node:
        case ast.Constant(value=value):
            return np.asarray(int(str(value)), np.int64)
        case ast.Name(id=name):
            return variables[name]
        case ast.UnaryOp(operand=operand):
            return np.negative(_value(operand, variables))
        case ast.Call(func=ast.Name(id=name), args=[left, right]):
            choose = np.minimum if name == "min" else np.maximum
            return choose(_value(left, variables), _value(right, variables))
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _value(left, variables), _value(right, variables)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return a // b
                case _:
                    return a % b
    raise AssertionError(ast.dump(node))


def _cpp(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=value):
            return str(value)
        case ast.Name(id=name):
            return name
        case ast.UnaryOp(operand=operand):
            return f"(-{_cpp(operand)})"
        case ast.Call(func=ast.Name(id=name), args=[left, right]):
            return f"{name}({_cpp(left)}, {_cpp(right)})"
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return f"floor_div({_cpp(left)}, {_cpp(right)})"
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            return f"floor_mod({_cpp(left)}, {_cpp(right)})"
        case ast.BinOp(left=left, op=op, right=right):
            return f"({_cpp(left)} {_SYMBOLS[type(op)]} {_cpp(right)})"
    raise AssertionError(ast.dump(node))
