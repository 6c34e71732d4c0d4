"""Small shapes of decoders that several tests share."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tileprof.runtime.decode.shape import DecoderShape

TINY: Final = DecoderShape(
    "bfloat16",
    batch=2,
    layers=2,
    hidden=64,
    intermediate=96,
    heads=4,
    kv_heads=2,
    head_dim=64,
    vocabulary=64,
    cache=256,
    epsilon=1e-6,
    scale=0.125,
)
"""Shapes for plans and policies, whose kernels do not run."""

SMALL: Final = replace(TINY, batch=1, hidden=256, intermediate=512, vocabulary=1024)
"""The smallest shape with which the kernel is tested on a GPU."""
