// Every kind of access that tileprof.cuh has; known_kernels.py lists the accesses of these kernels independently.
#include <tileprof.cuh>

using namespace tileprof;

__device__ inline int global_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

template <typename T>
__global__ void copy(const T* from, T* to, int n) {
    BlockLife life;
    int i = global_thread();
    if (i < n) store(to + i, load(from + i));
}

// Every third element, back to front: no two lanes touch neighbours in order.
__global__ void strided(const float* from, float* to, int n) {
    BlockLife life;
    int i = global_thread();
    if (i < n) store(to + (n - 1 - i), load_readonly(from + 3 * i));
}

// The address of a load depends on data; odd lanes return early.
__global__ void gather(const int* index, const float* table, float* to, int n) {
    BlockLife life;
    int i = global_thread();
    if (i >= n || i % 2 != 0) return;
    store(to + i, load(table + load(index + i)));
}

// Odd lanes load while even lanes store.
__global__ void diverge(int* a, int* b, int n) {
    BlockLife life;
    int i = global_thread();
    if (i >= n) return;
    if (i % 2 != 0)
        store(b + i, load_volatile(a + i));
    else
        store_volatile(a + i, i);
}

__global__ void atomics(int* bins, float* sums, unsigned* words, int n) {
    BlockLife life;
    int i = global_thread();
    if (i >= n) return;
    atomic_add(bins + i * 7 % 13, 1);
    atomic_add(sums + i % 5, 0.5f);
    atomic_min(bins + 16, i);
    atomic_max(bins + 17, i);
    atomic_and(words, 0xffu);
    atomic_or(words + 2, 1u << i % 32);
    atomic_xor(words + 4, 1u);
    atomic_exchange(words + 6, 7u);
    atomic_compare_and_swap(words + 8, 0u, 5u);
}

constexpr int kColumns = 24, kRows = 8;

__device__ inline int clipped(int size, int begin, int whole) { return begin + size > whole ? whole - begin : size; }

// Copies a tile of one matrix through shared memory to the same tile of another one with other rows; ragged at two
// edges.
template <bool async>
__global__ void tile_2d(const float* from, float* to, int columns, int rows, int from_pitch, int to_pitch) {
    BlockLife life;
    __shared__ float stage[kRows * kColumns];
    int x = blockIdx.x * kColumns, y = blockIdx.y * kRows;
    Box box{clipped(kColumns, x, columns), clipped(kRows, y, rows)};
    if (async) {
        load_tile_async(stage, {kColumns}, from + y * from_pitch + x, {from_pitch}, box);
        cp_async_commit();
        cp_async_wait<0>();
    } else {
        load_tile(stage, {kColumns}, from + y * from_pitch + x, {from_pitch}, box);
    }
    __syncthreads();
    store_tile(to + y * to_pitch + x, {to_pitch}, stage, {kColumns}, box);
}

// Boxes of 4 x 3 x 2 elements of a volume, one per warp.
__global__ void tile_3d(const double* from, double* to, int width, int height) {
    BlockLife life;
    int box = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    Pitch pitch{width, static_cast<i64>(width) * height};
    copy_tile(to + 4 * box, pitch, from + 4 * box, pitch, Box{4, 3, 2}, warp_team());
}

__global__ void element_async(const uint4* from, uint4* to, int n) {
    BlockLife life;
    __shared__ uint4 stage[64];
    int i = global_thread();
    if (i < n) load_async(stage + threadIdx.x, from + i);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    if (i < n) store(to + i, stage[threadIdx.x]);
}

// A 3-D grid of 2-D blocks, and an instruction that no wrapper issues.
__global__ void named(const int* from, int* to) {
    BlockLife life;
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * threadIdx.y;
    if (thread == 0) {
        touch(kRead, from + block * 64, 16, 4, 64);
        touch(kWrite, to + block * 64 + 63, 4, 64, -4);
    }
    to[block * 64 + thread] = from[block * 64 + thread / 16 * 16];
}

// A matrix product through shared memory, as in tutorials.
template <int T>
__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    BlockLife life;
    __shared__ float left[T][T], right[T][T];
    int x = blockIdx.x * T + threadIdx.x, y = blockIdx.y * T + threadIdx.y;
    float sum = 0;
    for (int at = 0; at < k; at += T) {
        left[threadIdx.y][threadIdx.x] = y < m && at + threadIdx.x < k ? load(a + y * k + at + threadIdx.x) : 0.0f;
        right[threadIdx.y][threadIdx.x] = x < n && at + threadIdx.y < k ? load(b + (at + threadIdx.y) * n + x) : 0.0f;
        __syncthreads();
        for (int i = 0; i < T; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    if (y < m && x < n) store(c + y * n + x, sum);
}

#ifndef TILEPROF_HOST

// Shared memory through the same wrappers: not recorded.
__global__ void private_memory(const int* from, int* to) {
    BlockLife life;
    __shared__ int stage[64];
    store(stage + threadIdx.x, load(from + global_thread()));
    __syncthreads();
    atomic_add(stage + threadIdx.x, 1);
    store(to + global_thread(), load(stage + threadIdx.x));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__global__ void bulk(const char* from, char* to, int bytes) {
    BlockLife life;
    __shared__ alignas(128) char stage[1024];
    __shared__ u64 barrier;
    if (threadIdx.x == 0) {
        u32 at = static_cast<u32>(__cvta_generic_to_shared(&barrier));
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
        load_bulk(stage, from + blockIdx.x * 1024, bytes, &barrier);
        u32 done = 0;
        for (int patience = 0; done == 0 && patience < 1000000; ++patience)
            asm volatile("{.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;}"
                         : "=r"(done)
                         : "r"(at)
                         : "memory");
        store_bulk(to + blockIdx.x * 1024, stage, bytes);
        bulk_commit();
        bulk_wait_all();
    }
}
#endif
#endif
