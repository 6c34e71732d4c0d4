"""Watching Triton's interpreter: every load, store and atomic of every program, with its addresses.

Triton kernels run without a GPU under ``TRITON_INTERPRET=1``: each program is executed with numpy, one after the other.
All memory traffic passes through a handful of methods of one builder object; they are wrapped while a kernel runs and
call the originals, so results are unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

from tileprof.record.triton.programs import ProgramLog
from tileprof.trace.footprint import ATOMIC, READ, WRITE

INTERPRETER = "triton.runtime.interpreter"


@dataclass(slots=True)
class Watch:
    """Receives the accesses of the running kernel; ``programs`` are in the order in which they ran."""

    programs: list[ProgramLog]
    grid: tuple[int, int, int]
    at: list[tuple[int, int, int]]


@contextmanager
def watching(builder: Any) -> Iterator[Watch]:
    """Wrap the memory methods of an interpreter's builder for the length of one kernel."""
    watch = Watch([], (1, 1, 1), [])
    originals = {name: getattr(builder, name) for name in (*_MEMORY, *_DOTS, "set_grid_idx", "set_grid_dim")}

    def begin(x: int, y: int, z: int) -> None:
        watch.programs.append(ProgramLog())
        watch.at.append((x, y, z))
        originals["set_grid_idx"](x, y, z)

    def dimensions(*grid: int) -> None:
        watch.grid = (int(grid[0]), int(grid[1]), int(grid[2]))
        originals["set_grid_dim"](*grid)

    builder.set_grid_idx, builder.set_grid_dim = begin, dimensions
    for name, (mode, pointer, mask) in _MEMORY.items():
        setattr(builder, name, _log_access(watch, originals[name], mode, pointer, mask))
    for name in _DOTS:
        setattr(builder, name, _with_counter(watch, originals[name]))
    try:
        yield watch
    finally:
        for name in originals:
            delattr(builder, name)


# Method of the builder: how it touches memory, and which positional arguments are its pointers and its mask. Plain
# loads and stores, atomic loads and stores and descriptors end in the masked ones.
_MEMORY: dict[str, tuple[int, int, int | None]] = {
    "create_masked_load": (READ, 0, 1),
    "create_masked_store": (WRITE, 0, 2),
    "create_atomic_rmw": (ATOMIC, 1, 3),
    "create_atomic_cas": (ATOMIC, 0, None),
}


_DOTS = ("create_dot", "create_dot_scaled")


def _with_counter(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    def method(left: Any, *arguments: Any, **options: Any) -> Any:
        result = original(left, *arguments, **options)
        watch.programs[-1].flops += 2 * result.data.size * left.data.shape[-1]
        return result

    return method


def _log_access(
    watch: Watch, original: Callable[..., Any], mode: int, pointer: int, mask: int | None
) -> Callable[..., Any]:
    def method(*arguments: Any, **options: Any) -> Any:
        pointers = arguments[pointer]
        active = None if mask is None else arguments[mask]
        itemsize = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        lanes = None if active is None else np.asarray(active.data, bool)
        watch.programs[-1].add(mode, np.asarray(pointers.data, np.uint64), lanes, itemsize)
        return original(*arguments, **options)

    return method


class _AfterImport(MetaPathFinder, Loader):
    """Calls ``then(module)`` when a module is imported, and does nothing before: programs without Triton pay
    nothing.
    """

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then
        self._loader: Loader | None = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002 (protocol)
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None
        self._loader.exec_module(module)
        self._then(module)


def after_import(then: Callable[[ModuleType], None]) -> None:
    """Call ``then`` with Triton's interpreter module once it is imported, or now if it is."""
    module = sys.modules.get(INTERPRETER)
    if module is not None:
        then(module)
    else:
        sys.meta_path.insert(0, _AfterImport(INTERPRETER, then))
