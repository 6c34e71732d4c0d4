"""Post and wait, in Triton: what makes a tile of one kernel visible to a tile of another.

A post is a barrier of the block, then one ``atom.release.gpu`` by one thread: the barrier brings the stores of all
threads before it, and release is cumulative. A wait polls with ``ld.acquire.gpu`` and ends with a barrier, so that what
one thread has seen holds for all. Nothing may move above the barrier: loads of what the tile awaited come after it in
the program, and a test reads the PTX to see that they stayed there.

Semaphores only grow. A run adds as many posts to a semaphore as tiles post it, so in run ``epoch`` the value ``v`` is
reached at ``epoch * posts + v``. Each tile that waits counts its own runs in device memory, where no other tile writes:
no run has to be told which it is, no tile shares a counter, and a captured graph replays any number of times without a
reset. (One counter that the last tile of a run advanced was tried first: the ticket that finds the last tile, one
atomic a tile at one address, showed on the copy pair.) Comparisons are of differences, so that 2^31 posts wrap around
unharmed.

Every wait is bounded: after ``TIMEOUT_NS`` the first one to give up writes stage, tile, semaphore, value seen and value
expected into the record, and every other wait gives up with it. What the tiles compute after that is wrong, and the
host says so.
"""

# Triton's language, of which Python's types say nothing:
# mypy: ignore-errors
# ruff: noqa: SIM102, ANN001, ANN201, N803 - Triton reads these signatures; constexpr parameters are spelt as constants
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, globaltimer

FLAG_WORDS = tl.constexpr(32)
"""int32 words of a cache line: one semaphore per line."""

RECORD_WORDS = 8
"""Claimed, stage, tile, semaphore, seen, expected, 2 unused."""


@triton.jit
def load_acquire_gpu_s32(pointer):
    """Load each element with one ``ld.acquire.gpu``."""
    return tl.inline_asm_elementwise(
        "ld.acquire.gpu.global.s32 $0, [$1];", "=r,l,~{memory}", [pointer], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def load_relaxed_gpu_s32(pointer):
    """Load each element with ``ld.relaxed.gpu``, which orders nothing."""
    return tl.inline_asm_elementwise(
        "ld.relaxed.gpu.global.s32 $0, [$1];", "=r,l,~{memory}", [pointer], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def nanosleep(duration_ns):
    """Let the SM run something else for about this long."""
    tl.inline_asm_elementwise(
        "nanosleep.u32 $1; mov.u32 $0, 0;", "=r,r,~{memory}", [duration_ns], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def claim_record(late, record, stage, tile, semaphore, posts, expected):
    """Write the record, if this element is late and no thread has; threads decide alone, since warps may give up at
    different times.
    """
    tl.inline_asm_elementwise(
        """{
        .reg .pred is_late, is_first;
        .reg .b32 before;
        mov.b32 before, 1;
        setp.ne.s32 is_late, $1, 0;
        @is_late atom.relaxed.gpu.global.cas.b32 before, [$2], 0, 1;
        setp.eq.s32 is_first, before, 0;
        @is_first st.global.s32 [$2 + 4], $3;
        @is_first st.global.s32 [$2 + 8], $4;
        @is_first st.global.s32 [$2 + 12], $5;
        @is_first st.global.s32 [$2 + 16], $6;
        @is_first st.global.s32 [$2 + 20], $7;
        mov.b32 $0, before;
        }""",
        "=r,r,l,r,r,r,r,r,~{memory}",
        [late, record, stage, tile, semaphore, posts, expected],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def wait(
    tile, waits, flags, runs, record,
    STAGE: tl.constexpr, WIDTH: tl.constexpr, GRID_WAIT: tl.constexpr, TIMEOUT_NS: tl.constexpr,
):  # fmt: skip
    """Return when every semaphore of the tile has reached its value; nothing at all where ``WIDTH`` is 0.

    ``GRID_WAIT``: return when the whole kernel in front has ended and its stores are visible, as every user of
    programmatic launch writes it.
    """
    if GRID_WAIT:
        gdc_wait()
    if WIDTH > 0:
        entry = waits + (tile * WIDTH + tl.arange(0, WIDTH)) * 3
        semaphore = tl.load(entry)
        epoch = load_relaxed_gpu_s32(
            runs + tile
        )  # from L2: an overlapped kernel has no launch boundary that empties L1
        expected = tl.load(entry + 1) + epoch * tl.load(entry + 2)
        flag = flags + tl.maximum(semaphore, 0) * FLAG_WORDS
        live = semaphore >= 0
        posts = load_acquire_gpu_s32(flag)
        late = live & (posts - expected < 0)
        missing = tl.sum(late.to(tl.int32))
        if missing > 0:
            start = globaltimer()
            while missing > 0:
                nanosleep(32)
                posts = load_acquire_gpu_s32(flag)
                late = live & (posts - expected < 0)
                missing = tl.sum(late.to(tl.int32))
                if globaltimer() - start > TIMEOUT_NS or load_relaxed_gpu_s32(record) != 0:
                    was = epoch * tl.load(entry + 2)
                    claim_record(late.to(tl.int32), record, STAGE, tile, semaphore, posts - was, expected - was)
                    missing = 0
        tl.debug_barrier()
        tl.store(runs + tile, epoch + 1)  # behind the barrier: every thread has read it


@triton.jit
def post(tile, posts, flags, TILES: tl.constexpr, POSTS: tl.constexpr, PDL: tl.constexpr):
    """Announce that the tile's stores are done; nothing at all without ``POSTS`` and ``PDL``.

    ``PDL``: the kernel may have begun before the one in front of it had ended, and must not end before, or the next
    ordinary launch would run beside that one. One block sees to it: if each did, a tile that is done early would hold
    its slot for nothing.
    """
    if POSTS > 0:
        tl.debug_barrier()
        for number in tl.static_range(POSTS):
            semaphore = tl.load(posts + tile * POSTS + number)
            tl.atomic_add(flags + semaphore * FLAG_WORDS, 1, sem="release", scope="gpu")
    if PDL:
        if tl.program_id(0) == TILES - 1:
            gdc_wait()


@triton.jit
def hold(waits, flags, runs, record, STAGE: tl.constexpr, TIMEOUT_NS: tl.constexpr):
    """A kernel of one block that ends when every block of the stage in front has begun: the next may then hold SMs
    while it waits.
    """
    wait(0, waits, flags, runs, record, STAGE, 1, False, TIMEOUT_NS)


@triton.jit
def begin(
    order, seed, flags,
    STAGE: tl.constexpr, ORDERED: tl.constexpr, STARTED: tl.constexpr, TRIGGER: tl.constexpr, DELAY_NS: tl.constexpr,
):  # fmt: skip
    """The tile of this block; lets the next kernel start beside this one (``TRIGGER``) and, for tests, sleeps up to
    ``DELAY_NS``.

    ``STARTED``: a semaphore that counts the blocks that have begun, or -1. It orders nothing, so it is relaxed.
    """
    tile = tl.program_id(0)
    if STARTED >= 0:
        tl.atomic_add(flags + STARTED * FLAG_WORDS, 1, sem="relaxed", scope="gpu")
    if TRIGGER:
        gdc_launch_dependents()
    if ORDERED:
        tile = tl.load(order + tile)
    if DELAY_NS > 0:  # another time for every tile of every stage in every run
        mixed = (tile + 1) * 40503 + (STAGE + 1) * 58757 + tl.load(seed) * 30011
        mixed = (mixed ^ (mixed >> 7)) * 9973
        nap = (mixed ^ (mixed >> 11)) & 1023
        start = globaltimer()
        while globaltimer() - start < (nap * DELAY_NS) // 1024:
            nanosleep(100)
    return tile
