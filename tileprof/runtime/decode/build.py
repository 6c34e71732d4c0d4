"""The decoder's source, compiled per shape; see `tileprof.runtime.persistent.model_kernel`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tileprof.runtime.decode.shape import SHARED_BYTES
from tileprof.runtime.persistent.build import SOURCES as PERSISTENT
from tileprof.runtime.persistent.model_kernel import ModelKernel

_SHARED: Final = (PERSISTENT / "ptx.cuh", PERSISTENT / "waits.cuh")

KERNEL: Final = ModelKernel("decoder", Path(__file__).parent, _SHARED, SHARED_BYTES)
