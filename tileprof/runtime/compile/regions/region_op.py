"""The operator that stands for a region in a graph, opaque to Inductor, and what it runs.

``tileprof::region_N(str key, Tensor[] read) -> (Tensor, ...)`` for N results, and ``region_N_updating`` with
``Tensor(a!)[] updated`` behind them: PyTorch functionalizes no operator that updates tensors and returns a list, and
PyTorch 2.11 none with one result that updates nothing. The key holds a hash of what the region computes, so that
Inductor may cache the graph around it. Which runner a key means is told by the program that runs on this thread: two
models may hold equal regions, and one program has a runner per stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch

NAMESPACE: Final = "tileprof"

Like = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and dtype."""

Call = Callable[[str, list[Any], list[Any]], Sequence[Any]]
"""Runs the region of a key on what it reads and updates."""

_DECLARED: Final[dict[str, tuple[Like, ...]]] = {}
_RUNNING: Final = threading.local()


def declare(key: str, outputs: tuple[Like, ...]) -> None:
    """Say what the region of a key returns; equal keys mean equal regions."""
    _DECLARED[key] = outputs


def region_call(results: int, *, updating: bool) -> Any:
    """Return the operator for a number of results, defined at first use."""
    with _DEFINING:
        return _operator_of(results, updating)


_DEFINING: Final = threading.Lock()


@cache
def _library() -> Any:
    return torch.library.Library(NAMESPACE, "FRAGMENT")


@cache
def _operator_of(results: int, updating: bool) -> Any:
    name, library = f"region_{results}{'_updating' if updating else ''}", _library()
    updated, returned = ", Tensor(a!)[] updated" if updating else "", ", ".join(["Tensor"] * results)
    library.define(f"{name}(str key, Tensor[] read{updated}) -> ({returned})", tags=(torch.Tag.needs_exact_strides,))
    library.impl(name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", _fake, lib=library)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


@contextmanager
def running(call: Call) -> Iterator[None]:
    """Let ``call`` run the regions that this thread reaches."""
    before = getattr(_RUNNING, "call", None)
    _RUNNING.call = call
    try:
        yield
    finally:
        _RUNNING.call = before


def _run(key: str, read: list[Any], updated: Sequence[Any] = ()) -> Any:
    call = getattr(_RUNNING, "call", None)
    if call is None:
        raise RuntimeError("a region of tileprof was called outside of the program that it belongs to")
    results = call(key, read, list(updated))
    return results[0] if len(results) == 1 else tuple(results)


def _fake(key: str, read: Sequence[Any], updated: Sequence[Any] = ()) -> Any:
    device = (*read, *updated)[0].device
    results = [
        torch.empty_strided(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in _DECLARED[key]
    ]
    return results[0] if len(results) == 1 else tuple(results)
