// A tile of attention: 32 queries of one head, keys by 128. Two groups of warps take queries and four take keys; the
// sums of the key groups meet in shared memory.
#pragma once

#include "halves.cuh"

constexpr int HEAD = 64, KEYS = 128, KEY_GROUPS = 4;
constexpr u32 HEAD_PITCH = 2 * HEAD + 16;  // bytes
constexpr u32 QUERIES_AT = AREA_AT, KEYS_AT = QUERIES_AT + ROWS * HEAD_PITCH, VALUES_AT = KEYS_AT + KEYS * HEAD_PITCH;
constexpr u32 HEADS_PITCH = 4 * (HEAD + 8);  // bytes of a row of sums
constexpr u32 HEADS_AT = AREA_AT, PEAKS_AT = HEADS_AT + KEY_GROUPS * ROWS * HEADS_PITCH;
static_assert(VALUES_AT + KEYS * HEAD_PITCH <= AREA_AT + AREA_BYTES &&
              PEAKS_AT + 8 * KEY_GROUPS * ROWS <= AREA_AT + AREA_BYTES);

constexpr float LOG2_E = 1.4426950408889634f;

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xFF800000u); }

// The values that the masks of a stage add to the scores, times log2(e).
struct Mask {
    u64 address;  // of the row of query 0 of this head and sequence
    int pitch, keys, causal;
    float masked;

    __device__ float at(int query, int key) const {
        if (key >= keys || (causal && key > query)) return minus_infinity();
        if constexpr (MASK_KIND == NO_MASK) return 0.0f;
        const u64 place = static_cast<u64>(query) * pitch + key;
        if constexpr (MASK_KIND == BOOL_MASK)
            return reinterpret_cast<const unsigned char*>(address)[place] ? 0.0f : masked * LOG2_E;
        return unpack(reinterpret_cast<const unsigned short*>(address)[place]) * LOG2_E;
    }
};

// Online softmax of a warp's queries, for the rows lane / 4 and lane / 4 + 8.
struct Online {
    float peak[2], weight[2], sums[HEAD / 8][4];
};

__device__ __forceinline__ void score(float (&scores)[4][4], u32 shared, const u32 (&queries)[HEAD / 16][4],
                                      int group) {
    const int lane = threadIdx.x % 32, square = lane / 8, line = lane % 8;
    const u32 from = shared + KEYS_AT + (group * 32 + (square >> 1) * 8 + line) * HEAD_PITCH + (square & 1) * 16;
#pragma unroll
    for (int step = 0; step < HEAD / 16; ++step)
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            u32 keys[4];
            load_matrices_shared(from + pair * (16 * HEAD_PITCH) + step * 32, keys);
            multiply_m16n8k16(scores[2 * pair], queries[step], keys[0], keys[1]);
            multiply_m16n8k16(scores[2 * pair + 1], queries[step], keys[2], keys[3]);
        }
}

// Adds the warp's 32 keys to its state; `added`: values of the mask.
__device__ __forceinline__ void add_keys(Online& online, u32 shared, const u32 (&queries)[HEAD / 16][4],
                                         const float (&added)[4][4], float scale, int group) {
    const int lane = threadIdx.x % 32, square = lane / 8, line = lane % 8;
    float scores[4][4] = {};
    score(scores, shared, queries, group);
    float peak[2] = {online.peak[0], online.peak[1]};
#pragma unroll
    for (int eight = 0; eight < 4; ++eight)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            scores[eight][i] = fmaf(scores[eight][i], scale * LOG2_E, added[eight][i]);
            peak[i / 2] = fmaxf(peak[i / 2], scores[eight][i]);
        }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        peak[i] = fmaxf(peak[i], exchange_xor(peak[i], 1));
        peak[i] = fmaxf(peak[i], exchange_xor(peak[i], 2));
        const float finite = peak[i] == minus_infinity() ? 0.0f : peak[i],
                    shrink = power_of_two(online.peak[i] - finite);
        online.peak[i] = peak[i];
        online.weight[i] *= shrink;
#pragma unroll
        for (int eight = 0; eight < HEAD / 8; ++eight) {
            online.sums[eight][2 * i] *= shrink;
            online.sums[eight][2 * i + 1] *= shrink;
        }
#pragma unroll
        for (int eight = 0; eight < 4; ++eight)
#pragma unroll
            for (int k = 2 * i; k < 2 * i + 2; ++k) {
                scores[eight][k] = power_of_two(scores[eight][k] - finite);
                online.weight[i] += scores[eight][k];
            }
    }
    const u32 from = shared + VALUES_AT + (group * 32 + (square & 1) * 8 + line) * HEAD_PITCH + (square >> 1) * 16;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        const u32 weights[4] = {pack(scores[2 * step][0], scores[2 * step][1]),
                                pack(scores[2 * step][2], scores[2 * step][3]),
                                pack(scores[2 * step + 1][0], scores[2 * step + 1][1]),
                                pack(scores[2 * step + 1][2], scores[2 * step + 1][3])};
#pragma unroll
        for (int pair = 0; pair < HEAD / 16; ++pair) {
            u32 values[4];
            load_matrices_transposed_shared(from + step * (16 * HEAD_PITCH) + pair * 32, values);
            multiply_m16n8k16(online.sums[2 * pair], weights, values[0], values[1]);
            multiply_m16n8k16(online.sums[2 * pair + 1], weights, values[2], values[3]);
        }
    }
}

__device__ __forceinline__ void attention(const Arguments& arguments, u32 shared, u32 record, int number,
                                          bool& gave_up) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, side = warp % 2, group = warp / 2;
    const int row = TASK_S32(record, row), head = TASK_S32(record, column), begin = TASK_S32(record, part);
    const int length = STAGE_S32(record, keys), first = row - begin;  // query of the sequence
    const int pitch = STAGE_S32(record, activation_pitch), key_pitch = STAGE_S32(record, residual_pitch),
              out_pitch = STAGE_S32(record, out_pitch);
    const Place queries_from = STAGE_PLACE(record, activations), keys_from = STAGE_PLACE(record, key),
                values_from = STAGE_PLACE(record, value);
    const u64 out = STAGE_POINTER(record, out), wiped = STAGE_POINTER(record, out_wiped);
    const u64 keys_out = STAGE_POINTER(record, normalised),
              values_out = STAGE_POINTER(record, partials);  // copies, head by head, for the caller
    const int shared_by = STAGE_S32(record, splits), key_head = head / shared_by, causal = STAGE_S32(record, causal);
    const float scale = STAGE_F32(record, scale);
    Mask mask = {STAGE_POINTER(record, mask), STAGE_S32(record, mask_row), length, causal, STAGE_F32(record, masked)};
    const s64 place = static_cast<s64>(begin / length) * STAGE_S32(record, mask_batch) +
                      static_cast<s64>(head) * STAGE_S32(record, mask_head);
    mask.address += MASK_KIND == ADDED_MASK ? 2 * place : place;
    const int queries_end = length < first + ROWS ? length : first + ROWS;
    const int keys_end = causal ? queries_end : length;
    const int last_query = length - 1, query = first + side * 16 + lane / 4;

    delay(arguments, number, 0);
    Online online = {};
    online.peak[0] = online.peak[1] = minus_infinity();
    u32 queries[HEAD / 16][4];
#pragma unroll 1
    for (int from = 0; from < keys_end; from += KEYS) {
        const int mine = threadIdx.x / 8, eight = threadIdx.x % 8;
        const auto query_at = [&](int) {
            return queries_from.address + 2 * (static_cast<u64>(row + mine) * pitch + HEAD * head + 8 * eight);
        };
        const auto key_row = [&](int j) {
            return 2 * (static_cast<u64>(begin + from + mine + 32 * (j % 4)) * key_pitch + HEAD * key_head + 8 * eight);
        };
        const auto key_at = [&](int j) { return (j < 4 ? keys_from : values_from).address + key_row(j); };
        uint4 query_halves[1], loaded[8];  // keys, then values
        query_halves[0].x = query_halves[0].y = query_halves[0].z = query_halves[0].w = 0;
        if (from == 0 && first + mine < length) query_halves[0] = load_matrix<uint4>(query_at(0));
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            loaded[j].x = loaded[j].y = loaded[j].z = loaded[j].w = 0;
            if (from + mine + 32 * (j % 4) < keys_end) loaded[j] = load_matrix<uint4>(key_at(j));
        }
        float added[4][4];
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int q = query + i / 2 * 8;
                added[k][i] =
                    mask.at(q < last_query ? q : last_query, from + group * 32 + k * 8 + lane % 4 * 2 + i % 2);
            }
        if (queries_from.between) complete(arguments, record, query_halves, gave_up, query_at);
        if (keys_from.between) complete(arguments, record, loaded, gave_up, key_at);
        if (from > 0) meet_consumers();  // no warp reads the keys before these
        if (from == 0) store_shared_u32x4(shared + QUERIES_AT + mine * HEAD_PITCH + 16 * eight, query_halves[0]);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            store_shared_u32x4(shared + KEYS_AT + (mine + 32 * j) * HEAD_PITCH + 16 * eight, loaded[j]);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            store_shared_u32x4(shared + VALUES_AT + (mine + 32 * j) * HEAD_PITCH + 16 * eight, loaded[4 + j]);
        if (keys_out != 0 && head % shared_by == 0)
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const int key = from + mine + 32 * (j % 4);
                const u64 place =
                    (static_cast<u64>(begin / length * (STAGE_S32(record, columns) / shared_by) + key_head) * length +
                     key) *
                        HEAD +
                    8 * eight;
                if (key >= first && key < queries_end)
                    store_relaxed_gpu_u32x4(reinterpret_cast<void*>((j < 4 ? keys_out : values_out) + 2 * place),
                                            loaded[j]);
            }
        meet_consumers();
        if (from == 0) stamp(arguments, number, 1);
        if (from == 0)
#pragma unroll
            for (int step = 0; step < HEAD / 16; ++step)
                load_matrices_shared(
                    shared + QUERIES_AT + (side * 16 + lane % 16) * HEAD_PITCH + lane / 16 * 16 + step * 32,
                    queries[step]);
        if (from + group * 32 < keys_end) add_keys(online, shared, queries, added, scale, group);
    }
    stamp(arguments, number, 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        online.weight[i] += exchange_xor(online.weight[i], 1);
        online.weight[i] += exchange_xor(online.weight[i], 2);
    }
    meet_consumers();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int mine = group * ROWS + side * 16 + i * 8 + lane / 4;
        if (lane % 4 == 0) store_shared_f32x2(shared + PEAKS_AT + 8 * mine, online.peak[i], online.weight[i]);
#pragma unroll
        for (int eight = 0; eight < HEAD / 8; ++eight)
            store_shared_f32x2(shared + HEADS_AT + mine * HEADS_PITCH + 4 * (8 * eight + lane % 4 * 2),
                               online.sums[eight][2 * i], online.sums[eight][2 * i + 1]);
    }
    meet_consumers();
    const int mine = threadIdx.x / 8, eight = threadIdx.x % 8;
    if (first + mine >= length) return;
    float peak = minus_infinity(), total = 0.0f;
    for (int k = 0; k < KEY_GROUPS; ++k) peak = fmaxf(peak, load_shared_f32(shared + PEAKS_AT + 8 * (k * ROWS + mine)));
    if (peak == minus_infinity()) peak = 0.0f;
    Eight result = {};
#pragma unroll 1
    for (int k = 0; k < KEY_GROUPS; ++k) {
        const u32 at = k * ROWS + mine, from = shared + HEADS_AT + at * HEADS_PITCH + 32 * eight;
        const float grow = power_of_two(load_shared_f32(shared + PEAKS_AT + 8 * at) - peak);
        total = fmaf(load_shared_f32(shared + PEAKS_AT + 8 * at + 4), grow, total);
        const float4 left = load_shared_f32x4(from), right = load_shared_f32x4(from + 16);
        const float parts[8] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) result.v[i] = fmaf(parts[i], grow, result.v[i]);
    }
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) result.v[i] *= inverse;
    store_matrix(out, wiped, 2 * (static_cast<u64>(row + mine) * out_pitch + HEAD * head + 8 * eight), packed(result));
}
