"""Convolutions, channels last, as products over taps and channels."""

# Triton's language, of which Python's types say nothing:
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803 - Triton reads these signatures; constexpr parameters are spelt as constants
from __future__ import annotations

import triton
import triton.language as tl

from tileprof.runtime.kernels.activation import activate, place
from tileprof.runtime.sync.device import begin, post, wait


@triton.jit
def conv_kernel(
    x,
    weight,
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
    IMAGES: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    CHANNELS: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    X_IMAGE: tl.constexpr,
    X_ROW: tl.constexpr,
    X_COLUMN: tl.constexpr,
    W_CHANNEL: tl.constexpr,
    W_ROW: tl.constexpr,
    W_COLUMN: tl.constexpr,
    OUT_PIXEL: tl.constexpr,
    RESIDUAL_PIXEL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    MULTIPLY: tl.constexpr,
    EPILOGUE: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    DEPTH: tl.constexpr,
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
    """``out = activation(conv(x, weight) + bias) + residual``; a tile is ``TILE_M`` pixels by ``TILE_N`` channels.

    Channels have unit stride everywhere; pixels of out and residual lie at one stride. The loop runs over taps, and
    within a tap over blocks of channels.
    """
    tile = begin(order, seed, flags, STAGE, ORDERED, STARTED, TRIGGER, DELAY_NS)
    pixels: tl.constexpr = IMAGES * P * Q
    row, column, _ = place(tile, (pixels + TILE_M - 1) // TILE_M, (CHANNELS + TILE_N - 1) // TILE_N, ROWS_ALONG_X)
    m = row * TILE_M + tl.arange(0, TILE_M)
    n = column * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    image = m // (P * Q)
    top = (m // Q % P) * STRIDE - PADDING
    side = (m % Q) * STRIDE - PADDING
    x_at = x + image[:, None].to(tl.int64) * X_IMAGE + k[None, :]
    w_at = weight + n[None, :].to(tl.int64) * W_CHANNEL + k[:, None]
    blocks: tl.constexpr = (C + TILE_K - 1) // TILE_K
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    wait(tile, waits, flags, runs, record, STAGE, WIDTH, GRID_WAIT, TIMEOUT_NS)
    for step in tl.range(0, R * S * blocks, num_stages=DEPTH):
        tap = step // blocks
        c = step % blocks * TILE_K
        h, w = top + tap // S, side + tap % S
        in_image = (m < pixels) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        left = tl.load(
            x_at + (h * X_ROW + w * X_COLUMN)[:, None] + c, mask=in_image[:, None] & (c + k < C)[None, :], other=0.0
        )
        at = w_at + (tap // S) * W_ROW + (tap % S) * W_COLUMN + c
        right = tl.load(at, mask=(n < CHANNELS)[None, :] & (c + k < C)[:, None], other=0.0)
        total = tl.dot(left, right, total)
    inside = (m < pixels)[:, None] & (n < CHANNELS)[None, :]
    if HAS_BIAS:
        total += tl.load(bias + n, mask=n < CHANNELS, other=0.0).to(tl.float32)[None, :]
    total = activate(total, EPILOGUE)
    if HAS_RESIDUAL:
        at = residual + m[:, None].to(tl.int64) * RESIDUAL_PIXEL + n[None, :]
        more = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        total = total * more if MULTIPLY else total + more
    tl.store(out + m[:, None].to(tl.int64) * OUT_PIXEL + n[None, :], total.to(out.dtype.element_ty), mask=inside)
    post(tile, posts, flags, TILES, POSTS, PDL)
