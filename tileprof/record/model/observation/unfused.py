"""Fused CPU operators hide what a GPU would launch: inside a session they are switched off.

The ordinary operators that run instead give the same result up to rounding. What is switched off: the fast path of
transformer encoders and multi-head attention (one operator per layer), and oneDNN's LSTM (one operator per sequence).
And six things are switched on, as they are on a GPU: optimisers that leave the choice to PyTorch work on all
parameters at once, dropout is one operator that keeps its mask, a recurrent cell and an RMS norm are fused
(`tileprof.record.model.observation.fused_cells`, `fused_norms`), recurrent layers are cuDNN's where they need no
gradient (`recurrent_layers`), and a softmax converts as it computes
(`wide_softmax`). What ``torch.compile`` fuses is in `tileprof.record.model.compiled`.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tileprof.record.model.observation import fused_cells, fused_norms, recurrent_layers, wide_softmax

if TYPE_CHECKING:
    from collections.abc import Iterator

_used: set[str] = set()
_FOREACH = (
    "Optimisers work on all parameters at once (foreach), as on a GPU; their step counters would stay on the host "
    "there."
)


def _by_cells(function: str) -> None:
    name = function.partition("_")[0].upper()
    _used.add(
        f"{name} was recorded step by step, as PyTorch computes it without cuDNN: on a GPU cuDNN's own kernels run, "
        "and launches, gaps and times differ."
    )


def notes() -> frozenset[str]:
    """Return what was taken apart so far, as sentences."""
    return frozenset(_used)


@contextmanager
def everything() -> Iterator[None]:
    """Switch fused CPU operators off, and back as they were."""
    switches = (
        _no_encoder_fast_path(), _foreach_optimisers(), _fused_dropout(), fused_cells.as_on_gpu(),
        fused_norms.as_on_gpu(), recurrent_layers.as_on_gpu(_by_cells), wide_softmax.as_on_gpu(),
    )  # fmt: skip
    with ExitStack() as stack:
        for switch in switches:
            stack.enter_context(switch)
        yield
    _used.clear()


@contextmanager
def _no_encoder_fast_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(value=False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(value=before)


@contextmanager
def _foreach_optimisers() -> Iterator[None]:
    optimiser: Any = import_module("torch.optim.optimizer")  # the package hides it behind its classes
    original = optimiser._get_foreach_kernels_supported_devices  # noqa: SLF001 - no public switch

    def with_cpu() -> list[str]:
        _used.add(_FOREACH)
        return [*original(), "cpu"]

    optimiser._get_foreach_kernels_supported_devices = with_cpu  # noqa: SLF001 - as above
    kinds = optimiser._foreach_supported_types  # noqa: SLF001 - as above
    kinds.append(FakeTensor)
    try:
        yield
    finally:
        kinds.remove(FakeTensor)
        optimiser._get_foreach_kernels_supported_devices = original  # noqa: SLF001 - as above


@contextmanager
def _fused_dropout() -> Iterator[None]:
    dropout = torch._VF.dropout  # noqa: SLF001 - what nn.functional.dropout calls

    @functools.wraps(dropout)
    def fused(source: Any, p: float, train: bool) -> Any:
        if not train or not 0 < p < 1 or source.numel() == 0:
            return dropout(source, p, train)
        return torch.native_dropout(source, p, train)[0]

    torch._VF.dropout = fused  # noqa: SLF001
    try:
        yield
    finally:
        del torch._VF.dropout  # noqa: SLF001 - the original is found by the object's __getattr__
