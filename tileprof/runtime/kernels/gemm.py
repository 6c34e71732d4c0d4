"""Products of matrices with what follows them, alone, in batches, or split along k."""

# Triton's language, of which Python's types say nothing:
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803 - Triton reads these signatures; constexpr parameters are spelt as constants
from __future__ import annotations

import triton
import triton.language as tl

from tileprof.runtime.kernels.activation import activate, place
from tileprof.runtime.sync.device import begin, post, wait


@triton.jit
def gemm_kernel(
    a,
    b,
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
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PART: tl.constexpr,
    A_Z: tl.constexpr,
    A_ROW: tl.constexpr,
    B_Z: tl.constexpr,
    B_INNER: tl.constexpr,
    B_COLUMN: tl.constexpr,
    OUT_Z: tl.constexpr,
    OUT_ROW: tl.constexpr,
    RESIDUAL_Z: tl.constexpr,
    RESIDUAL_ROW: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    MULTIPLY: tl.constexpr,
    EPILOGUE: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    DEPTH: tl.constexpr,
    ROWS_ALONG_X: tl.constexpr,
    AHEAD: tl.constexpr,
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
    """``out = activation(a @ b + bias) + residual``; a and out have unit stride along their rows.

    Tile z is batch z, with strides ``_Z``, or, with ``PART`` below K, sums over the z-th ``PART`` of k. ``AHEAD``: the
    first block of b, which depends on nothing, is loaded before the waits; a comes after them, and so does the
    pipelined loop. With "silu_gate" the columns of b from N on are the factors of those before, and both products are
    made together.
    """
    tile = begin(order, seed, flags, STAGE, ORDERED, STARTED, TRIGGER, DELAY_NS)
    row, column, z = place(tile, (M + TILE_M - 1) // TILE_M, (N + TILE_N - 1) // TILE_N, ROWS_ALONG_X)
    m = row * TILE_M + tl.arange(0, TILE_M)
    n = column * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    far = tl.full((), 0, tl.int64) + z
    from_k = 0 if PART == K else z * PART
    size: tl.constexpr = PART
    a_at = a + far * A_Z + (m % M)[:, None].to(tl.int64) * A_ROW + (from_k + k)[None, :]
    b_at = b + far * B_Z + (from_k + k)[:, None].to(tl.int64) * B_INNER + (n % N)[None, :].to(tl.int64) * B_COLUMN
    even: tl.constexpr = K % TILE_K == 0 and PART % TILE_K == 0 and K % PART == 0
    left_k = K - from_k
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    factor = tl.zeros((TILE_M, TILE_N), tl.float32)
    first: tl.constexpr = TILE_K if AHEAD else 0
    if AHEAD:
        early = tl.load(b_at, mask=(k < size)[:, None] & (k < left_k)[:, None], other=0.0)
        if EPILOGUE == "silu_gate":
            other = tl.load(b_at + N * B_COLUMN, mask=(k < size)[:, None] & (k < left_k)[:, None], other=0.0)
    wait(tile, waits, flags, runs, record, STAGE, WIDTH, GRID_WAIT, TIMEOUT_NS)
    if AHEAD:
        left = tl.load(a_at, mask=(k < size)[None, :] & (k < left_k)[None, :], other=0.0)
        total = tl.dot(left, early, total)
        if EPILOGUE == "silu_gate":
            factor = tl.dot(left, other, factor)
        a_at += TILE_K
        b_at += TILE_K * B_INNER
    for first_k in tl.range(first, size, TILE_K, num_stages=DEPTH):
        if even:
            left = tl.load(a_at)
            right = tl.load(b_at)
        else:
            inside_k = (first_k + k < size) & (first_k + k < left_k)
            left = tl.load(a_at, mask=inside_k[None, :], other=0.0)
            right = tl.load(b_at, mask=inside_k[:, None], other=0.0)
        total = tl.dot(left, right, total)
        if EPILOGUE == "silu_gate":
            if even:
                up = tl.load(b_at + N * B_COLUMN)
            else:
                up = tl.load(b_at + N * B_COLUMN, mask=inside_k[:, None], other=0.0)
            factor = tl.dot(left, up, factor)
        a_at += TILE_K
        b_at += TILE_K * B_INNER
    inside = (m < M)[:, None] & (n < N)[None, :]
    if HAS_BIAS:
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if EPILOGUE == "silu_gate":
        if HAS_BIAS:
            factor += tl.load(bias + N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
        total = activate(total, "silu") * factor
    else:
        total = activate(total, EPILOGUE)
    if HAS_RESIDUAL:
        at = residual + far * RESIDUAL_Z + m[:, None].to(tl.int64) * RESIDUAL_ROW + n[None, :]
        more = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        total = total * more if MULTIPLY else total + more
    at = out + far * OUT_Z + m[:, None].to(tl.int64) * OUT_ROW + n[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=inside)
    post(tile, posts, flags, TILES, POSTS, PDL)
