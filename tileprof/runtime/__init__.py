"""The synchronising runtime: policies that run, on a CPU tile by tile or on a GPU.

``tileprof.runtime.executor`` runs the tiles of any policy in any legal order and finds races and deadlocks, without a
GPU and without PyTorch; ``tileprof.runtime.stages`` describes the kernels that a policy's stages can be; `Pipeline` is
a policy as a callable on tensors. The runtime knows policies and never traces: where a trace stands behind a policy,
its footprints are handed in as columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tileprof.runtime.pipeline import Pipeline

__all__ = ["Pipeline"]


def __getattr__(name: str) -> Any:
    """Import `Pipeline` late, since it imports PyTorch, which the executor does without."""
    if name == "Pipeline":
        from tileprof.runtime.pipeline import Pipeline  # noqa: PLC0415 - see above

        return Pipeline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
