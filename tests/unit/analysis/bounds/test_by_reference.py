"""Compiled functions read and write the fields of a named tuple at its address as they do where it is handed over."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit

from tileprof.analysis.bounds.by_reference import by_reference


class Inner(NamedTuple):
    bits: Any
    table: Any
    half: float


class Outer(NamedTuple):
    flag: bool
    small: Any
    inner: Inner
    count: int
    empty: Any


@njit
def _read_and_write(x):
    total = 0.0
    for i in range(x.inner.table.shape[0]):
        for k in range(x.inner.table.shape[1]):
            total += x.inner.table[i, k] * (10 * i + k)
    x.inner.table[1, 2] = total
    x.small[-1] = x.count
    x.inner.bits[0] = x.flag
    return total * x.inner.half + x.small[0] + len(x.empty) + x.inner.table[1].sum() + x.inner.bits.sum()


def _values(flag, count):
    inner = Inner(np.array([False, True, True]), np.arange(6.0).reshape(2, 3), -0.25)
    return Outer(flag, np.array([3, 4], np.int32), inner, count, np.empty(0, np.int64))


@pytest.mark.parametrize(("flag", "count"), [(True, -7), (False, np.int64(1 << 30))])
def test_fields_are_read_and_written_as_those_of_a_tuple_that_is_handed_over(flag, count):
    plain, compiled = _values(flag, count), _values(flag, count)
    assert _read_and_write(by_reference(compiled)) == _read_and_write.py_func(plain)
    for mine, other in ((compiled.small, plain.small), *zip(compiled.inner, plain.inner, strict=True)):
        assert np.array_equal(mine, other)


def test_fields_of_other_names_or_types_are_another_type():
    base = by_reference(_values(True, 1))._numba_type_
    assert by_reference(_values(False, 2))._numba_type_ == base
    assert by_reference(_values(True, 1)._replace(small=np.zeros(2, np.int64)))._numba_type_ != base
    assert by_reference(_values(True, 1)._replace(count=1.0))._numba_type_ != base
    renamed = NamedTuple("Outer", [(name, Any) for name in ("flag", "small", "inner", "number", "empty")])
    assert by_reference(renamed(*_values(True, 1)))._numba_type_ != base


def test_an_array_with_gaps_is_refused():
    with pytest.raises(AssertionError, match="strides"):
        by_reference(_values(True, 1)._replace(small=np.arange(8)[::2]))
