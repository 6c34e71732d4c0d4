"""The interface of a machine that runs recorded kernels: a GPU (`gpu.Gpu`) or this CPU (`host.Host`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import UserError

INCLUDE: Final = Path(__file__).parent / "native"
"""The folder of ``tileprof.cuh``, for -I."""

Dim = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Program:
    """Source to compile: ``file`` is the name that the compiler's messages use, ``kernel`` a function or template
    instance.
    """

    source: str
    file: str
    kernel: str
    options: tuple[str, ...] = ()
    include: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a kernel's run: grid and block in x, y, z, and bytes of dynamic shared memory."""

    grid: Dim
    block: Dim
    shared_bytes: int = 0

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


class Built(Protocol):
    """A compiled kernel. ``sizes`` are the bytes of its parameters; ``fingerprint`` is a hash of its code."""

    sizes: tuple[int, ...]
    registers: int
    shared_bytes: int
    fingerprint: str

    def attach(self, log: bytes) -> None:
        """Let the next run record into the log that these bytes of the log symbol describe."""

    def run(self, place: Place, values: list[np.generic], spans: list[tuple[int, int]]) -> float | None:
        """Run to the end: nanoseconds, None where they mean nothing. Raises UserError with what went wrong."""


class Machine(Protocol):
    """Memory and a compiler. ``measures``: clocks of blocks and durations are those of a real GPU."""

    name: str
    measures: bool

    def compile(self, program: Program, *, record: bool) -> Built:
        """Raises UserError with the compiler's own words."""

    def synchronise(self) -> None:
        """Wait for everything under way. Raises UserError when a kernel has faulted."""

    def allocate(self, size: int) -> int: ...

    def free(self, address: int) -> None: ...

    def write(self, address: int, values: NDArray[Any]) -> None: ...

    def read(self, address: int, size: int) -> NDArray[np.uint8]: ...

    def copy(self, to: int, source: int, size: int) -> None: ...


def scalar(value: Any, size: int, place: str) -> np.generic:
    """Return a kernel argument of ``size`` bytes: NumPy scalars as they are, bool, int and float in the parameter's
    size.

    Raises UserError for a value that the parameter cannot hold; ``place`` names it.
    """
    if isinstance(value, np.generic):
        if value.itemsize == size:
            return value
        raise UserError(f"{place} has {size} bytes, and {value!r} has {value.itemsize}")
    if isinstance(value, bool) and size == 1:
        return np.bool_(value)
    kind = "i" if isinstance(value, int) else "f" if isinstance(value, float) else ""
    if not kind or size not in {1, 2, 4, 8} or (kind == "f" and size == 1):
        raise UserError(
            f"{place} has {size} bytes, and {value!r} ({type(value).__name__}) is not a value for it. "
            "Give an array, an int, a float or a NumPy scalar."
        )
    try:
        number: np.generic = np.dtype(f"{'u' if kind == 'i' and value >= 1 << (8 * size - 1) else kind}{size}").type(
            value
        )
    except OverflowError:
        raise UserError(f"{place} has {size} bytes, too few for {value}") from None
    return number
