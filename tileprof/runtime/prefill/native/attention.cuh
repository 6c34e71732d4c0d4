// A task of attention: 32 queries of one head and all keys that they attend to. Parts of queries, keys and values are
// added up, rotated, and multiplied from shared memory.
#pragma once

#include "product.cuh"

constexpr float LOG2_E = 1.4426950408889634f;
constexpr int PAIRED = HEAD_DIM / 32;  // groups of 16 columns in half a head: rotation pairs column c with c + 32

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xFF800000u); }

// Four columns of a row of a head and the four columns half a head later, rounded: columns 16 p + 2 q, + 1, + 8, + 9.
struct Eight {
    float v[2][4];
};

// Loads of the parts of a row of a head: `column` is the first one of the head in the product. Sums are added in the
// order of the splits.
struct Loading {
    uint4 v[2 * Qkv::SPLITS];
    int first = 0;

    __device__ int index(int i) const { return first + i / 2 * (ROWS * Parts<Qkv>::ROW) + i % 2 * (4 * PAIRED); }

    __device__ void begin(const Block& block, int row, int column, int p, int q, bool when) {
        first = block.qkv_parts(0) + Parts<Qkv>::at(0, row, column / 16 + p, q);
#pragma unroll
        for (int i = 0; i < 2 * Qkv::SPLITS; ++i) {
            v[i].x = v[i].y = v[i].z = v[i].w = 0;
            if (when) v[i] = load_part(block, index(i));
        }
    }

    __device__ Eight end(const Block& block) {
        arrive(v, block, STAGE_ATTENTION, [&](int i) { return index(i); });
        Eight sums = {};
#pragma unroll
        for (int i = 0; i < 2 * Qkv::SPLITS; ++i) {
            float (&to)[4] = sums.v[i % 2];
            to[0] += __uint_as_float(v[i].x), to[1] += __uint_as_float(v[i].y), to[2] += __uint_as_float(v[i].z),
                to[3] += __uint_as_float(v[i].w);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) sums.v[i / 4][i % 4] = rounded(sums.v[i / 4][i % 4]);
        return sums;
    }
};

// Words of two halves of `eight`: half a head, then which pair.
struct Words {
    u32 w[2][2];
};

__device__ __forceinline__ Words packed(const Eight& e) {
    Words words;
#pragma unroll
    for (int half = 0; half < 2; ++half)
        words.w[half][0] = pack(e.v[half][0], e.v[half][1]), words.w[half][1] = pack(e.v[half][2], e.v[half][3]);
    return words;
}

// The rotary tables of a row at the columns of an `Eight`: cosines, then sines.
struct Angles {
    u32 words[2][2][2];

    __device__ Angles(const Block& block, int row, int p, int q) {
        const long long from =
            row / LENGTH * block.p.rotary_step + static_cast<long long>(row % LENGTH) * HEAD_DIM + 16 * p + 2 * q;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            words[0][i / 2][i % 2] =
                row < ROWS ? load_global_u32(block.p.cosine + from + 32 * (i / 2) + 8 * (i % 2)) : 0;
            words[1][i / 2][i % 2] = row < ROWS ? load_global_u32(block.p.sine + from + 32 * (i / 2) + 8 * (i % 2)) : 0;
        }
    }
};

// The rotary embedding of a row, rounded where PyTorch rounds.
__device__ __forceinline__ Eight rotated(const Eight& x, const Angles& angles) {
    Eight turned;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 cosine = angles.words[0][half][i / 2], sine = angles.words[1][half][i / 2];
            const float other = half ? x.v[0][i] : -x.v[1][i], c = i % 2 ? high(cosine) : low(cosine),
                        s = i % 2 ? high(sine) : low(sine);
            turned.v[half][i] = rounded(x.v[half][i] * c) + rounded(other * s);
        }
    return turned;
}

__device__ __forceinline__ void store_words(u32 address, const Words& words) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int pair = 0; pair < 2; ++pair)
            store_shared_s32(address + 64 * half + 16 * pair, static_cast<s32>(words.w[half][pair]));
}

// A row for the caller's cache.
__device__ __forceinline__ void keep_words(u16* row, const Words& words) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) store_global_u32(row + 32 * half + 8 * pair, words.w[half][pair]);
}

// Loads queries, keys and values of a task into shared memory, with zeros where there are none. Rows of keys of this
// task's queries also go to the caller's cache, once per key head.
__device__ __forceinline__ void load_heads(const Block& block, const Layer& layer, int head, int first, int keys) {
    constexpr int ITEMS = 4 * PAIRED, STEP = CONSUMERS / ITEMS;  // threads that load a row
    const int key_head = head / SHARERS, item = block.thread % ITEMS, p = item / 4, q = item % 4;
    const u32 to = block.shared + 2 * (16 * p + 2 * q);
#pragma unroll 1
    for (int row = block.thread / ITEMS; row < TILE_ROWS; row += STEP) {
        const bool asks = row < QUERIES && first + row < ROWS;
        const Angles angles(block, row, p, q), of_query(block, row < QUERIES ? first + row : ROWS, p, q);
        Loading key, value, query;
        key.begin(block, row, QUERY + key_head * HEAD_DIM, p, q, row < keys);
        value.begin(block, row, QUERY + KEY + key_head * HEAD_DIM, p, q, row < keys);
        query.begin(block, first + row, head * HEAD_DIM, p, q, asks);
        const Words k = packed(rotated(key.end(block), angles)),
                    v = packed(value.end(block));  // zeros behind the last key
        store_words(to + KEYS_AT + row * HEAD_PITCH, k);
        store_words(to + VALUES_AT + row * HEAD_PITCH, v);
        if (row < QUERIES) store_words(to + QUERIES_AT + row * HEAD_PITCH, packed(rotated(query.end(block), of_query)));
        if (layer.keys == nullptr || head % SHARERS != 0 || row < first || row >= keys) continue;
        const long long place =
            (static_cast<long long>(row / LENGTH * KV_HEADS + key_head) * CACHE + row % LENGTH) * HEAD_DIM + 16 * p +
            2 * q;
        keep_words(layer.keys + place, k);
        keep_words(layer.values + place, v);
    }
}

// Sixteen queries of a warp and all keys.
__device__ __forceinline__ void score(float (&scores)[TILE_ROWS / 8][4], const Block& block, int side) {
    const int square = block.lane / 8, line = block.lane % 8;
    const u32 from = block.shared + KEYS_AT + ((square >> 1) * 8 + line) * HEAD_PITCH + (square & 1) * 16;
    const u32 queries_from =
        block.shared + QUERIES_AT + (side * 16 + block.lane % 16) * HEAD_PITCH + block.lane / 16 * 16;
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; ++step) {
        u32 queries[4];
        load_matrices_shared(queries_from + step * 32, queries);
#pragma unroll
        for (int pair = 0; pair < TILE_ROWS / 16; ++pair) {
            u32 keys[4];
            load_matrices_shared(from + pair * (16 * HEAD_PITCH) + step * 32, keys);
            multiply_m16n8k16(scores[2 * pair], queries, keys[0], keys[1]);
            multiply_m16n8k16(scores[2 * pair + 1], queries, keys[2], keys[3]);
        }
    }
}

// Softmax of scores, without the division; returns the sum of the weights of rows lane / 4 and lane / 4 + 8. `query`:
// the row of the first.
__device__ __forceinline__ float2 weigh(float (&scores)[TILE_ROWS / 8][4], const Block& block, int query) {
    float peak[2] = {minus_infinity(), minus_infinity()}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int eight = 0; eight < TILE_ROWS / 8; ++eight)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int key = 8 * eight + block.lane % 4 * 2 + i % 2, row = query + i / 2 * 8;
            const bool seen = key <= row && key / LENGTH == row / LENGTH;
            scores[eight][i] = seen ? scores[eight][i] * (SCALE * LOG2_E) : minus_infinity();
            peak[i / 2] = fmaxf(peak[i / 2], scores[eight][i]);
        }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (u32 mask = 1; mask < 4; mask *= 2) peak[half] = fmaxf(peak[half], exchange_xor(peak[half], mask));
#pragma unroll
    for (int eight = 0; eight < TILE_ROWS / 8; ++eight)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            scores[eight][i] = power_of_two(scores[eight][i] - peak[i / 2]);
            total[i / 2] += scores[eight][i];
        }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (u32 mask = 1; mask < 4; mask *= 2) total[half] += exchange_xor(total[half], mask);
    float2 sums;
    sums.x = total[0], sums.y = total[1];
    return sums;
}

// Each warp: sixteen queries and sixteen of the head's columns.
__device__ __forceinline__ void attend_task(const Block& block, const Layer& layer, int head, int part) {
    const int first = part * QUERIES, keys = first + QUERIES < ROWS ? first + QUERIES : ROWS;
    stamp(block, STAGE_ATTENTION, 0);
    load_heads(block, layer, head, first, keys);
    consumers_meet();
    stamp(block, STAGE_ATTENTION, 1);
    const int side = block.warp % 2, columns = block.warp / 2 * 16, query = first + side * 16 + block.lane / 4;
    float scores[TILE_ROWS / 8][4] = {}, sums[2][4] = {};
    score(scores, block, side);
    const float2 total = weigh(scores, block, query);
    const int square = block.lane / 8, line = block.lane % 8;
    const u32 from =
        block.shared + VALUES_AT + ((square & 1) * 8 + line) * HEAD_PITCH + (square >> 1) * 16 + 2 * columns;
#pragma unroll
    for (int step = 0; step < TILE_ROWS / 16; ++step) {
        const float (&left)[4] = scores[2 * step];
        const float (&right)[4] = scores[2 * step + 1];
        const u32 weights[4] = {pack(left[0], left[1]), pack(left[2], left[3]), pack(right[0], right[1]),
                                pack(right[2], right[3])};
        u32 values[4];
        load_matrices_transposed_shared(from + step * (16 * HEAD_PITCH), values);
        multiply_m16n8k16(sums[0], weights, values[0], values[1]);
        multiply_m16n8k16(sums[1], weights, values[2], values[3]);
    }
    u16* const out = reinterpret_cast<u16*>(block.at(ATTENDED_AT)) + head * HEAD_DIM + columns + block.lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = query + 8 * half;
        const float weight = half ? total.y : total.x;
        if (row < ROWS)
#pragma unroll
            for (int eight = 0; eight < 2; ++eight)
                store_global_u32(
                    out + static_cast<long long>(row) * QUERY + 8 * eight,
                    pack(__fdividef(sums[eight][2 * half], weight), __fdividef(sums[eight][2 * half + 1], weight)));
    }
    stamp(block, STAGE_ATTENTION, 2);
    post(block, STAGE_ATTENTION, ATTENDED_FLAGS + head * QUERY_TASKS + part);
    stamp(block, STAGE_ATTENTION, 3);
}

__device__ __forceinline__ void attend(const Block& block, const Layer& layer) {
    for_spread<HEADS * QUERY_TASKS>([&](int task) { attend_task(block, layer, task % HEADS, task / HEADS); });
}
