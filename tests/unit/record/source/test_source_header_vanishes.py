"""Without TILEPROF_RECORD a kernel with wrappers compiles to the machine code of the kernel without them."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from tileprof.errors import UserError
from tileprof.record.cuda.installation import locate
from tileprof.record.source.machine import INCLUDE

WRAPPED = """
#include <tileprof.cuh>
#define LIFE tileprof::BlockLife life;
#define LOAD(p) tileprof::load(p)
#define LOAD_READONLY(p) tileprof::load_readonly(p)
#define STORE(p, v) tileprof::store(p, v)
#define ADD(p, v) tileprof::atomic_add(p, v)
#define LOAD_TILE(to, from, pitch, columns, rows) \\
    tileprof::load_tile(to, {32}, from, {pitch}, tileprof::Box{columns, rows})
"""
PLAIN = """
#define LIFE
#define LOAD(p) (*(p))
#define LOAD_READONLY(p) __ldg(p)
#define STORE(p, v) copy_to(p, v)
#define ADD(p, v) atomicAdd(p, v)
#define LOAD_TILE(to, from, pitch, columns, rows) copy_tile(to, from, pitch, columns, rows)
template <typename T, typename V>
__device__ __forceinline__ void copy_to(T* to, V value) { *to = value; }
template <typename T>
__device__ __forceinline__ void copy_tile(T* to, const T* from, long long pitch, int columns, int rows) {
    const int rank = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const int threads = blockDim.x * blockDim.y * blockDim.z;
    for (int i = rank; i < columns * rows; i += threads) {
        const int row = i / columns, column = i % columns;
        T* t = to + (row * 32ll + column);
        const T* f = from + (row * pitch + column);
        *t = *f;
    }
}
"""
KERNELS = """
extern "C" __global__ void elements(const float4* __restrict__ x, float4* y, const unsigned char* b, float* sums,
                                    int n) {
    LIFE
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 v = LOAD(x + i);
    v.x += LOAD_READONLY(b + i);
    STORE(y + i, v);
    ADD(sums + i % 7, v.y);
}
extern "C" __global__ void product(const float* a, const float* b, float* c, int n) {
    LIFE
    __shared__ float left[32 * 32], right[32 * 32];
    float sum = 0;
    for (int at = 0; at < n; at += 32) {
        LOAD_TILE(left, a + blockIdx.y * 32 * n + at, n, 32, 32);
        LOAD_TILE(right, b + at * n + blockIdx.x * 32, n, 32, 32);
        __syncthreads();
        for (int i = 0; i < 32; ++i) sum += left[threadIdx.y * 32 + i] * right[i * 32 + threadIdx.x];
        __syncthreads();
    }
    STORE(c + (blockIdx.y * 32 + threadIdx.y) * n + blockIdx.x * 32 + threadIdx.x, sum);
}
"""


@pytest.fixture(scope="module")
def nvcc() -> Path:
    try:
        return locate.nvcc()
    except UserError as error:
        pytest.skip(str(error))


def compiled(nvcc: Path, folder: Path, source: str, *options: str) -> bytes:
    """Return the cubin."""
    folder.mkdir()
    (folder / "kernel.cu").write_text(source)
    out = folder / "out"
    command = [nvcc, "-std=c++17", f"-I{INCLUDE}", *options, "kernel.cu", "-o", out]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return out.read_bytes()


def machine_code(cubin: bytes) -> dict[str, bytes]:
    """Return each kernel's instructions: the sections of the 64-bit ELF file whose names begin with .text."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    matches = {}
    for name_at, _, _, _, begin, length in headers:
        place = headers[names][4] + name_at
        name = cubin[place : cubin.index(b"\0", place)].decode()
        if name.startswith(".text."):
            matches[name.removeprefix(".text.")] = cubin[begin : begin + length]
    return matches


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
def test_the_machine_code_is_that_of_the_plain_kernel(nvcc: Path, architecture: str, tmp_path: Path) -> None:
    options = (f"-arch={architecture}", "-cubin")
    with_wrappers = machine_code(compiled(nvcc, tmp_path / "a", WRAPPED + KERNELS, *options))
    without = machine_code(compiled(nvcc, tmp_path / "b", PLAIN + KERNELS, *options))
    assert set(without) == {"elements", "product"}
    assert min(map(len, without.values())) > 200
    assert with_wrappers == without


def test_recorded_code_differs_and_leaves_the_log_symbol(nvcc: Path, tmp_path: Path) -> None:
    record_build = compiled(nvcc, tmp_path / "a", WRAPPED + KERNELS, "-arch=sm_75", "-cubin", "-DTILEPROF_RECORD")
    assert b"tileprof_log" in record_build
    plain = compiled(nvcc, tmp_path / "b", WRAPPED + KERNELS, "-arch=sm_75", "-cubin")
    assert b"tileprof_log" not in plain
    assert len(record_build) > len(plain)
