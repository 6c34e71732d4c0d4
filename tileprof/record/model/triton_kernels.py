"""Triton kernels of the recorded program, seen through Triton's interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils._python_dispatch import _disable_current_modes

from tileprof.record.triton import launches

if TYPE_CHECKING:
    import torch

    from tileprof.record.model.session import Session
    from tileprof.record.model.tile_model import Kernel


def install(session: Session) -> None:
    """Record interpreted Triton kernels as launches of ``session``, for the rest of the process."""

    def sink(kernel: Kernel, tensors: list[torch.Tensor]) -> None:
        session.note("Triton kernels ran in Triton's interpreter: registers and shared memory are unknown.")
        session.launched(f"triton::{kernel.name}", kernel, tensors)

    launches.install(sink, lambda: session.active, _disable_current_modes, fake=session.fake)
