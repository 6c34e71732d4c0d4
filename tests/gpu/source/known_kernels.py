"""Kernels whose every access is known, as CUDA source and as Python that lists the bytes of each thread."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tileprof.errors import UserError
from tileprof.trace import ATOMIC, READ, WRITE

SOURCE = Path(__file__).with_name("source_kernels.cu")


@dataclass(frozen=True)
class Case:
    """``touches(block, thread)`` yields (array, mode, first byte, end) of one thread, both given as (x, y, z)."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[object, ...]
    touches: object


def copy(type_: str, dtype: np.dtype, n: int) -> Case:
    size = dtype.itemsize

    def touches(block, thread):
        i = block[0] * 96 + thread[0]
        if i < n:
            yield 0, READ, i * size, (i + 1) * size
            yield 1, WRITE, i * size, (i + 1) * size

    values = np.arange(n * size, dtype=np.uint8)
    return Case(f"copy<{type_}>", (-(-n // 96),), (96,), (values, np.zeros_like(values), n), touches)


def strided() -> Case:
    n = 200

    def touches(block, thread):
        i = block[0] * 64 + thread[0]
        if i < n:
            yield 0, READ, 12 * i, 12 * i + 4
            yield 1, WRITE, 4 * (n - 1 - i), 4 * (n - i)

    return Case("strided", (4,), (64,), (np.arange(3 * n, dtype=np.float32), np.zeros(n, np.float32), n), touches)


def gather() -> Case:
    n = 150
    index = (np.arange(n, dtype=np.int32) ** 2 * 11) % 97

    def touches(block, thread):
        i = block[0] * 64 + thread[0]
        if i < n and i % 2 == 0:
            yield 0, READ, 4 * i, 4 * i + 4
            yield 1, READ, 4 * int(index[i]), 4 * int(index[i]) + 4
            yield 2, WRITE, 4 * i, 4 * i + 4

    arguments = (index.astype(np.int32), np.arange(97, dtype=np.float32), np.ones(n, np.float32), n)
    return Case("gather", (3,), (64,), arguments, touches)


def diverge() -> Case:
    n = 100

    def touches(block, thread):
        i = block[0] * 64 + thread[0]
        if i < n:
            yield 0, READ if i % 2 else WRITE, 4 * i, 4 * i + 4
            if i % 2:
                yield 1, WRITE, 4 * i, 4 * i + 4

    return Case("diverge", (2,), (64,), (np.ones(n, np.int32), np.zeros(n, np.int32), n), touches)


def atomics() -> Case:
    n = 90

    def touches(block, thread):
        i = block[0] * 64 + thread[0]
        if i < n:
            for array, at in [(0, i * 7 % 13), (1, i % 5), (0, 16), (0, 17), *((2, w) for w in (0, 2, 4, 6, 8))]:
                yield array, ATOMIC, 4 * at, 4 * at + 4

    arguments = (np.zeros(18, np.int32), np.zeros(5, np.float32), np.zeros(9, np.uint32), n)
    return Case("atomics", (2,), (64,), arguments, touches)


def tile_2d(*, asynchronous: bool) -> Case:
    columns, rows, from_pitch, to_pitch = 60, 20, 64, 100

    def touches(block, thread):
        if any(thread):
            return
        for y in range(block[1] * 8, min(rows, block[1] * 8 + 8)):
            for x in range(block[0] * 24, min(columns, block[0] * 24 + 24)):
                yield 0, READ, 4 * (y * from_pitch + x), 4 * (y * from_pitch + x) + 4
                yield 1, WRITE, 4 * (y * to_pitch + x), 4 * (y * to_pitch + x) + 4

    arguments = (np.arange(rows * from_pitch, dtype=np.float32), np.zeros(rows * to_pitch, np.float32))
    sizes = (columns, rows, from_pitch, to_pitch)
    return Case(f"tile_2d<{str(asynchronous).lower()}>", (3, 3), (32, 2), arguments + sizes, touches)


def tile_3d() -> Case:
    width, height = 32, 5

    def touches(block, thread):
        if thread[0] % 32:
            return
        box = 4 * (block[0] * 2 + thread[0] // 32)
        for z, y, x in product(range(2), range(3), range(4)):
            at = 8 * (z * width * height + y * width + x + box)
            yield 0, READ, at, at + 8
            yield 1, WRITE, at, at + 8

    values = np.arange(2 * width * height, dtype=np.float64)
    return Case("tile_3d", (4,), (64,), (values, np.zeros_like(values), width, height), touches)


def element_async() -> Case:
    n = 100

    def touches(block, thread):
        i = block[0] * 64 + thread[0]
        if i < n:
            yield 0, READ, 16 * i, 16 * i + 16
            yield 1, WRITE, 16 * i, 16 * i + 16

    values = np.arange(16 * n, dtype=np.uint8)
    return Case("element_async", (2,), (64,), (values, np.zeros_like(values), n), touches)


def named_barriers() -> Case:
    def touches(block, thread):
        at = 256 * (block[0] + 2 * (block[1] + 3 * block[2]))
        row = 64 * (thread[1] // 2)
        if thread[0] == 0 and thread[1] % 2 == 0:
            yield 0, READ, at + row, at + row + 16
        yield 1, WRITE, at + 4 * (thread[0] + 8 * thread[1]), at + 4 * (thread[0] + 8 * thread[1]) + 4

    values = np.arange(64 * 12, dtype=np.int32)
    return Case("named", (2, 3, 2), (8, 8), (values, np.zeros_like(values)), touches)


def matmul() -> Case:
    m, n, k = 36, 20, 24

    def touches(block, thread):
        x, y = block[0] * 16 + thread[0], block[1] * 16 + thread[1]
        for at in range(0, k, 16):
            if y < m and at + thread[0] < k:
                yield 0, READ, 4 * (y * k + at + thread[0]), 4 * (y * k + at + thread[0]) + 4
            if x < n and at + thread[1] < k:
                yield 1, READ, 4 * ((at + thread[1]) * n + x), 4 * ((at + thread[1]) * n + x) + 4
        if y < m and x < n:
            yield 2, WRITE, 4 * (y * n + x), 4 * (y * n + x) + 4

    arrays = (np.ones((m, k), np.float32), np.ones((k, n), np.float32), np.zeros((m, n), np.float32))
    return Case("matmul<16>", (2, 3), (16, 16), (*arrays, m, n, k), touches)


def private_memory() -> Case:
    def touches(block, thread):
        at = 4 * (block[0] * 64 + thread[0])
        yield 0, READ, at, at + 4
        yield 1, WRITE, at, at + 4

    return Case("private_memory", (2,), (64,), (np.arange(128, dtype=np.int32), np.zeros(128, np.int32)), touches)


def bulk() -> Case:
    def touches(block, thread):
        if thread[0] == 0:
            yield 0, READ, 1024 * block[0], 1024 * block[0] + 528
            yield 1, WRITE, 1024 * block[0], 1024 * block[0] + 528

    values = np.arange(4096, dtype=np.uint16).view(np.uint8)[:4096]
    return Case("bulk", (4,), (32,), (values, np.zeros_like(values), 528), touches)


CASES = [
    copy("unsigned char", np.dtype("u1"), 301),
    copy("unsigned short", np.dtype("u2"), 300),
    copy("float", np.dtype("f4"), 250),
    copy("uint2", np.dtype("u8"), 200),
    copy("uint4", np.dtype("V16"), 123),
    strided(),
    gather(),
    diverge(),
    atomics(),
    tile_2d(asynchronous=False),
    tile_2d(asynchronous=True),
    tile_3d(),
    element_async(),
    named_barriers(),
    matmul(),
]


GPU_CASES = [private_memory(), bulk()]


def true_sets(case: Case) -> dict[tuple[int, int, int], set[int]]:
    """Return bytes by (tile, array, mode), thread by thread."""
    matches = defaultdict(set)
    grid, block = ((*d, 1, 1)[:3] for d in (case.grid, case.block))
    for tile, (bz, by, bx) in enumerate(product(*(range(n) for n in grid[::-1]))):
        for tz, ty, tx in product(*(range(n) for n in block[::-1])):
            for array, mode, begin, end in case.touches((bx, by, bz), (tx, ty, tz)):
                matches[tile, array, mode].update(range(begin, end))
    return dict(matches)


def need_a_gpu() -> None:
    """Skip the test, with the reason, where kernels cannot be recorded on a GPU."""
    from tileprof.record.source.gpu import Gpu

    try:
        Gpu()
    except UserError as error:
        pytest.skip(str(error))


def on_the_gpu(argument: np.ndarray) -> object:
    """Return the array's bytes as a PyTorch tensor."""
    import torch

    return torch.from_numpy(argument.view(np.uint8).reshape(-1).copy()).cuda()
