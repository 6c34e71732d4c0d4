"""Kernels without products: functions of elements, sums of partial sums, norms and softmax."""

# Triton's language, of which Python's types say nothing:
# mypy: ignore-errors
# ruff: noqa: SIM108, PLR1714, ANN001, ANN201, N803 - Triton reads these signatures; constexpr parameters are spelt as
# constants
from __future__ import annotations

import triton
import triton.language as tl

from tileprof.runtime.kernels.activation import activate, place
from tileprof.runtime.sync.device import begin, post, wait


@triton.jit
def pointwise_kernel(
    x,
    y,
    out,
    seed,
    order,
    waits,
    posts,
    flags,
    runs,
    record,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    X_ROW: tl.constexpr,
    Y_ROW: tl.constexpr,
    OUT_ROW: tl.constexpr,
    FUNCTION: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    ROWS_ALONG_X: tl.constexpr,
    STAGE: tl.constexpr,
    TILES: tl.constexpr,
    WIDTH: tl.constexpr,
    POSTS: tl.constexpr,
    ORDERED: tl.constexpr,
    STARTED: tl.constexpr,
    TRIGGER: tl.constexpr,
    PDL: tl.constexpr,
    GRID_WAIT: tl.constexpr,
    DELAY_NS: tl.constexpr,
    TIMEOUT_NS: tl.constexpr,
):
    """``out = function(x)`` or ``function(x, y)``, one tile per block; a copy moves bits and computes nothing."""
    tile = begin(order, seed, flags, STAGE, ORDERED, STARTED, TRIGGER, DELAY_NS)
    down: tl.constexpr = (ROWS + TILE_ROWS - 1) // TILE_ROWS
    across: tl.constexpr = (COLUMNS + TILE_COLUMNS - 1) // TILE_COLUMNS
    row, column, _ = place(tile, down, across, ROWS_ALONG_X)
    r = row * TILE_ROWS + tl.arange(0, TILE_ROWS)[:, None]
    c = column * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)[None, :]
    inside = (r < ROWS) & (c < COLUMNS)
    wait(tile, waits, flags, runs, record, STAGE, WIDTH, GRID_WAIT, TIMEOUT_NS)
    value = tl.load(x + r.to(tl.int64) * X_ROW + c, mask=inside)
    if FUNCTION == "add" or FUNCTION == "mul" or FUNCTION == "silu_mul":
        other = tl.load(y + r.to(tl.int64) * Y_ROW + c, mask=inside).to(tl.float32)
        if FUNCTION == "add":
            value = value.to(tl.float32) + other
        elif FUNCTION == "mul":
            value = value.to(tl.float32) * other
        else:
            value = activate(value.to(tl.float32), "silu") * other
    elif FUNCTION != "copy":
        value = activate(value.to(tl.float32), FUNCTION)
    tl.store(out + r.to(tl.int64) * OUT_ROW + c, value.to(out.dtype.element_ty), mask=inside)
    post(tile, posts, flags, TILES, POSTS, PDL)


@triton.jit
def reduce_kernel(
    x,
    out,
    bias,
    residual,
    seed,
    order,
    waits,
    posts,
    flags,
    runs,
    record,
    SPLIT: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    X_Z: tl.constexpr,
    X_ROW: tl.constexpr,
    OUT_ROW: tl.constexpr,
    RESIDUAL_ROW: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    EPILOGUE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    ROWS_ALONG_X: tl.constexpr,
    STAGE: tl.constexpr,
    TILES: tl.constexpr,
    WIDTH: tl.constexpr,
    POSTS: tl.constexpr,
    ORDERED: tl.constexpr,
    STARTED: tl.constexpr,
    TRIGGER: tl.constexpr,
    PDL: tl.constexpr,
    GRID_WAIT: tl.constexpr,
    DELAY_NS: tl.constexpr,
    TIMEOUT_NS: tl.constexpr,
):
    """``out = activation(sum over z of x + bias) + residual``; with "silu_gate" x has 2N columns."""
    tile = begin(order, seed, flags, STAGE, ORDERED, STARTED, TRIGGER, DELAY_NS)
    row, column, _ = place(tile, (M + TILE_ROWS - 1) // TILE_ROWS, (N + TILE_COLUMNS - 1) // TILE_COLUMNS, ROWS_ALONG_X)
    m = row * TILE_ROWS + tl.arange(0, TILE_ROWS)
    n = column * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    inside = (m < M)[:, None] & (n < N)[None, :]
    at = x + m[:, None].to(tl.int64) * X_ROW + n[None, :]
    wait(tile, waits, flags, runs, record, STAGE, WIDTH, GRID_WAIT, TIMEOUT_NS)
    total = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
    factor = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
    for z in tl.static_range(SPLIT):
        total += tl.load(at + z * X_Z, mask=inside, other=0.0)
        if EPILOGUE == "silu_gate":
            factor += tl.load(at + z * X_Z + N, mask=inside, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
        if EPILOGUE == "silu_gate":
            factor += tl.load(bias + N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if EPILOGUE == "silu_gate":
        total = activate(total, "silu") * factor
    else:
        total = activate(total, EPILOGUE)
    if HAS_RESIDUAL:
        more = residual + m[:, None].to(tl.int64) * RESIDUAL_ROW + n[None, :]
        total += tl.load(more, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + m[:, None].to(tl.int64) * OUT_ROW + n[None, :], total.to(out.dtype.element_ty), mask=inside)
    post(tile, posts, flags, TILES, POSTS, PDL)


@triton.jit
def rows_kernel(
    x,
    out,
    weight,
    bias,
    seed,
    order,
    waits,
    posts,
    flags,
    runs,
    record,
    M: tl.constexpr,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    X_ROW: tl.constexpr,
    OUT_ROW: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KIND: tl.constexpr,
    NUMBER: tl.constexpr,
    ROWS: tl.constexpr,
    DROP_BELOW: tl.constexpr,
    GROWTH: tl.constexpr,
    DROP_SEED: tl.constexpr,
    STAGE: tl.constexpr,
    TILES: tl.constexpr,
    WIDTH: tl.constexpr,
    POSTS: tl.constexpr,
    ORDERED: tl.constexpr,
    STARTED: tl.constexpr,
    TRIGGER: tl.constexpr,
    PDL: tl.constexpr,
    GRID_WAIT: tl.constexpr,
    DELAY_NS: tl.constexpr,
    TIMEOUT_NS: tl.constexpr,
):
    """Norm ("layer", "rms"; ``NUMBER`` is epsilon) or "softmax" (``NUMBER`` is the scale) of whole rows, ``ROWS`` a
    tile.

    ``DROP_BELOW`` above 0: of a softmax's elements, those whose random word is below become 0 and the others grow by
    ``GROWTH``; as `tileprof.runtime.stages.dropout` has it.
    """
    tile = begin(order, seed, flags, STAGE, ORDERED, STARTED, TRIGGER, DELAY_NS)
    n = tl.arange(0, BLOCK)
    inside = n < N
    wait(tile, waits, flags, runs, record, STAGE, WIDTH, GRID_WAIT, TIMEOUT_NS)
    for number in range(ROWS):
        m = tile * ROWS + number + tl.zeros((1,), tl.int64)
        in_rows = inside & (m < M)
        value = tl.load(x + m * X_ROW + n, mask=in_rows, other=0.0).to(tl.float32)
        if KIND == "softmax":
            value = tl.where(inside, value * NUMBER, float("-inf"))
            value = tl.exp(value - tl.max(value, axis=0))
            value = value / tl.sum(value, axis=0)
            if DROP_BELOW > 0:
                value = tl.where(tl.randint(DROP_SEED, m * N + n) >= DROP_BELOW, value * GROWTH, 0.0)
        else:
            if KIND == "layer":
                value = tl.where(inside, value - tl.sum(value, axis=0) / N, 0.0)
            value = value * (1.0 / tl.sqrt(tl.sum(value * value, axis=0) / N + NUMBER))
            if HAS_WEIGHT:
                value *= tl.load(weight + n, mask=inside, other=0.0).to(tl.float32)
            if HAS_BIAS:
                value += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + m * OUT_ROW + n, value.to(out.dtype.element_ty), mask=in_rows)
    post(tile, posts, flags, TILES, POSTS, PDL)
