"""The prefill's source, compiled per shape; see `tileprof.runtime.persistent.kernel_source`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tileprof.runtime.encoder.encoder_build import SOURCES as ENCODER
from tileprof.runtime.persistent.kernel_source import KernelSource
from tileprof.runtime.persistent.persistent_build import SOURCES as PERSISTENT

_SHARED: Final = tuple(PERSISTENT / name for name in ("absent.cuh", "model.cuh", "ptx.cuh", "ring_waits.cuh"))

KERNEL: Final = KernelSource(
    "prefill",
    "the prefill",
    Path(__file__).parent / "native" / "kernel.cu",
    "prefill",
    config="config.h",
    included=(ENCODER / "warp.cuh", *_SHARED),
)
