// Tiles of products: 64 rows of activations by 128 columns, wgmma from both rings. A warpgroup has 64 of the columns.
#pragma once

#include "loads.cuh"

constexpr int SUMS = 32;  // that a thread has of a tile: of rows r and r + 8, columns 8 j + 2 q and + 1 of its warpgroup, in the order of j

struct Rings {
    Ring<SLOTS> weights;
    Ring<ACTIVATION_SLOTS> activations;
};

// Of what lane 0 holds ptxas knows that all lanes read the same: descriptors then stay in uniform registers, which products read.
__device__ __forceinline__ u32 uniform(u32 value) { return __shfl_sync(~0u, value, 0); }

// K-major with 128-byte swizzle, from an address that 1024 divides.
__device__ __forceinline__ u64 descriptor(u32 address) { return static_cast<u64>(64u | 1u << 30) << 32 | (address & 0x3FFFF) >> 4 | 1u << 16; }

__device__ __forceinline__ void multiply(float (&sums)[SUMS], const Block& block, Rings& rings, int chunks) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        wait_local(block.shared + W_FULL + 8 * rings.weights.slot, rings.weights.turn);
        wait_local(block.shared + A_FULL + 8 * rings.activations.slot, rings.activations.turn);
        const u64 a = descriptor(uniform(block.shared + ACTIVATIONS_AT + rings.activations.slot * ACTIVATION_BYTES));
        const u64 b = descriptor(uniform(block.shared + rings.weights.slot * WEIGHT_BYTES + block.thread / 128 * (WEIGHT_BYTES / 2)));
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < K_CHUNK / 16; ++step) Multiply<2 * SUMS>::add(sums, a + 2 * step, b + 2 * step);
        wgmma_commit();
        wgmma_wait<0>();  // the stream is slower than this; with products of two chunks under way ptxas serialises them (C7518)
        __syncwarp();
        if (block.lane == 0) {
            mbarrier_arrive_release_cta(block.shared + W_FREE + 8 * rings.weights.slot);
            mbarrier_arrive_release_cta(block.shared + A_FREE + 8 * rings.activations.slot);
        }
        rings.weights.advance();
        rings.activations.advance();
    }
}

// Calls work(row, half) for the two rows of a thread that are rows of the activations; sums of a row are 4 j + 2 half and the next.
template <class Work>
__device__ __forceinline__ void for_rows(const Block& block, Work&& work) {
    const int row = block.thread % 128 / 32 * 16 + block.lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
        if (row + 8 * half < ROWS) work(row + 8 * half, half);
}

// Calls work(vector, i, half) for the vectors of parts that a thread has of a task: sums 8 i + 2 half, + 1, + 4 and + 5.
template <class P, class Work>
__device__ __forceinline__ void for_parts(const Block& block, int task, Work&& work) {
    const int p = P::tile(task) * (TILE / 16) + block.thread / 128 * (TILE / 32), q = block.lane % 4;
    for_rows(block, [&](int row, int half) {
#pragma unroll
        for (int i = 0; i < TILE / 32; ++i) work(Parts<P>::at(P::split(task), row, p + i, q), i, half);
    });
}

// A product's parts of k, in the set `to`; the other set's are absent again.
template <class P>
__device__ __forceinline__ void product(const Block& block, Rings& rings, int to, int other) {
    uint4 none;
    none.x = none.y = none.z = none.w = ABSENT;
    for_tasks<P>([&](int task) {
        float sums[SUMS];
        stamp(block, P::STAGE, 0);
        wait_local(block.shared + A_FULL + 8 * rings.activations.slot, rings.activations.turn);  // what this product reads depends on all who read the other set
        for_parts<P>(block, task, [&](int vector, int, int) { store_relaxed_gpu_u32x4(block.at(16ll * (other + vector)), none); });
        stamp(block, P::STAGE, 1);
        multiply(sums, block, rings, P::end(task) - P::begin(task));
        stamp(block, P::STAGE, 2);
        delay(block, P::STAGE);
        for_parts<P>(block, task, [&](int vector, int i, int half) {
            const float* const of = sums + 8 * i + 2 * half;
            uint4 v;
            v.x = __float_as_uint(of[0]), v.y = __float_as_uint(of[1]), v.z = __float_as_uint(of[4]), v.w = __float_as_uint(of[5]);
            store_relaxed_gpu_u32x4(block.at(16ll * (to + vector)), v);
        });
        stamp(block, P::STAGE, 3);
    });
}

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

__device__ __forceinline__ void gate(const Block& block, Rings& rings) {
    u16* const out = reinterpret_cast<u16*>(block.at(ACTIVATED_AT));
    for_tasks<Gate>([&](int task) {
        float sums[SUMS];
        stamp(block, STAGE_GATE, 0);
        multiply(sums, block, rings, Gate::CHUNKS);
        stamp(block, STAGE_GATE, 2);
        const int first = task * GATE_COLUMNS + block.thread / 128 * BOX + block.lane % 4 * 2;
        for_rows(block, [&](int row, int half) {
#pragma unroll
            for (int j = 0; j < BOX / 8; ++j) {
                const float* const opens = sums + 4 * j + 2 * half;
                const float* const up = opens + SUMS / 2;
                const float one = rounded(silu(rounded(opens[0]))) * rounded(up[0]), two = rounded(silu(rounded(opens[1]))) * rounded(up[1]);
                store_global_u32(out + static_cast<long long>(row) * INTERMEDIATE + first + 8 * j, pack(one, two));
            }
        });
        post(block, STAGE_GATE, ACTIVATED_FLAGS + task);
        stamp(block, STAGE_GATE, 3);
    });
}

__device__ __forceinline__ void head(const Block& block, Rings& rings) {
    for_tasks<Head>([&](int task) {
        float sums[SUMS];
        stamp(block, STAGE_HEAD, 0);
        multiply(sums, block, rings, Head::CHUNKS);
        const int first = task * TILE + block.thread / 128 * (TILE / 2) + block.lane % 4 * 2;
        for_rows(block, [&](int row, int half) {
#pragma unroll
            for (int j = 0; j < TILE / 16; ++j)
                if (first + 8 * j < VOCABULARY)
                    store_global_u32(block.p.logits + static_cast<long long>(row) * VOCABULARY + first + 8 * j, pack(sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]));
        });
        stamp(block, STAGE_HEAD, 3);
    });
}
