// Products of up to eight tokens' activations with streamed weights: the warps share the columns, add up in shared
// memory, finish, and pass the result on.
#pragma once

#include "common.cuh"

// Columns of activations that a thread multiplies in a piece: eight for each of four steps of its warp, of token lane
// / 4.
constexpr int STEPS = PIECE / STEP / WARPS;

template <int K>
struct Columns {
    static constexpr int PIECES = (K + PIECE - 1) / PIECE;
    static constexpr int TAIL = (K - (PIECES - 1) * PIECE) / STEP;  // steps of the last piece
    static_assert(K % STEP == 0, "columns in whole steps");

    // Steps of a piece, a constant where all pieces are whole.
    __device__ static int steps(int piece) { return TAIL == PIECE / STEP || piece + 1 < PIECES ? PIECE / STEP : TAIL; }

    __device__ static bool has(const Block& block, int piece, int step) {
        return step * WARPS + static_cast<int>(block.warp) < steps(piece);
    }

    __device__ static int first(const Block& block, int piece, int step) {
        return piece * PIECE + (step * WARPS + block.warp) * STEP + block.lane % 4 * 8;
    }
};

// Sums of a tile of 16 rows, in two chains that do not wait for each other.
struct Sums {
    float even[4] = {}, odd[4] = {};
};

__device__ __forceinline__ void load_rows(uint4 (&rows)[STEPS], const Block& block, Ring<SLOTS> at, int steps) {
    const u32 from = block.shared + at.slot * SLOT_BYTES + block.lane / 4 * ROW_BYTES + block.warp * (2 * STEP) +
                     block.lane % 4 * 16;
    wait_local(block.shared + FULL_AT + 8 * at.slot, at.turn);
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
        rows[step] = step * WARPS + static_cast<int>(block.warp) < steps
                         ? load_shared_u32x4(from + step * (2 * STEP * WARPS))
                         : make_uint4(0, 0, 0, 0);
}

// One piece of a tile of 16 rows, or of 8: one or two slots.
__device__ __forceinline__ void multiply(Sums& sums, const uint4 (&b)[STEPS], Block& block, int steps, bool two) {
    uint4 above[STEPS], below[STEPS];
    const Ring<SLOTS> first = block.ring;
    load_rows(above, block, first, steps);
    block.ring.advance();
    const Ring<SLOTS> second = block.ring;
    if (two) {
        load_rows(below, block, second, steps);
        block.ring.advance();
    } else {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) below[step] = make_uint4(0, 0, 0, 0);
    }
    __syncwarp();
    if (block.lane == 0) {
        mbarrier_arrive_release_cta(block.shared + FREE_AT + 8 * first.slot);
        if (two) mbarrier_arrive_release_cta(block.shared + FREE_AT + 8 * second.slot);
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        multiply_add_16x8x16(sums.even, above[step].x, below[step].x, above[step].y, below[step].y, b[step].x,
                             b[step].y);
        multiply_add_16x8x16(sums.odd, above[step].z, below[step].z, above[step].w, below[step].w, b[step].z,
                             b[step].w);
    }
}

__device__ __forceinline__ u32 scratch_at(const Block& block, int warp, int tile, int row, int token) {
    return block.shared + SCRATCH_AT + 4 * (((warp * TILES + tile) * 16 + row) * BATCH + token);
}

// Writes this warp's sums of a tile to scratch.
__device__ __forceinline__ void keep_sums(const Sums& sums, const Block& block, int tile) {
    const int row = block.lane / 4, token = block.lane % 4 * 2;
#pragma unroll
    for (int next = 0; next < 2; ++next)
        if (token + next < BATCH) {
            store_shared_f32(scratch_at(block, block.warp, tile, row, token + next), sums.even[next] + sums.odd[next]);
            store_shared_f32(scratch_at(block, block.warp, tile, row + 8, token + next),
                             sums.even[2 + next] + sums.odd[2 + next]);
        }
}

// Returns the sum of a row of a tile over all warps, always in the same order.
__device__ __forceinline__ float added(const Block& block, int tile, int row, int token) {
    float part[WARPS];
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) part[warp] = load_shared_f32(scratch_at(block, warp, tile, row, token));
    return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

// A word of a product's result: two neighbouring rows of a group, for a token.
struct Word {
    int group, pair, token;  // the group counts from the first of those that are finished together

    __device__ explicit Word(int number) : group(number / (4 * BATCH)), pair(number % 4), token(number / 4 % BATCH) {}
};

// Activations that are normalised first and stay in registers for the whole stage.
template <int K>
struct Normalised {
    static constexpr int PIECES = Columns<K>::PIECES;
    static constexpr int VECTORS = 32 * SQUARES;  // units of eight columns per token, in whole warps
    static constexpr int MINE = (BATCH * VECTORS + CONSUMERS - 1) / CONSUMERS;
    uint4 held[PIECES][STEPS];

    // `rows(token)`: the address of a token's activations. They may still be absent if `handed`.
    template <class Rows>
    __device__ void load(Block& block, int stage, const u16* norm, bool handed, Rows&& rows) {
        uint4 v[MINE], scale[MINE];
        auto token = [&](int i) { return static_cast<int>(block.thread + i * CONSUMERS) / VECTORS; };
        auto column = [&](int i) { return static_cast<int>(block.thread + i * CONSUMERS) % VECTORS * 8; };
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            const bool has = token(i) < BATCH && column(i) < K;
            v[i] = has ? make_uint4(ABSENT, ABSENT, ABSENT, ABSENT) : make_uint4(0, 0, 0, 0);
            scale[i] = has ? *reinterpret_cast<const uint4*>(norm + column(i)) : make_uint4(0, 0, 0, 0);
        }
        stamp(block, stage, 0);
        if (handed) {
            arrive(v, block, stage, [&](int i) { return rows(token(i)) + column(i); });
        } else {
#pragma unroll
            for (int i = 0; i < MINE; ++i)
                if (token(i) < BATCH && column(i) < K)
                    v[i] = *reinterpret_cast<const uint4*>(rows(token(i)) + column(i));
        }
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            float x[8], squares = 0.0f;
            widen(x, v[i]);
#pragma unroll
            for (int j = 0; j < 8; ++j) squares += x[j] * x[j];
#pragma unroll
            for (int other = 1; other < 32; other *= 2) squares += __shfl_xor_sync(~0u, squares, other);
            if (block.lane == 0 && token(i) < BATCH)
                store_shared_f32(block.shared + SQUARES_AT + 4 * (block.warp + i * WARPS), squares);
        }
        consumers_meet();
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            if (token(i) >= BATCH || column(i) >= K) continue;
            float x[8], w[8], total = 0.0f;
#pragma unroll
            for (int part = 0; part < SQUARES; ++part)
                total += load_shared_f32(block.shared + SQUARES_AT + 4 * (token(i) * SQUARES + part));
            const float factor = rsqrtf(total * (1.0f / K) + EPSILON);
            widen(x, v[i]);
            widen(w, scale[i]);
#pragma unroll
            for (int j = 0; j < 8; ++j) x[j] = w[j] * rounded(x[j] * factor);
            store_shared_u32x4(block.shared + SCRATCH_AT + token(i) * ACTIVATION_BYTES + 2 * column(i), narrow(x));
        }
        consumers_meet();
        const u32 from = block.shared + SCRATCH_AT + block.lane / 4 * ACTIVATION_BYTES;
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece)
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
                held[piece][step] = static_cast<int>(block.lane) / 4 < BATCH && Columns<K>::has(block, piece, step)
                                        ? load_shared_u32x4(from + 2 * Columns<K>::first(block, piece, step))
                                        : make_uint4(0, 0, 0, 0);
        consumers_meet();
        stamp(block, stage, 1);
    }
};

// Calls finish(tile, first group, lane) in one warp per tile of two groups, as soon as all warps have their sums of
// it, which `added` then returns. The other warps continue.
template <int K, class Finish>
__device__ __forceinline__ void product_of_normalised(const Normalised<K>& activations, Block& block, int groups,
                                                      Finish&& finish) {
    static_assert(
        SLOTS < 2 * TILES,
        "the ring keeps warps from being a round of tiles apart, so that sums are not overwritten before they "
        "are added up");
#pragma unroll 1
    for (int tile = 0; 2 * tile < groups; ++tile) {
        const u32 place = tile % TILES, barrier = FIRST_BARRIER + place;
        Sums sums;
#pragma unroll
        for (int piece = 0; piece < Columns<K>::PIECES; ++piece)
            multiply(sums, activations.held[piece], block, Columns<K>::steps(piece), 2 * tile + 1 < groups);
        keep_sums(sums, block, place);
        if (block.warp == place) {
            barrier_wait(barrier, CONSUMERS);
            finish(place, 2 * tile);
        } else {
            barrier_arrive(barrier, CONSUMERS);
        }
    }
    consumers_meet();
}

// Another product of normalised activations, with dynamic tiles: the stream says which groups it has put into the
// ring. Calls end(tiles), whose groups `group_of` then returns.
template <int K, class End>
__device__ __forceinline__ void product_of_coming(const Normalised<K>& activations, Block& block, int groups,
                                                  End&& end) {
    for (bool more = true; more;) {
        int tiles = 0;
#pragma unroll 1
        for (; tiles < TILES; ++tiles) {
            wait_local(block.shared + FULL_AT + 8 * block.ring.slot, block.ring.turn);
            const int group = load_shared_s32(block.shared + GROUPS_AT + 4 * block.ring.slot);
            more = group >= 0;
            if (!more) break;
            if (block.thread == 0) store_shared_s32(block.shared + TILES_AT + 4 * tiles, group);
            Sums sums;
#pragma unroll
            for (int piece = 0; piece < Columns<K>::PIECES; ++piece)
                multiply(sums, activations.held[piece], block, Columns<K>::steps(piece), group + 1 < groups);
            keep_sums(sums, block, tiles);
        }
        consumers_meet();
        end(tiles);
        consumers_meet();
    }
}

__device__ __forceinline__ int group_of(const Block& block, int tile, int half) {
    return load_shared_s32(block.shared + TILES_AT + 4 * tile) + half;
}

// Calls end(first, groups) for at most 2 * TILES_HELD groups at a time. Activations are loaded piece by piece as they
// were passed on, two pieces ahead.
template <int K, class End>
__device__ __forceinline__ void product_of_handed(Block& block, int stage, const u32* from, int groups, End&& end) {
    using C = Columns<K>;
    constexpr int AHEAD = 2;
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
    for (int first = 0; first < groups; first += 2 * TILES_HELD) {
        const int left = groups - first < 2 * TILES_HELD ? groups - first : 2 * TILES_HELD;
        Sums sums[TILES_HELD];
        uint4 next[AHEAD][STEPS];
        stamp(block, stage, 0);
#pragma unroll
        for (int ahead = 0; ahead < AHEAD; ++ahead)
            if (ahead < C::PIECES) request(next[ahead], ahead);
#pragma unroll 1
        for (int begin = 0; begin < C::PIECES; begin += AHEAD) {
#pragma unroll
            for (int ahead = 0; ahead < AHEAD; ++ahead) {
                const int piece = begin + ahead;
                if (piece >= C::PIECES) break;
                uint4 now[STEPS];
                arrive(next[ahead], block, stage, [&](int step) { return address(piece, step); });
                if (piece == 0) stamp(block, stage, 1);
#pragma unroll
                for (int step = 0; step < STEPS; ++step) now[step] = next[ahead][step];
                if (piece + AHEAD < C::PIECES) request(next[ahead], piece + AHEAD);
#pragma unroll
                for (int tile = 0; tile < TILES_HELD; ++tile)
                    if (2 * tile < left) multiply(sums[tile], now, block, C::steps(piece), 2 * tile + 1 < left);
            }
        }
#pragma unroll
        for (int tile = 0; tile < TILES_HELD; ++tile)
            if (2 * tile < left) keep_sums(sums[tile], block, tile);
        consumers_meet();
        end(first, left);
        consumers_meet();
    }
}
