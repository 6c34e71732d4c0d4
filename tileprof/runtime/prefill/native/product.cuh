// Tiles of products: 64 rows of activations by 128 columns, wgmma from both rings. A warpgroup has 64 of the columns.
#pragma once

#include "loads.cuh"

constexpr int SUMS = 32;  // sums of a tile per thread: of rows r and r + 8, columns 8 j + 2 q and + 1 of its
                          // warpgroup, in the order of j

struct Rings {
    Ring<SLOTS> weights;
    Ring<ACTIVATION_SLOTS> activations;
};

// K-major with 128-byte swizzle, from an address that is a multiple of 1024.
__device__ __forceinline__ u64 descriptor(u32 address) {
    return static_cast<u64>(64u | 1u << 30) << 32 | (address & 0x3FFFF) >> 4 | 1u << 16;
}

// Two chunks of k at a time: if products of the next chunks are in flight while these are awaited, ptxas serialises
// all of them (C7518).
__device__ __forceinline__ void multiply(float (&sums)[SUMS], const Block& block, Rings& rings, int chunks) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; chunk += 2) {
        u32 weights[2], activations[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            weights[i] = rings.weights.slot, activations[i] = rings.activations.slot;
            wait_local(block.shared + W_FULL + 8 * weights[i], rings.weights.turn);
            wait_local(block.shared + A_FULL + 8 * activations[i], rings.activations.turn);
            rings.weights.advance();
            rings.activations.advance();
        }
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u64 a = descriptor(uniform(block.shared + ACTIVATIONS_AT + activations[i] * ACTIVATION_BYTES));
            const u64 b =
                descriptor(uniform(block.shared + weights[i] * WEIGHT_BYTES + block.thread / 128 * (WEIGHT_BYTES / 2)));
#pragma unroll
            for (int step = 0; step < K_CHUNK / 16; ++step) Multiply<2 * SUMS>::add(sums, a + 2 * step, b + 2 * step);
        }
        wgmma_commit();
        wgmma_wait<0>();
        __syncwarp();
        if (block.lane == 0)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                mbarrier_arrive_release_cta(block.shared + W_FREE + 8 * weights[i]);
                mbarrier_arrive_release_cta(block.shared + A_FREE + 8 * activations[i]);
            }
    }
}

// Calls work(row, half) for the two rows of a thread, which may be beyond the last one; sums of a row are 4 j + 2
// half and the next.
template <class Work>
__device__ __forceinline__ void for_rows(const Block& block, Work&& work) {
    const int row = block.thread % 128 / 32 * 16 + block.lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) work(row + 8 * half, half);
}

// Rearranges four words of a lane, of columns 8 j + 2 q and the next, into the words of columns 8 q to 8 q + 7.
__device__ __forceinline__ uint4 transposed(u32 (&words)[4], u32 lane) {
#pragma unroll
    for (u32 step = 1; step < 4; step *= 2)
#pragma unroll
        for (u32 i = 0; i < 4; ++i)
            if ((i & step) ==
                0) {  // the lanes whose bit is clear keep the lower word of the two and get the others' lower one
                u32 &lower = words[i], &upper = words[i + step];
                const bool set = lane & step;
                const u32 got = __float_as_uint(exchange_xor(__uint_as_float(set ? lower : upper), step));
                (set ? lower : upper) = got;
            }
    uint4 v;
    v.x = words[0], v.y = words[1], v.z = words[2], v.w = words[3];
    return v;
}

// Calls work(vector, i, half) for the vectors of parts that a thread has of a task: sums 8 i + 2 half, + 1, + 4 and +
// 5.
template <class P, class Work>
__device__ __forceinline__ void for_parts(const Block& block, int task, Work&& work) {
    const int p = P::tile(task) * (TILE / 16) + block.thread / 128 * (TILE / 32), q = block.lane % 4;
    for_rows(block, [&](int row, int half) {
        if (row < ROWS)
#pragma unroll
            for (int i = 0; i < TILE / 32; ++i) work(Parts<P>::at(P::split(task), row, p + i, q), i, half);
    });
}

// Stores a product's parts of k in the set `to` and makes those of the other set absent again.
template <class P>
__device__ __forceinline__ void product(const Block& block, Rings& rings, int to, int other) {
    uint4 none;
    none.x = none.y = none.z = none.w = ABSENT;
    for_tasks<P>([&](int task) {
        float sums[SUMS];
        stamp(block, P::STAGE, 0);
        // The operands of this product depend on all readers of the other set.
        wait_local(block.shared + A_FULL + 8 * rings.activations.slot, rings.activations.turn);
        for_parts<P>(block, task,
                     [&](int vector, int, int) { store_relaxed_gpu_u32x4(block.at(16ll * (other + vector)), none); });
        stamp(block, P::STAGE, 1);
        multiply(sums, block, rings, P::end(task) - P::begin(task));
        stamp(block, P::STAGE, 2);
        delay(block, P::STAGE);
        for_parts<P>(block, task, [&](int vector, int i, int half) {
            const float* const of = sums + 8 * i + 2 * half;
            uint4 v;
            v.x = __float_as_uint(of[0]), v.y = __float_as_uint(of[1]), v.z = __float_as_uint(of[4]),
            v.w = __float_as_uint(of[5]);
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
        multiply(sums, block, rings, 2 * Gate::PAIRS);
        stamp(block, STAGE_GATE, 2);
        const int first = task * GATE_COLUMNS + block.thread / 128 * BOX + block.lane % 4 * 8;
        for_rows(block, [&](int row, int half) {
            u32 words[BOX / 8];
#pragma unroll
            for (int j = 0; j < BOX / 8; ++j) {
                const float* const opens = sums + 4 * j + 2 * half;
                const float* const up = opens + SUMS / 2;
                const float one = rounded(silu(rounded(opens[0]))) * rounded(up[0]),
                            two = rounded(silu(rounded(opens[1]))) * rounded(up[1]);
                words[j] = pack(one, two);
            }
            const uint4 v = transposed(words, block.lane);
            if (row < ROWS) store_global_u32x4(out + static_cast<long long>(row) * INTERMEDIATE + first, v);
        });
        post(block, STAGE_GATE, ACTIVATED_FLAGS + task);
        stamp(block, STAGE_GATE, 3);
    });
}

__device__ __forceinline__ void head(const Block& block, Rings& rings) {
    for_tasks<Head>([&](int task) {
        float sums[SUMS];
        stamp(block, STAGE_HEAD, 0);
        multiply(sums, block, rings, 2 * Head::PAIRS);
        const int first = task * TILE + block.thread / 128 * (TILE / 2) + block.lane % 4 * 8;
        for_rows(block, [&](int row, int half) {
#pragma unroll
            for (int four = 0; four < TILE / 64; ++four) {
                u32 words[4];
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    words[j] = pack(sums[16 * four + 4 * j + 2 * half], sums[16 * four + 4 * j + 2 * half + 1]);
                const uint4 v = transposed(words, block.lane);
                if (row < ROWS && first + 32 * four < VOCABULARY)
                    store_global_u32x4(block.p.logits + static_cast<long long>(row) * VOCABULARY + first + 32 * four,
                                       v);
            }
        });
        stamp(block, STAGE_HEAD, 3);
    });
}
