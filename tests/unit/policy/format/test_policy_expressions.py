"""Expressions have their meaning in Python, and everything else is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileprof.policy.format.expression import ExpressionError, parse

VARIABLES = ("x", "y")


def texts() -> st.SearchStrategy[str]:
    leaf = st.one_of(st.sampled_from(VARIABLES), st.integers(0, 9).map(str))
    number = st.integers(1, 9).map(str)

    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.tuples(inner, st.sampled_from("+-"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(number, inner).map(lambda t: f"{t[0]}*({t[1]})"),
            st.tuples(inner, st.sampled_from(["//", "%"]), number).map(lambda t: f"({t[0]}) {t[1]} {t[2]}"),
            st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
            inner.map(lambda t: f"-({t})"),
        )

    return st.recursive(leaf, extend, max_leaves=8).filter(lambda t: len(t) < 300)


@given(texts())
def test_values_are_those_of_python(text: str) -> None:
    x, y = (a.ravel() for a in np.meshgrid(np.arange(-3, 7), np.arange(5)))
    expected = [eval(text, {"x": int(a), "y": int(b)}) for a, b in zip(x, y, strict=True)]
    assert parse(text, VARIABLES)({"x": x, "y": y}).tolist() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x // 0", "divides by 0"),
        ("x % -2", "divides by -2"),
        ("x // y", "divides by y"),
        ("x * y", "multiplies two variables"),
        ("z", "uses z; known here: x, y"),
        ("__import__('os')", "which is not"),
        ("x if y else 1", "which is not"),
        ("min(x)", "which is not"),
        ("x.real", "which is not"),
        ("1.5", "which is not"),
        ("True", "which is not"),
        ("x **", "is not an expression"),
        ("", "is not an expression"),
        ("(" * 300 + "x" + ")" * 300, "characters"),
        ("-" * 64 + "x", "nested more than 64 levels"),
        ("x // (" + "-" * 380 + "x)", "nested more than 64 levels|no expression"),
        ("1if x else 2", "which is not"),
    ],
)
def test_an_invalid_expression_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        parse(text, VARIABLES)


def test_as_many_levels_as_are_allowed_are_read() -> None:
    assert parse("-" * 63 + "x", VARIABLES)({"x": np.array([3]), "y": np.array([0])}).tolist() == [-3]


def test_overflow_is_found_before_it_happens() -> None:
    columns = {"x": np.array([2**31]), "y": np.array([0])}
    with pytest.raises(ExpressionError, match="62 bits"):
        parse("4000000000*x", VARIABLES)(columns)
    with pytest.raises(ExpressionError, match="62 bits"):
        parse(f"{2**70} + y", VARIABLES)(columns)


def test_cpp_uses_floor_division() -> None:
    assert parse("max(0, y - 1) // 2 + 3*x", VARIABLES).cpp() == "(floor_div(max(0, (y - 1)), 2) + (3 * x))"
