"""Attention with an online softmax: keys and values pass by block after block, scores never leave the SM.

The running maximum and sum of a row are those of Milakov and Gimelshein (2018, arXiv:1805.02867), the tiling that of
Dao et al. (2022, arXiv:2205.14135).
"""

# Triton's language, of which Python's types say nothing:
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803 - Triton reads these signatures; constexpr parameters are spelt as constants
from __future__ import annotations

import triton
import triton.language as tl

from tileprof.runtime.sync.device import begin, post, wait


@triton.jit
def attention_kernel(
    q,
    k,
    v,
    out,
    seed,
    order,
    waits,
    posts,
    flags,
    runs,
    record,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    Q_Z: tl.constexpr,
    Q_ROW: tl.constexpr,
    K_Z: tl.constexpr,
    K_ROW: tl.constexpr,
    V_Z: tl.constexpr,
    V_ROW: tl.constexpr,
    OUT_Z: tl.constexpr,
    OUT_ROW: tl.constexpr,
    CAUSAL: tl.constexpr,
    SCALE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDE: tl.constexpr,
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
    """``out = softmax(SCALE * q @ k^T) @ v`` for ROWS rows of a head; heads share keys in groups of GROUP; WIDE is D,
    or the power of two above.
    """
    tile = begin(order, seed, flags, STAGE, ORDERED, STARTED, TRIGGER, DELAY_NS)
    down: tl.constexpr = (M + ROWS - 1) // ROWS
    block, head = tile % down, (tile // down).to(tl.int64)
    m = block * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, KEYS)
    d = tl.arange(0, WIDE)
    in_rows = (m < M)[:, None] & (d < D)[None, :]
    wait(tile, waits, flags, runs, record, STAGE, WIDTH, GRID_WAIT, TIMEOUT_NS)
    query = tl.load(q + head * Q_Z + m[:, None].to(tl.int64) * Q_ROW + d[None, :], mask=in_rows, other=0.0)
    keys = k + (head // GROUP) * K_Z + n[None, :].to(tl.int64) * K_ROW + d[:, None]
    values = v + (head // GROUP) * V_Z + n[:, None].to(tl.int64) * V_ROW + d[None, :]
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, WIDE), tl.float32)
    key_end = N
    if CAUSAL:
        key_end = tl.minimum(N, (block + 1) * ROWS)
    for first_key in tl.range(0, key_end, KEYS):
        in_keys = first_key + n < key_end
        key = tl.load(keys + first_key * K_ROW, mask=in_keys[None, :] & (d < D)[:, None], other=0.0)
        scores = tl.dot(query, key) * (SCALE * 1.4426950408889634)  # in powers of 2
        visible = in_keys[None, :]
        if CAUSAL:
            visible = visible & (first_key + n[None, :] <= m[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(largest, tl.max(scores, axis=1))
        fade = tl.exp2(largest - higher)
        share = tl.exp2(scores - higher[:, None])
        value = tl.load(values + first_key * V_ROW, mask=in_keys[:, None] & (d < D)[None, :], other=0.0)
        total = total * fade[:, None] + tl.dot(share.to(value.dtype), value)
        weight = weight * fade + tl.sum(share, axis=1)
        largest = higher
    at = out + head * OUT_Z + m[:, None].to(tl.int64) * OUT_ROW + d[None, :]
    tl.store(at, (total / weight[:, None]).to(out.dtype.element_ty), mask=in_rows)
    post(tile, posts, flags, TILES, POSTS, PDL)
