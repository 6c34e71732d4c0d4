"""The transformer kernel's source, compiled per plan; see `tileprof.runtime.persistent.kernel_source`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tileprof.runtime.persistent.kernel_source import KernelSource
from tileprof.runtime.persistent.persistent_build import SOURCES as PERSISTENT

SOURCES: Final = Path(__file__).parent / "native"
KERNEL: Final = KernelSource(
    "transformer",
    "the transformer kernel",
    SOURCES / "kernel.cu",
    "transformer",
    included=tuple(PERSISTENT / name for name in ("absent.cuh", "ptx.cuh", "ring_waits.cuh")),
)
