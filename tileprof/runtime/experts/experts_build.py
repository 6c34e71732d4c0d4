"""The source of the layer of experts and of its co-pilot, compiled per shape."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.copilot.copilot_build import compiled_source
from tileprof.runtime.encoder.encoder_build import SOURCES as ENCODER
from tileprof.runtime.experts.shape import ExpertsShape
from tileprof.runtime.persistent.kernel_source import KernelSource
from tileprof.runtime.persistent.persistent_build import SOURCES as PERSISTENT

SOURCES: Final = Path(__file__).parent / "native"
PILOT: Final = SOURCES / "pilot.cpp"
KERNEL: Final = KernelSource(
    "experts",
    "the layer of experts",
    SOURCES / "kernel.cu",
    "experts",
    config="config.h",
    included=(ENCODER / "warp.cuh", PERSISTENT / "ptx.cuh", PERSISTENT / "ring_waits.cuh"),
)


def compiled_pilot(shape: ExpertsShape, blocks: int, choices: Choices, source: str | None = None) -> Path:
    """Return the library of a layer's co-pilot. ``source``: another text of pilot.cpp."""
    return compiled_source(source or PILOT.read_text(encoding="utf-8"), shape.graph(blocks, choices))
