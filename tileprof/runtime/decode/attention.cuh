// Attention of one new token per sequence: rotary embedding, append to the cache, chunks of the context by warps, then over chunks.
#pragma once

#include "product.cuh"

constexpr int KEY_LANES = HEAD_DIM / 8;  // that share a position's key: eight columns each
constexpr int TOGETHER = 32 / KEY_LANES;  // positions that a warp scores at a time
constexpr int VALUE_COLUMNS = HEAD_DIM / 32;  // that a lane adds up
constexpr int NEWEST = SHARERS + 1;  // heads whose rotation a warp may need: queries, and the new key
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float MASKED = -65504.0f;

// A head's columns that this lane holds, and those that rotate into them.
struct Turned {
    float own[8], partner[8];
};

template <bool NORM>
__device__ __forceinline__ void head_norm(Turned& x, const u16* weight, int column) {
    if constexpr (NORM) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) squares += x.own[i] * x.own[i];
#pragma unroll
        for (int other = 1; other < KEY_LANES; other *= 2) squares += __shfl_xor_sync(~0u, squares, other);
        const float factor = rsqrtf(squares * (1.0f / HEAD_DIM) + EPSILON);
        const int partner = (column + HEAD_DIM / 2) % HEAD_DIM;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            x.own[i] = rounded(unpack(weight[column + i]) * rounded(x.own[i] * factor));
            x.partner[i] = rounded(unpack(weight[partner + i]) * rounded(x.partner[i] * factor));
        }
    }
}

// Rotated as the model does it, with its roundings.
__device__ __forceinline__ void rotate(float (&to)[8], const Turned& x, const float (&cosine)[8], const float (&sine)[8], bool first_half) {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = rounded(rounded(x.own[i] * cosine[i]) + rounded((first_half ? -x.partner[i] : x.partner[i]) * sine[i]));
}

__device__ __forceinline__ float dot8(const float (&a)[8], const float (&b)[8]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += a[i] * b[i];
    return sum;
}

// Softmax so far of a warp's positions: `weight` counts the positions that this lane scored.
struct Online {
    float largest[SHARERS], weight[SHARERS], sums[SHARERS][VALUE_COLUMNS];
};

__device__ __forceinline__ void values_of(float (&v)[VALUE_COLUMNS], u32 address) {
#pragma unroll
    for (int i = 0; i < VALUE_COLUMNS; i += 2) {
        const u32 two = static_cast<u32>(load_shared_s32(address + 2 * i));
        v[i] = low(two), v[i + 1] = high(two);
    }
}

// Keys and values of a slot with `count` positions from `begin` on.
__device__ __forceinline__ void attend_slot(Online& online, const Block& block, const float (&queries)[SHARERS][8], int sequence, int begin, int count, s64 newest) {
    const u32 at = block.shared + block.ring.slot * SLOT_BYTES, values = at + 2 * HEAD_DIM * SLOT_POSITIONS;
    const int lane = block.lane % KEY_LANES, which = block.lane / KEY_LANES;
#pragma unroll 1
    for (int first = block.warp * TOGETHER; first < count; first += WARPS * TOGETHER) {
        const int position = first + which;
        const bool there = position < count && begin + position != newest;
        float key[8], scores[SHARERS];
        widen(key, there ? load_shared_u32x4(at + position * (2 * HEAD_DIM) + lane * 16) : make_uint4(0, 0, 0, 0));
        const bool masked = WITH_MASK && there && block.p.mask[sequence * block.p.mask_step + begin + position] == 0;
#pragma unroll
        for (int head = 0; head < SHARERS; ++head) {
            float score = dot8(queries[head], key);
#pragma unroll
            for (int other = 1; other < KEY_LANES; other *= 2) score += __shfl_xor_sync(~0u, score, other);
            scores[head] = !there ? -INFINITY : (masked ? score + MASKED * LOG2_E : score);
            float top = scores[head];
#pragma unroll
            for (int other = KEY_LANES; other < 32; other *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, other));
            top = fmaxf(top, online.largest[head]);
            const float zero = top == -INFINITY ? 0.0f : top;
            const float old = exp2f(online.largest[head] - zero);
            scores[head] = exp2f(scores[head] - zero);
            online.largest[head] = top;
            online.weight[head] = online.weight[head] * old + scores[head];
#pragma unroll
            for (int i = 0; i < VALUE_COLUMNS; ++i) online.sums[head][i] *= old;
        }
#pragma unroll
        for (int other = 0; other < TOGETHER; ++other) {
            if (first + other >= count || begin + first + other == newest) continue;
            float value[VALUE_COLUMNS];
            values_of(value, values + (first + other) * (2 * HEAD_DIM) + block.lane * (2 * VALUE_COLUMNS));
#pragma unroll
            for (int head = 0; head < SHARERS; ++head) {
                const float share = __shfl_sync(~0u, scores[head], other * KEY_LANES);
#pragma unroll
                for (int i = 0; i < VALUE_COLUMNS; ++i) online.sums[head][i] += share * value[i];
            }
        }
    }
}

__device__ __forceinline__ u32 heads_scratch(const Block& block, int warp, int head, int word) {
    return block.shared + SCRATCH_AT + 4 * ((warp * SHARERS + head) * PARTIAL + word);
}

// The warps' parts of a chunk, added up: for an even column of a head, two columns, the largest score and the sum of weights.
struct Added {
    float first, second, largest, weight;
};

__device__ __forceinline__ Added added_warps(const Block& block, int head, int column) {
    Added sum = {0.0f, 0.0f, -INFINITY, 0.0f};
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) sum.largest = fmaxf(sum.largest, load_shared_f32(heads_scratch(block, warp, head, HEAD_DIM)));
    const float zero = sum.largest == -INFINITY ? 0.0f : sum.largest;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) {
        const float share = exp2f(load_shared_f32(heads_scratch(block, warp, head, HEAD_DIM)) - zero);
        sum.weight += share * load_shared_f32(heads_scratch(block, warp, head, HEAD_DIM + 1));
        sum.first += share * load_shared_f32(heads_scratch(block, warp, head, column));
        sum.second += share * load_shared_f32(heads_scratch(block, warp, head, column + 1));
    }
    return sum;
}

__device__ __forceinline__ int part_at(int sequence, int head, int chunk, int sharer) {
    return PARTS_AT + (((sequence * KV_HEADS + head) * MOST_CHUNKS + chunk) * SHARERS + sharer) * PARTIAL;
}

__device__ __forceinline__ int attended_at(const Chunk& chunk, int sharer, int column) {
    return ATTENDED_AT + (chunk.sequence * QUERY + (chunk.head * SHARERS + sharer) * HEAD_DIM + column) / 2;
}

// Adds up a head over the chunks of its sequence, as soon as they arrive; a warp's work.
__device__ __forceinline__ void combine(const Block& block, const Chunk& chunk, int sharer) {
    constexpr int AT_ONCE = 8;
    for (int column = 2 * block.lane; column < HEAD_DIM; column += 64) {
        float largest = -INFINITY, weight = 0.0f, first = 0.0f, second = 0.0f;
        for (int begin = 0; begin < block.chunks; begin += AT_ONCE) {
            uint2 v[2 * AT_ONCE];
#pragma unroll
            for (int i = 0; i < 2 * AT_ONCE; ++i) v[i] = begin + i / 2 < block.chunks ? make_uint2(ABSENT, ABSENT) : make_uint2(0, 0);
            arrive(v, block, STAGE_ATTENTION, [&](int i) {
                return block.words(part_at(chunk.sequence, chunk.head, begin + i / 2, sharer) + (i % 2 ? HEAD_DIM : column));
            });
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (begin + i >= block.chunks) break;
                const float top = fmaxf(largest, __uint_as_float(v[2 * i + 1].x)), zero = top == -INFINITY ? 0.0f : top;
                const float old = exp2f(largest - zero), share = exp2f(__uint_as_float(v[2 * i + 1].x) - zero);
                weight = weight * old + share * __uint_as_float(v[2 * i + 1].y);
                first = first * old + share * __uint_as_float(v[2 * i].x);
                second = second * old + share * __uint_as_float(v[2 * i].y);
                largest = top;
            }
        }
        block.hand(attended_at(chunk, sharer, column), pack(first / weight, second / weight));
    }
}

// The new token's key and value: into the cache, and into the softmax if it is attended. One warp's work.
__device__ __forceinline__ void take_newest(
    Online& online, const Block& block, const Layer& layer, const Chunk& chunk, const float (&queries)[SHARERS][8], const float (&key)[8], const u32 (&value)[VALUE_COLUMNS / 2], s64 newest, bool attended) {
    const int lane = block.lane % KEY_LANES, which = block.lane / KEY_LANES;
    if (newest < CACHE) {
        const s64 row = (chunk.first_row() + newest) * HEAD_DIM;
        if (which == 0) *reinterpret_cast<uint4*>(layer.keys + row + lane * 8) = narrow(key);
#pragma unroll
        for (int i = 0; i < VALUE_COLUMNS / 2; ++i) reinterpret_cast<u32*>(layer.values + row)[block.lane * (VALUE_COLUMNS / 2) + i] = value[i];
    }
    if (!attended) return;
    const bool masked = WITH_MASK && block.p.mask[chunk.sequence * block.p.mask_step + newest] == 0;
#pragma unroll
    for (int head = 0; head < SHARERS; ++head) {
        float score = dot8(queries[head], key);
#pragma unroll
        for (int other = 1; other < KEY_LANES; other *= 2) score += __shfl_xor_sync(~0u, score, other);
        online.largest[head] = masked ? score + MASKED * LOG2_E : score;
        online.weight[head] = which == 0 ? 1.0f : 0.0f;
#pragma unroll
        for (int i = 0; i < VALUE_COLUMNS; ++i) online.sums[head][i] = i % 2 ? high(value[i / 2]) : low(value[i / 2]);
    }
}

__device__ __forceinline__ void attend_chunk(Block& block, const Layer& layer, const Chunk& chunk, s64 newest) {
    const int column = block.lane % KEY_LANES * 8, partner = (column + HEAD_DIM / 2) % HEAD_DIM;
    const bool appends = newest >= chunk.begin && (newest < chunk.end || chunk.number + 1 == block.chunks);
    const bool first_half = column < HEAD_DIM / 2, newcomer = block.warp == 0 && appends;
    float cosine[8], sine[8];
    widen(cosine, *reinterpret_cast<const uint4*>(block.p.cosine + chunk.sequence * block.p.rotary_step + column));
    widen(sine, *reinterpret_cast<const uint4*>(block.p.sine + chunk.sequence * block.p.rotary_step + column));

    uint4 raw[2 * NEWEST];
    u32 value[VALUE_COLUMNS / 2];
#pragma unroll
    for (int i = 0; i < 2 * NEWEST; ++i) raw[i] = i < 2 * SHARERS || newcomer ? make_uint4(ABSENT, ABSENT, ABSENT, ABSENT) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < VALUE_COLUMNS / 2; ++i) value[i] = newcomer ? ABSENT : 0;
    const u16* const row = reinterpret_cast<const u16*>(block.words(QKV_AT)) + chunk.sequence * QKV;
    stamp(block, STAGE_ATTENTION, 0);
    arrive(raw, block, STAGE_ATTENTION, [&](int i) {
        const int head = i / 2 < SHARERS ? (chunk.head * SHARERS + i / 2) * HEAD_DIM : QUERY + chunk.head * HEAD_DIM;
        return row + head + (i % 2 ? partner : column);
    });
    arrive(value, block, STAGE_ATTENTION, [&](int i) { return row + QUERY + KEY + chunk.head * HEAD_DIM + block.lane * VALUE_COLUMNS + 2 * i; });
    stamp(block, STAGE_ATTENTION, 1);

    float queries[SHARERS][8], key[8];
#pragma unroll
    for (int head = 0; head < NEWEST; ++head) {
        Turned x;
        widen(x.own, raw[2 * head]);
        widen(x.partner, raw[2 * head + 1]);
        head_norm<HEAD_NORMS>(x, head < SHARERS ? layer.query_norm : layer.key_norm, column);
        rotate(head < SHARERS ? queries[head % SHARERS] : key, x, cosine, sine, first_half);
    }
#pragma unroll
    for (int head = 0; head < SHARERS; ++head)
#pragma unroll
        for (int i = 0; i < 8; ++i) queries[head][i] *= SCALE * LOG2_E;

    Online online;
#pragma unroll
    for (int head = 0; head < SHARERS; ++head) {
        online.largest[head] = -INFINITY, online.weight[head] = 0.0f;
#pragma unroll
        for (int i = 0; i < VALUE_COLUMNS; ++i) online.sums[head][i] = 0.0f;
    }
    if (newcomer) take_newest(online, block, layer, chunk, queries, key, value, newest, newest < chunk.end);
    for (int at = chunk.begin; at < chunk.end; at += SLOT_POSITIONS) {
        const int count = chunk.end - at < SLOT_POSITIONS ? chunk.end - at : SLOT_POSITIONS;
        wait_local(block.shared + FULL_AT + 8 * block.ring.slot, block.ring.turn);
        attend_slot(online, block, queries, chunk.sequence, at, count, newest);
        __syncwarp();
        if (block.lane == 0) mbarrier_arrive_release_cta(block.shared + FREE_AT + 8 * block.ring.slot);
        block.ring.advance();
    }
#pragma unroll
    for (int head = 0; head < SHARERS; ++head) {
#pragma unroll
        for (int other = KEY_LANES; other < 32; other *= 2) online.weight[head] += __shfl_xor_sync(~0u, online.weight[head], other);
#pragma unroll
        for (int i = 0; i < VALUE_COLUMNS; ++i) store_shared_f32(heads_scratch(block, block.warp, head, block.lane * VALUE_COLUMNS + i), online.sums[head][i]);
        if (block.lane == 0) {
            store_shared_f32(heads_scratch(block, block.warp, head, HEAD_DIM), online.largest[head]);
            store_shared_f32(heads_scratch(block, block.warp, head, HEAD_DIM + 1), online.weight[head]);
        }
    }
}

// All of the block's chunks of a layer.
__device__ __forceinline__ void attend(Block& block, const Layer& layer) {
    const s64 newest = *layer.counter;
    for (int task = blockIdx.x; task < BATCH * KV_HEADS * block.chunks; task += BLOCKS) {
        const Chunk chunk(block, task);
        attend_chunk(block, layer, chunk, newest);
        consumers_meet();
        stamp(block, STAGE_ATTENTION, 2);
        delay(block, STAGE_ATTENTION);
        for (int word = block.thread; word < SHARERS * HEAD_DIM / 2; word += CONSUMERS) {
            const int head = word / (HEAD_DIM / 2), column = word % (HEAD_DIM / 2) * 2;
            const Added sum = added_warps(block, head, column);
            if (block.chunks == 1) {
                block.hand(attended_at(chunk, head, column), pack(sum.first / sum.weight, sum.second / sum.weight));
            } else {
                const int at = part_at(chunk.sequence, chunk.head, chunk.number, head);
                block.hand_float(at + column, sum.first);
                block.hand_float(at + column + 1, sum.second);
                if (column == 0) block.hand_float(at + HEAD_DIM, sum.largest), block.hand_float(at + HEAD_DIM + 1, sum.weight);
            }
        }
        if (block.chunks > 1)
            for (int sharer = chunk.number + block.warp * block.chunks; sharer < SHARERS; sharer += WARPS * block.chunks) combine(block, chunk, sharer);
        consumers_meet();
        stamp(block, STAGE_ATTENTION, 3);
    }
    // A later launch may have more chunks than this one: what the last had of the other set goes, whoever wrote it.
    constexpr int WORDS = SHARERS * PARTIAL;
    for (int part = blockIdx.x; part < BATCH * KV_HEADS * MOST_CHUNKS; part += BLOCKS) {
        if (part % MOST_CHUNKS < block.chunks) continue;
        for (int word = block.thread; word < WORDS; word += CONSUMERS)
            store_relaxed_gpu_u32(block.other + static_cast<s64>(block.layer) * LAYER_WORDS + PARTS_AT + part * WORDS + word, ABSENT);
    }
}
