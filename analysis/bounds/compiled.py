"""Loops over tiles, compiled to machine code once and kept in numba's cache beside their source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., object])


def in_cache(function: Callable[..., object]) -> bool:
    """Whether a compiled function, as its source is now, has been compiled here before; if not, its first call takes
    seconds.
    """
    kept_at, plain = function.stats.cache_path, function.py_func  # type: ignore[attr-defined]  # numba's own
    if kept_at is None:  # where no folder can be written
        return False
    folder = Path(kept_at)
    module, written = plain.__module__.rpartition(".")[2], Path(plain.__code__.co_filename).stat().st_mtime
    return any(kept.stat().st_mtime >= written for kept in folder.glob(f"{module}.{plain.__qualname__}-*.nbi"))


def compiled(function: F) -> F:
    """The function, compiled on first use; its plain version stays at ``.py_func``."""
    return _njit(function)


def internal(function: F) -> F:
    """As `compiled`, for functions that only compiled ones call: without the wrapper for Python, which is most of the
    compilation of a small function. LLVM inlines the small ones; numba's own inlining types every copy anew, which
    doubled the time to compile the engine and made it no faster.
    """
    return _njit(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def apart(function: F) -> F:
    """As `internal`, for larger functions: compiled once rather than into each caller, which halves the time to compile
    a long loop.
    """
    return _njit(function, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def without_allocation(function: F) -> F:
    """As `compiled`, for long loops over arrays that were made elsewhere: no array can be made inside, and so numba
    need not count references, which otherwise takes three quarters of the time where arrays are reached through tuples.
    """
    return _njit(function, _nrt=False)


def _njit(function: F, **options: Any) -> F:
    """The function as numba compiles it, without a cache where neither the package's folder nor the user's can be
    written.
    """
    try:
        return cast("F", njit(cache=True, nogil=True, **options)(function))
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return cast("F", njit(nogil=True, **options)(function))
