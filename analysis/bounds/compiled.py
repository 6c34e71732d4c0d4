"""Loops over tiles, compiled to machine code once and kept in numba's cache beside their source."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any, TypeVar, cast

from numba import njit, types
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher
from numba.core.types.containers import BaseTuple

from tileprof.analysis.bounds import by_reference

F = TypeVar("F", bound=Callable[..., object])


class CallGraphCache(FunctionCache):  # type: ignore[misc]  # numba has no types
    """numba's cache of one function, fresh only while every module that its compiled code comes from is unchanged.

    numba's own stamp is the source of the function's module alone, and so it keeps code whose called functions or
    constants have changed in another module.
    """

    _stamped = False

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        self._stamp()
        return super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        self._stamp()
        super().save_overload(sig, data)

    def is_filled(self) -> bool:
        """Return whether the function was compiled here before, for any types."""
        self._stamp()
        return bool(self._cache_file._load_index())  # noqa: SLF001 - numba has no public way

    def _index_key(self, sig: Any, codegen: Any) -> tuple[object, ...]:
        return (*super()._index_key(sig, codegen), tuple(_fields_of(sig)), by_reference.layout())

    def _stamp(self) -> None:
        # Not when the function is made: functions below it in its module are not there yet.
        if not self._stamped:
            self._cache_file._source_stamp = source_digest(self._py_func)  # noqa: SLF001 - as above
            self._stamped = True


def source_digest(function: Callable[..., object]) -> str:
    """Return a digest of the source of each module with a compiled function that ``function`` reaches, and of the
    global constants that they use, which numba compiles into the code.
    """
    parts: set[str] = set()
    functions, waiting = {function}, [function]
    while waiting:
        at = waiting.pop()
        with open(at.__code__.co_filename, "rb") as source:  # noqa: PTH123 - one call per compiled function
            parts.add(hashlib.sha256(source.read()).hexdigest())
        for name, value in _global_values(at):
            plain = value.py_func if isinstance(value, Dispatcher) else None
            if plain is None:
                parts.add(f"{name} = {pickle.dumps((value, getattr(value, '_fields', None)))!r}")
            elif plain not in functions:
                functions.add(plain)
                waiting.append(plain)
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def _global_values(function: Callable[..., object]) -> Iterator[tuple[str, object]]:
    """Yield names and values of the globals in a function's code, and of what it takes from modules of this package."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if not isinstance(value, ModuleType):
            yield name, value
        elif value.__name__.partition(".")[0] == __name__.partition(".")[0]:
            yield from ((f"{name}.{each}", vars(value)[each]) for each in names & vars(value).keys())


def _fields_of(types: Any) -> Iterator[tuple[str, ...]]:
    """Yield field names of each named tuple among types of arguments: code reaches fields by their place."""
    for each in types:
        if isinstance(each, BaseTuple) and hasattr(each, "fields"):
            yield each.fields
        if isinstance(each, BaseTuple):
            yield from _fields_of(each)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def in_cache(function: Callable[..., object]) -> bool:
    """Return whether a compiled function, as its source is now, has been compiled here before; if not, its first call
    takes seconds.
    """
    cache = function._cache  # type: ignore[attr-defined]  # noqa: SLF001 - numba has no public way
    return isinstance(cache, CallGraphCache) and cache.is_filled()


def compiled(function: F) -> F:
    """Return the function, compiled on first use; its plain version stays at ``.py_func``."""
    return _njit(function)


def internal(function: F) -> F:
    """Compile as `compiled` does, for functions that only compiled ones call: without the wrapper for Python, which is
    most of the compilation of a small function. LLVM inlines the small ones; numba's own inlining types every copy
    again, which doubled the time to compile the engine and made it no faster.
    """
    return _njit(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def apart(function: F) -> F:
    """Compile as `internal` does, for larger functions: compiled once rather than into each caller, which halves the
    time to compile a long loop.
    """
    return _njit(function, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inlined(function: F) -> F:
    """Compile as `internal` does, for long functions with one caller: written into it."""
    return _njit(function, _nrt=False, inline="always", no_cpython_wrapper=True, no_cfunc_wrapper=True)


def without_allocation(function: F) -> F:
    """Compile as `compiled` does, for long loops over arrays that were made elsewhere: no array can be made inside, and
    so numba need not count references, which otherwise takes three quarters of the time where arrays are reached
    through tuples.
    """
    return _njit(function, _nrt=False)


def _njit(function: F, **options: Any) -> F:
    """Return the function as numba compiles it, without a cache where neither the package's folder nor the user's can
    be written.
    """
    compiled = njit(nogil=True, **options)(function)
    try:
        compiled._cache = CallGraphCache(function)  # noqa: SLF001 - as above
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
    # numba types a literal argument by its value, and would compile a function again for each number that callers name.
    template_of = compiled.get_call_template
    compiled.get_call_template = lambda args, kws: template_of(tuple(map(types.unliteral, args)), kws)
    return cast("F", compiled)
