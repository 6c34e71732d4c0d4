// Products of up to eight tokens' activations with streamed weights: the warps share the columns, add up in shared memory, finish and hand on.
#pragma once

#include "common.cuh"

// Columns of activations that a thread multiplies in a piece: eight for each of four steps of its warp, of token lane / 4.
constexpr int STEPS = PIECE / STEP / WARPS;

template <int K>
struct Columns {
    static constexpr int PIECES = (K + PIECE - 1) / PIECE;
    static constexpr int TAIL = (K - (PIECES - 1) * PIECE) / STEP;  // steps of the last piece
    static_assert(K % STEP == 0, "columns in whole steps");

    // Steps of a piece, a constant where all pieces are whole.
    __device__ static int steps(int piece) { return TAIL == PIECE / STEP || piece + 1 < PIECES ? PIECE / STEP : TAIL; }

    __device__ static bool has(const Block& block, int piece, int step) { return step * WARPS + static_cast<int>(block.warp) < steps(piece); }

    __device__ static int first(const Block& block, int piece, int step) { return piece * PIECE + (step * WARPS + block.warp) * STEP + block.lane % 4 * 8; }
};

// One tile of 16 rows, or of 8, of one piece: one or two slots.
__device__ __forceinline__ void multiply(float (&sums)[4], const uint4 (&b)[STEPS], Block& block, int steps, bool two) {
    const u32 row = block.lane / 4 * ROW_BYTES + block.warp * (2 * STEP) + block.lane % 4 * 16;
    const Ring first = block.ring;
    uint4 a[STEPS], below[STEPS];
    wait_local(block.shared + FULL_AT + 8 * first.slot, first.turn);
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
        a[step] = step * WARPS + static_cast<int>(block.warp) < steps ? load_shared_u32x4(block.shared + first.slot * SLOT_BYTES + row + step * (2 * STEP * WARPS)) : make_uint4(0, 0, 0, 0);
    block.ring.advance();
    if (two) {
        const Ring second = block.ring;
        wait_local(block.shared + FULL_AT + 8 * second.slot, second.turn);
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
            below[step] = step * WARPS + static_cast<int>(block.warp) < steps ? load_shared_u32x4(block.shared + second.slot * SLOT_BYTES + row + step * (2 * STEP * WARPS)) : make_uint4(0, 0, 0, 0);
        block.ring.advance();
        __syncwarp();
        if (block.lane == 0) {
            mbarrier_arrive_release_cta(block.shared + FREE_AT + 8 * first.slot);
            mbarrier_arrive_release_cta(block.shared + FREE_AT + 8 * second.slot);
        }
    } else {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) below[step] = make_uint4(0, 0, 0, 0);
        __syncwarp();
        if (block.lane == 0) mbarrier_arrive_release_cta(block.shared + FREE_AT + 8 * first.slot);
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        multiply_add_16x8x16(sums, a[step].x, below[step].x, a[step].y, below[step].y, b[step].x, b[step].y);
        multiply_add_16x8x16(sums, a[step].z, below[step].z, a[step].w, below[step].w, b[step].z, b[step].w);
    }
}

__device__ __forceinline__ u32 scratch_at(const Block& block, int warp, int tile, int row, int token) {
    return block.shared + SCRATCH_AT + 4 * (((warp * TILES + tile) * 16 + row) * BATCH + token);
}

__device__ __forceinline__ float load_shared_f32(u32 address) { return __int_as_float(load_shared_s32(address)); }
__device__ __forceinline__ void store_shared_f32(u32 address, float value) { store_shared_s32(address, __float_as_int(value)); }

// What the warps have of the tiles that hold `groups` groups, to scratch.
__device__ __forceinline__ void keep_sums(const float (&sums)[TILES][4], const Block& block, int groups) {
    const int row = block.lane / 4, token = block.lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
        if (2 * tile < groups) {
#pragma unroll
            for (int next = 0; next < 2; ++next)
                if (token + next < BATCH) {
                    store_shared_f32(scratch_at(block, block.warp, tile, row, token + next), sums[tile][next]);
                    store_shared_f32(scratch_at(block, block.warp, tile, row + 8, token + next), sums[tile][2 + next]);
                }
        }
}

// The sum of a row of a tile over all warps, always in the same order.
__device__ __forceinline__ float added(const Block& block, int tile, int row, int token) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) sum += load_shared_f32(scratch_at(block, warp, tile, row, token));
    return sum;
}

// A word of a product's result: two neighbouring rows of a group, for a token.
struct Word {
    int group, pair, token;  // the group counts from the first of the sweep

    __device__ Word(int number, int groups) : group(number / 4 % groups), pair(number % 4), token(number / 4 / groups) {}
};

// Activations that are normalised first, and stay in registers for all of the stage.
template <int K>
struct Normalised {
    static constexpr int PIECES = Columns<K>::PIECES;
    uint4 held[PIECES][STEPS];

    // `rows(token)`: where a token's activations are. They may be absent still if `handed`.
    template <class Rows>
    __device__ void load(Block& block, int stage, const u16* norm, bool handed, Rows&& rows) {
        using C = Columns<K>;
        const int token = block.lane / 4;
        const bool mine = token < BATCH;
        uint4 scale[PIECES][STEPS];
        uint4 v[PIECES * STEPS];
        const u16* const row = rows(mine ? token : 0);
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece)
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const bool has = mine && C::has(block, piece, step);
                scale[piece][step] = has ? *reinterpret_cast<const uint4*>(norm + C::first(block, piece, step)) : make_uint4(0, 0, 0, 0);
                v[piece * STEPS + step] = has ? make_uint4(ABSENT, ABSENT, ABSENT, ABSENT) : make_uint4(0, 0, 0, 0);
            }
        stamp(block, stage, 0);
        if (handed) {
            arrive(v, block, stage, [&](int i) { return row + C::first(block, i / STEPS, i % STEPS); });
        } else {
#pragma unroll
            for (int i = 0; i < PIECES * STEPS; ++i)
                if (v[i].x == ABSENT) v[i] = *reinterpret_cast<const uint4*>(row + C::first(block, i / STEPS, i % STEPS));
        }
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < PIECES * STEPS; ++i) {
            float x[8];
            widen(x, v[i]);
#pragma unroll
            for (int j = 0; j < 8; ++j) squares += x[j] * x[j];
        }
        squares += __shfl_xor_sync(~0u, squares, 1);
        squares += __shfl_xor_sync(~0u, squares, 2);
        const u32 sums = block.shared + SQUARES_AT;
        if (block.lane % 4 == 0) store_shared_f32(sums + 4 * (block.warp * 8 + token), squares);
        consumers_meet();
        float total = 0.0f;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) total += load_shared_f32(sums + 4 * (warp * 8 + token));
        const float factor = rsqrtf(total * (1.0f / K) + EPSILON);
#pragma unroll
        for (int i = 0; i < PIECES * STEPS; ++i) {
            float x[8], w[8];
            widen(x, v[i]);
            widen(w, scale[i / STEPS][i % STEPS]);
#pragma unroll
            for (int j = 0; j < 8; ++j) x[j] = w[j] * rounded(x[j] * factor);
            held[i / STEPS][i % STEPS] = narrow(x);
        }
        stamp(block, stage, 1);
    }
};

// Calls end(first, groups) for each sweep of up to 2 * TILES groups of rows, whose sums `added` then gives.
template <int K, class End>
__device__ __forceinline__ void product_of_normalised(const Normalised<K>& activations, Block& block, int groups, End&& end) {
#pragma unroll 1
    for (int first = 0; first < groups; first += 2 * TILES) {
        const int left = groups - first < 2 * TILES ? groups - first : 2 * TILES;
        float sums[TILES][4] = {};
#pragma unroll
        for (int piece = 0; piece < Columns<K>::PIECES; ++piece)
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
                if (2 * tile < left) multiply(sums[tile], activations.held[piece], block, Columns<K>::steps(piece), 2 * tile + 1 < left);
        keep_sums(sums, block, left);
        consumers_meet();
        end(first, left);
        consumers_meet();
    }
}

// As above, with activations as they were handed: loaded piece by piece, one piece ahead.
template <int K, class End>
__device__ __forceinline__ void product_of_handed(Block& block, int stage, const u32* from, int groups, End&& end) {
    using C = Columns<K>;
    const int token = block.lane / 4;
    const u16* const row = reinterpret_cast<const u16*>(from) + static_cast<s64>(token < BATCH ? token : 0) * K;
    auto address = [&](int piece, int step) { return row + C::first(block, piece, step); };
    auto request = [&](uint4(&v)[STEPS], int piece) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const bool has = token < BATCH && C::has(block, piece, step);
            v[step] = has ? make_uint4(ABSENT, ABSENT, ABSENT, ABSENT) : make_uint4(0, 0, 0, 0);
            load_relaxed_gpu_u32x4(v[step], address(piece, step), has);
        }
    };
#pragma unroll 1
    for (int first = 0; first < groups; first += 2 * TILES) {
        const int left = groups - first < 2 * TILES ? groups - first : 2 * TILES;
        float sums[TILES][4] = {};
        uint4 next[STEPS];
        stamp(block, stage, 0);
        request(next, 0);
#pragma unroll 1
        for (int piece = 0; piece < C::PIECES; ++piece) {
            uint4 now[STEPS];
            arrive(next, block, stage, [&](int step) { return address(piece, step); });
            if (piece == 0) stamp(block, stage, 1);
#pragma unroll
            for (int step = 0; step < STEPS; ++step) now[step] = next[step];
            if (piece + 1 < C::PIECES) request(next, piece + 1);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
                if (2 * tile < left) multiply(sums[tile], now, block, C::steps(piece), 2 * tile + 1 < left);
        }
        keep_sums(sums, block, left);
        consumers_meet();
        end(first, left);
        consumers_meet();
    }
}
