"""A part of an ATen graph that one kernel of this package computes, and what runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx

if TYPE_CHECKING:
    from tileprof.runtime.programs.timeline import Timeline


class Runner(Protocol):
    """Computes a region on the current stream. The backend makes one runner per stream and per captured graph; a runner
    need not be thread-safe.

    A method ``twin() -> Runner`` is called where there is one, in the place of another `Region.build`: the twin has
    semaphores and memory of its own, and may share code, tables and copies of weights.
    """

    frozen: bool
    """True if it keeps copies of the inputs that the region calls `Region.folded`, made at its first call. The backend
    makes a new runner once one of these is another tensor or has another ``_version``; it does not notice that inside a
    replayed CUDA graph.
    """

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the region's outputs, in the order of `Region.outputs`, each with the shape, strides and dtype of its
        node's ``meta["val"]``.

        ``inputs`` are in the order of `Region.inputs`, with the shapes, strides and dtypes of their nodes, and begin at
        multiples of 16 bytes. Activations may have another address at each call. Launches on the current stream, may be
        captured in a CUDA graph after one call outside of it, never synchronises with the host. Raises `RuntimeError`
        or `UserError` where it knows, without waiting, that an earlier call gave up. Outputs are allocated through
        PyTorch at each call (or cloned): the next call must not overwrite them.
        """

    def check(self) -> None:
        """Synchronise; raise `RuntimeError` or `UserError` that names stage, layer, tile and semaphore if a bounded
        wait gave up.
        """


@dataclass(frozen=True, slots=True)
class Region:
    """A part of an ATen graph that one kernel computes; what a finder proposes.

    ``nodes`` form a convex set: no path leaves them and comes back. ``inputs`` are the tensors read, parameters
    included, in the runner's order, none twice. ``outputs`` are the nodes of ``nodes`` whose tensors are used outside
    of it, tensors and not tuples. ``mutated``: indices into ``inputs`` of what is updated in place, such as a KV cache;
    these inputs are placeholders of the graph, and their ``copy_`` nodes, at its end, belong to ``nodes``.
    """

    name: str
    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    mutated: tuple[int, ...]
    build: Callable[[torch.device], Runner]
    """Compiles the kernel and makes a runner; raises `UserError` with one sentence where that cannot be. Needs no
    inputs.
    """
    folded: tuple[int, ...] = ()
    """Indices into ``inputs`` of the weights that a frozen runner copies or folds at its first call; placeholders of
    the graph.
    """
    copied: int | None = None
    """Bytes of the copies of weights that a runner keeps; None: as many as the weights of ``folded`` have."""
    what: Any = None
    """The computation of the kernel, as its family describes it: predictions are made from it."""
    timed: Callable[[torch.device, Sequence[Any]], Timeline] | None = None
    """Runs the kernel, with clocks, on inputs of the region, and says what each block did. Inputs that are ``mutated``
    are updated. None where a kernel has no clocks.
    """
    unread: tuple[fx.Node, ...] = ()
    """Inputs of ``nodes`` beside ``inputs`` that the kernel does not need: a mask whose constant value it knows."""


Finder = Callable[[fx.Graph], Iterator[Region]]
"""The regions of a graph, in order, that do not overlap each other; a graph that has none of them costs next to
nothing.
"""
