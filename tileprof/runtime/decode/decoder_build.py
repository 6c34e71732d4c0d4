"""The decoder's source, compiled per shape; see `tileprof.runtime.persistent.kernel_source`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tileprof.runtime.persistent.kernel_source import KernelSource
from tileprof.runtime.persistent.persistent_build import SOURCES as PERSISTENT

KERNEL: Final = KernelSource(
    "decoder",
    "the decoder",
    Path(__file__).parent / "native" / "kernel.cu",
    "decoder",
    config="config.h",
    included=tuple(PERSISTENT / name for name in ("absent.cuh", "model.cuh", "ptx.cuh", "ring_waits.cuh")),
)
