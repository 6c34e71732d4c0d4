"""Named tuples of arrays that compiled functions are handed as one address.

numba hands over a named tuple by value: seven words per array, several hundred per call of the simulator's functions,
which numba types and LLVM moves. A tuple that `by_reference` has wrapped is handed over as one address, and a function
reads the fields that it uses. At the address are 64-bit words ::

    array      address of the data, then one word per dimension
    number     one word
    tuple      its fields
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.core.typing.templates import AttributeTemplate
from numba.extending import NativeValue, infer_getattr, lower_getattr_generic, register_model, unbox

T = TypeVar("T", bound=tuple[Any, ...])
"""A named tuple."""

_WORD = ir.IntType(64)


class _Field(NamedTuple):
    type: Any
    """numba's type."""
    at: int
    """Words before it."""


class Reference(types.Type):  # type: ignore[misc]  # numba has no types
    """The type of a wrapped tuple. Types of the same name are the same: it holds the names and types of all fields."""

    def __init__(self, name: str, fields: dict[str, _Field], words: int) -> None:
        self.fields, self.words = fields, words
        super().__init__(name=name)


class _ByReference:
    """A named tuple in the form that compiled functions take."""

    __slots__ = ("_numba_type_", "address", "values", "words")

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values  # keeps the arrays at their addresses
        self._numba_type_ = _type_of(_form_of(values))
        words: list[int] = []
        _append_words(words, values)
        self.words = np.array(words, np.int64)
        self.address = self.words.ctypes.data


def by_reference(values: T) -> T:
    """Return a named tuple of contiguous arrays, numbers and such tuples, in the form that compiled functions take."""
    return cast("T", _ByReference(values))


@cache
def layout() -> str:
    """Return a digest of this module: compiled code that was kept depends on where it finds fields."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _form_of(value: Any) -> Any:
    """Return what the type of a field follows from."""
    if isinstance(value, tuple):
        return type(value), tuple(map(_form_of, value))
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous, f"an array of shape {value.shape} and strides {value.strides}"
        return value.dtype, value.ndim
    return bool if isinstance(value, (bool, np.bool_)) else int if isinstance(value, (int, np.integer)) else float


@cache
def _type_of(form: tuple[Any, tuple[Any, ...]]) -> Reference:
    named_tuple, forms = form
    fields, at = {}, 0
    for name, field in zip(named_tuple._fields, forms, strict=True):
        field_type, words = _field_type(field)
        fields[name] = _Field(field_type, at)
        at += words
    content = ", ".join(f"{name}: {field.type}" for name, field in fields.items())
    return Reference(f"reference to {named_tuple.__name__}({content})", fields, at)


def _field_type(form: Any) -> tuple[Any, int]:
    """Return numba's type of a field, and how many words it takes."""
    if isinstance(form, type):
        return {bool: types.boolean, int: types.int64, float: types.float64}[form], 1
    if isinstance(form[0], np.dtype):
        dtype, dimensions = form
        return types.Array(getattr(types, dtype.name.replace("bool", "boolean")), dimensions, "C"), 1 + dimensions
    reference = _type_of(form)
    return reference, reference.words


def _append_words(words: list[int], values: tuple[Any, ...]) -> None:
    for value in values:
        if isinstance(value, np.ndarray):
            words.append(value.__array_interface__["data"][0])
            words.extend(value.shape)
        elif isinstance(value, tuple):
            _append_words(words, value)
        else:
            words.append(int(np.float64(value).view(np.int64)) if isinstance(value, float) else int(value))


@register_model(Reference)
class _Address(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, reference: Reference) -> None:
        super().__init__(manager, reference, _WORD.as_pointer())


@unbox(Reference)  # type: ignore[untyped-decorator]
def _unbox(_: Reference, value: Any, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(value, "address")
    word = c.pyapi.long_as_longlong(address)
    c.pyapi.decref(address)
    return NativeValue(c.builder.inttoptr(word, _WORD.as_pointer()))


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = Reference

    def generic_resolve(self, reference: Reference, name: str) -> Any:
        return reference.fields[name].type if name in reference.fields else None


@lower_getattr_generic(Reference)  # type: ignore[untyped-decorator]
def _field(context: Any, builder: Any, reference: Reference, address: Any, name: str) -> Any:
    from numba.np.arrayobj import make_array, populate_array  # noqa: PLC0415 - numba loads it when it compiles

    field_type, at = reference.fields[name]
    if isinstance(field_type, Reference):
        return builder.gep(address, [_WORD(at)])
    word = _word(builder, address, at)
    if field_type is types.boolean:
        return builder.trunc(word, ir.IntType(1))
    if not isinstance(field_type, types.Array):
        return builder.bitcast(word, context.get_value_type(field_type))
    item = context.get_data_type(field_type.dtype)
    item_bytes = context.get_abi_sizeof(item)
    data = builder.inttoptr(word, item.as_pointer())
    shape = [_word(builder, address, at + 1 + d) for d in range(field_type.ndim)]
    strides = [_WORD(item_bytes)]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    array = make_array(field_type)(context, builder)
    populate_array(array, data, shape, strides, item_bytes, None)
    return array._getvalue()  # noqa: SLF001 - numba has no public way


def _word(builder: Any, address: Any, at: int) -> Any:
    """Read a word, which no compiled function changes: LLVM may read it once for a whole loop."""
    word = builder.load(builder.gep(address, [_WORD(at)]))
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word
