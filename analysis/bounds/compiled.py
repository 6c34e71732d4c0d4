"""Loops over tiles, compiled to machine code once and kept in numba's cache beside their source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """The function, compiled on first use; its plain version stays at ``.py_func``."""
    return cast("F", njit(cache=True, nogil=True)(function))
