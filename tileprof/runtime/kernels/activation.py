"""Activations of float32 tiles, by the names of `tileprof.runtime.stages.epilogues`."""

# Triton's language, of which Python's types say nothing:
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803 - Triton reads these signatures; constexpr parameters are spelt as constants
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def activate(value, EPILOGUE: tl.constexpr):
    """The activation of every element; the value itself for any other name."""
    if EPILOGUE == "relu":
        value = tl.maximum(value, 0.0)
    if EPILOGUE == "gelu":
        value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
    if EPILOGUE == "gelu_tanh":  # tanh(u) = 2 sigmoid(2u) - 1, with u = sqrt(2/pi) (x + 0.044715 x^3)
        value = value * tl.sigmoid(1.5957691216057308 * (value + 0.044715 * value * value * value))
    if EPILOGUE == "silu":
        value = value * tl.sigmoid(value)
    return value


@triton.jit
def place(tile, down, across, ROWS_ALONG_X: tl.constexpr):
    """Row, column and z of a tile of a grid of ``down`` by ``across`` tiles."""
    z = tile // (down * across)
    tile = tile % (down * across)
    if ROWS_ALONG_X:
        row, column = tile % down, tile // down
    else:
        row, column = tile // across, tile % across
    return row, column, z
