// Rows between products: parts of sums are added up in order, with the residual, and normalised. A block has whole
// rows.
#pragma once

#include "loads.cuh"

constexpr int ROW_VECTORS = HIDDEN / 4,
              MINE = (ROW_VECTORS + CONSUMERS - 1) / CONSUMERS;  // vectors of four columns of a row per thread

// A thread's columns of a row: two pairs per vector, in words of two halves.
struct Columns {
    u32 words[MINE][2];

    __device__ static bool has(const Block& block, int i) {
        return static_cast<int>(block.thread) + i * CONSUMERS < ROW_VECTORS;
    }

    __device__ static int first(const Block& block, int i) {
        const int vector = block.thread + i * CONSUMERS;
        return vector / 4 * 16 + vector % 4 * 2;
    }

    __device__ void load(const Block& block, const u16* row) {
#pragma unroll
        for (int i = 0; i < MINE; ++i)
#pragma unroll
            for (int pair = 0; pair < 2; ++pair)
                words[i][pair] = has(block, i) ? load_global_u32(row + first(block, i) + 8 * pair) : 0;
    }

    __device__ void store(const Block& block, u16* row) const {
#pragma unroll
        for (int i = 0; i < MINE; ++i)
#pragma unroll
            for (int pair = 0; pair < 2; ++pair)
                if (has(block, i)) store_global_u32(row + first(block, i) + 8 * pair, words[i][pair]);
    }
};

// An RMS norm: rounded where PyTorch rounds.
__device__ __forceinline__ void normalise(const Block& block, Columns& columns, const Columns& scale) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < MINE; ++i)
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            const float one = low(columns.words[i][pair]), two = high(columns.words[i][pair]);
            squares += one * one + two * two;
        }
#pragma unroll
    for (u32 mask = 16; mask > 0; mask /= 2) squares += exchange_xor(squares, mask);
    if (block.lane == 0) store_shared_f32(block.shared + SQUARES_AT + 4 * block.warp, squares);
    consumers_meet();
    float total = 0.0f;
#pragma unroll
    for (int warp = 0; warp < CONSUMER_WARPS; ++warp) total += load_shared_f32(block.shared + SQUARES_AT + 4 * warp);
    const float factor = rsqrtf(total * (1.0f / HIDDEN) + EPSILON);
#pragma unroll
    for (int i = 0; i < MINE; ++i)
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            u32& word = columns.words[i][pair];
            const u32 by = scale.words[i][pair];
            word = pack(low(by) * rounded(low(word) * factor), high(by) * rounded(high(word) * factor));
        }
}

__device__ __forceinline__ u16* row_at(const Block& block, long long matrix, int row) {
    return reinterpret_cast<u16*>(block.at(matrix)) + static_cast<long long>(row) * HIDDEN;
}

// The rows that enter the first layer.
__device__ __forceinline__ void embed(const Block& block) {
    for_spread<ROWS>([&](int row) {
        Columns x, scale;
        x.load(block, block.p.embedding + block.p.tokens[row] * HIDDEN);
        scale.load(block, block.p.layers[0].norm);
        x.store(block, row_at(block, RESIDUAL_AT, row));
        normalise(block, x, scale);
        x.store(block, row_at(block, NORMED_AT, row));
        post(block, STAGE_EMBEDDING, NORMED_FLAGS + row);
    });
}

// Adds a product to the residual, and normalises the result for the next.
template <class P>
__device__ __forceinline__ void finish_rows(const Block& block, int stage, int parts, const u16* norm, long long to,
                                            int flags) {
    for_spread<ROWS>([&](int row) {
        Columns x, scale;
        x.load(block, row_at(block, RESIDUAL_AT, row));
        scale.load(block, norm);
        uint4 v[MINE * P::SPLITS];
        const auto index = [&](int i) {
            return parts + Parts<P>::at(i % P::SPLITS, row, 0, 0) + static_cast<int>(block.thread) +
                   i / P::SPLITS * CONSUMERS;
        };
        stamp(block, stage, 0);
#pragma unroll
        for (int i = 0; i < MINE * P::SPLITS; ++i) {
            v[i].x = v[i].y = v[i].z = v[i].w = 0;
            if (Columns::has(block, i / P::SPLITS)) v[i] = load_part(block, index(i));
        }
        arrive(v, block, stage, index);
        stamp(block, stage, 1);
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            float sums[4] = {};
#pragma unroll
            for (int split = 0; split < P::SPLITS; ++split) {
                const uint4& part = v[i * P::SPLITS + split];
                sums[0] += __uint_as_float(part.x), sums[1] += __uint_as_float(part.y),
                    sums[2] += __uint_as_float(part.z), sums[3] += __uint_as_float(part.w);
            }
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {
                u32& word = x.words[i][pair];
                word = pack(low(word) + rounded(sums[2 * pair]), high(word) + rounded(sums[2 * pair + 1]));
            }
        }
        x.store(block, row_at(block, RESIDUAL_AT, row));
        normalise(block, x, scale);
        stamp(block, stage, 2);
        x.store(block, row_at(block, to, row));
        post(block, stage, flags + row);
        stamp(block, stage, 3);
    });
}
