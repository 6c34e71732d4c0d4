"""The prefill's source, compiled per shape; see `tileprof.runtime.persistent.model_kernel`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tileprof.runtime.encoder.build import SOURCES as ENCODER
from tileprof.runtime.persistent.build import SOURCES as PERSISTENT
from tileprof.runtime.persistent.model_kernel import ModelKernel
from tileprof.runtime.prefill.shape import SHARED_BYTES

_SHARED: Final = (ENCODER / "warp.cuh", PERSISTENT / "ptx.cuh", PERSISTENT / "waits.cuh")

KERNEL: Final = ModelKernel("prefill", Path(__file__).parent, _SHARED, SHARED_BYTES)
