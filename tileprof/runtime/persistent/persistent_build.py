"""The persistent kernel's source, compiled per plan; see `tileprof.runtime.persistent.kernel_source`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tileprof.runtime.persistent.kernel_source import KernelSource
from tileprof.runtime.persistent.plan import Plan
from tileprof.runtime.persistent.source import Options, header

SOURCES: Final = Path(__file__).parent / "native"
WHAT: Final = "the persistent kernel"
KERNEL: Final = KernelSource("persistent", WHAT, SOURCES / "kernel.cu", "persistent")
RESIDENT: Final = KernelSource("persistent", WHAT, SOURCES / "resident.cu", "resident")
"""A kernel that does nothing, of which the driver says how many clusters a device holds at a time."""


def compiled(plan: Plan, options: Options) -> Path:
    """Return the folder that holds the cubin of a plan; see `KernelSource.compiled`."""
    return KERNEL.compiled(header(plan, options))


def nvcc() -> Path:
    """Return the CUDA compiler; see `tileprof.building.nvcc`."""
    return KERNEL.compiler()
