"""Triton kernels in the interpreter: every program touches the bytes of its index arithmetic."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402 (after the skip)

from tileprof.record.triton import launches  # noqa: E402 (after the skip)
from tileprof.trace.footprint import ATOMIC, READ, WRITE  # noqa: E402 (after the skip)


@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # noqa: N803 (Triton's custom)
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * k + inner[None, :], (rows[:, None] < m) & (inner[None, :] < k), 0.0)
        right = tl.load(b + inner[:, None] * n + columns[None, :], (inner[:, None] < k) & (columns[None, :] < n), 0.0)
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + columns[None, :], total, (rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def gather_add(table, index, out, n, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chosen = tl.load(index + at, at < n, 0)
    tl.atomic_add(out + at % 4, tl.load(table + chosen, at < n, 0.0), at < n)


@contextlib.contextmanager
def kernel_of(*, fake: bool = False):
    """Collect launches inside the block, as (kernel, tensors)."""
    from triton.runtime import interpreter

    actual, original = [], interpreter.GridExecutor.__call__
    launches.install(lambda k, t: actual.append((k, t)), lambda: True, contextlib.nullcontext, fake=fake)
    try:
        yield actual
    finally:
        interpreter.GridExecutor.__call__ = original


@pytest.fixture
def recordings():
    with kernel_of() as matches:
        yield matches


@pytest.fixture
def seen_fake():
    with kernel_of(fake=True) as matches:
        yield matches


def touched_bytes(kernel, tile: int, slot: int, mode: int) -> set[int]:
    boxes = kernel.footprint.boxes
    rows = np.flatnonzero((boxes.tile == tile) & (boxes.operand == slot) & (boxes.mode == mode))
    return {
        int(boxes.offset[r] + i * boxes.stride_0[r] + j * boxes.stride_1[r] + byte)
        for r in rows for i in range(boxes.count_0[r]) for j in range(boxes.count_1[r])
        for byte in range(boxes.length[r])
    }  # fmt: skip


def test_a_matmul_reads_its_strips_and_writes_its_tile(recordings) -> None:
    m, n, k, block = 40, 24, 20, 16
    a, b = torch.randn(m, k), torch.randn(k, n)
    c = torch.empty(m, n)
    matmul[(2, 3)](a, b, c, m, n, k, BM=block, BN=block, BK=8)
    torch.testing.assert_close(c, a @ b)
    ((kernel, _),) = recordings
    assert kernel.grid == (2, 3, 1)
    assert kernel.footprint.block.tolist()[:3] == [[0, 0, 0], [1, 0, 0], [0, 1, 0]]
    for tile, (x, y, _) in enumerate(kernel.footprint.block.tolist()):
        rows = range(y * block, min(m, (y + 1) * block))
        columns = range(x * block, min(n, (x + 1) * block))
        word = range(4)
        assert touched_bytes(kernel, tile, 0, READ) == {
            (r * k + i) * 4 + w for r in rows for i in range(k) for w in word
        }
        assert touched_bytes(kernel, tile, 1, READ) == {
            (i * n + q) * 4 + w for i in range(k) for q in columns for w in word
        }
        assert touched_bytes(kernel, tile, 2, WRITE) == {
            (r * n + q) * 4 + w for r in rows for q in columns for w in word
        }
    boxes = kernel.footprint.boxes
    stores = boxes.mode == WRITE
    assert boxes.first[stores].min() > boxes.first[~stores].max() - 1e-6


def test_data_dependent_loads_and_atomics_are_exact(recordings) -> None:
    index = torch.tensor([5, 1, 5, 9, 0, 7])
    out = torch.zeros(4)
    gather_add[(2,)](torch.arange(10.0), index, out, 6, BLOCK=4)
    ((kernel, _),) = recordings
    for tile, lanes in enumerate(([0, 1, 2, 3], [4, 5])):
        expected = {4 * int(index[i]) + w for i in lanes for w in range(4)}
        assert touched_bytes(kernel, tile, 0, READ) == expected
        assert touched_bytes(kernel, tile, 2, ATOMIC) == {4 * (i % 4) + w for i in lanes for w in range(4)}


def test_a_view_is_bound_at_its_own_offset(recordings) -> None:
    memory = torch.zeros(64)
    a, b, c = memory[32:48].view(4, 4), torch.ones(4, 4), torch.empty(4, 4)
    matmul[(1, 1)](a, b, c, 4, 4, 4, BM=16, BN=16, BK=16)
    ((kernel, tensors),) = recordings
    assert min(touched_bytes(kernel, 0, 0, READ)) == 0
    assert tensors[kernel.operands[0].ref].storage_offset() == 32


@triton.jit
def swizzled(x, o, n, BLOCK: tl.constexpr):  # noqa: N803
    place = (tl.program_id(0) * 7) % tl.num_programs(0)
    at = place * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + at, tl.load(x + at, at < n), at < n)


def same_bytes(exact, guess) -> bool:
    tiles = range(exact.footprint.tiles)
    slots = range(len(exact.operands))
    assert guess.footprint.block.tolist() == exact.footprint.block.tolist()
    return all(
        touched_bytes(exact, t, s, m) == touched_bytes(guess, t, s, m)
        for t in tiles
        for s in slots
        for m in (READ, WRITE, ATOMIC)
    )


@pytest.mark.parametrize("blocks", [(3, 4), (9, 11)])
def test_addresses_alone_give_the_same_boxes_run_in_full_or_extrapolated(blocks) -> None:
    n, m, k = 16 * blocks[0] - 5, 16 * blocks[1] - 3, 24
    a, b, c = torch.randn(m, k), torch.randn(k, n), torch.full((m, n), 7.0)
    with kernel_of(fake=True) as guesses:
        matmul[blocks](a, b, c, m, n, k, BM=16, BN=16, BK=8)
    assert (c == 7).all()
    with kernel_of() as actual:
        matmul[blocks](a, b, c, m, n, k, BM=16, BN=16, BK=8)
    ((guess, _),), ((exact, _),) = guesses, actual
    assert same_bytes(exact, guess)
    assert guess.flops == exact.flops


def test_what_is_not_affine_runs_in_full(seen_fake) -> None:
    x, o = torch.randn(40 * 8 - 3), torch.empty(40 * 8 - 3)
    swizzled[(40,)](x, o, x.numel(), BLOCK=8)
    ((kernel, _),) = seen_fake
    for tile in (0, 1, 23, 39):
        place = tile * 7 % 40
        assert touched_bytes(kernel, tile, 1, WRITE) == set(range(32 * place, min(32 * place + 32, 4 * x.numel())))
    assert kernel.coverage == "exact"


def test_addresses_that_depend_on_values_are_conservative(seen_fake) -> None:
    index, out = torch.tensor([5, 1, 5, 9, 0, 7]), torch.zeros(4)
    gather_add[(2,)](torch.arange(10.0), index, out, 6, BLOCK=4)
    ((kernel, _),) = seen_fake
    assert kernel.coverage == "conservative"
    assert touched_bytes(kernel, 1, 0, READ) == set(range(40))


@triton.jit
def ragged(begins, x, out):
    program = tl.program_id(0)
    total = 0.0
    for at in range(tl.load(begins + program), tl.load(begins + program + 1)):
        total += tl.load(x + at)
    tl.store(out + program, total)


@triton.jit
def masked(flags, x, out):
    at = tl.arange(0, 4)
    tl.store(out + at, tl.load(x + at), tl.load(flags + at) == 77)


@triton.jit
def until_small(count, x, out):
    at, total = tl.load(count), 0.0
    while at > 1000:
        total += tl.load(x + at % 4)
        at = at // 2
    tl.store(out, total)


@triton.jit
def by_the_largest(keys, x, out):
    largest = tl.max(tl.load(keys + tl.arange(0, 4)), 0)
    tl.store(out, tl.load(x + tl.where(largest > 500, 3, 0)))


@triton.jit
def by_the_sum(keys, x, out):
    at = tl.arange(0, 4)
    sums = tl.cumsum(tl.load(keys + at), 0)
    tl.store(out + at, tl.load(x + (sums > 900).to(tl.int32)))


@pytest.mark.parametrize("kernel", [ragged, masked, until_small, by_the_largest, by_the_sum])
def test_bounds_masks_and_branches_made_of_values_are_conservative_whatever_constant_is_loaded(
    seen_fake, kernel
) -> None:
    kernel[(1,)](torch.tensor([0, 3, 3, 4], dtype=torch.int32), torch.zeros(8), torch.zeros(4))
    ((actual, _),) = seen_fake
    assert actual.coverage == "conservative"
    assert touched_bytes(actual, 0, 1, READ) == set(range(32))


@triton.jit
def softmax_where(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left, right = tl.load(x + at, at < n, 0.0), tl.load(y + at, at < n, 0.0)
    both = tl.where(left > right, tl.exp(left - tl.max(left, 0)), tl.log(right))
    tl.store(out + at, both / tl.sum(right, 0), at < n)


def test_values_that_only_meet_values_leave_addresses_exact(seen_fake) -> None:
    softmax_where[(2,)](torch.zeros(12), torch.zeros(12), torch.zeros(12), 12, BLOCK=8)
    ((kernel, _),) = seen_fake
    assert kernel.coverage == "exact"
    assert touched_bytes(kernel, 1, 2, WRITE) == set(range(32, 48))
