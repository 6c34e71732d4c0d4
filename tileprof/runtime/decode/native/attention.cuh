// Attention of one new token per sequence: rotary embedding, append to the cache, chunks of the context by warps, then
// over chunks.
#pragma once

#include "product.cuh"

constexpr int KEY_LANES = HEAD_DIM / 8;  // lanes that share a position's key, with eight columns each
constexpr int TOGETHER = 32 / KEY_LANES;  // positions that a warp scores at a time
constexpr int VALUE_COLUMNS = HEAD_DIM / 32;  // columns that a lane adds up
constexpr float LOG2_E = 1.4426950408889634f;

// Places of the rotated heads: queries, times the scale of the scores, then the new key and value.
__device__ __forceinline__ u32 head_at(const Block& block, int head, int column) {
    return block.shared + HEADS_AT + 4 * (head * HEAD_DIM + column);
}

// The columns of a head that a lane prepares: its norm, then its rotation, with the model's roundings.
struct Prepared {
    float x[VALUE_COLUMNS];

    __device__ void normalise(const u16* weight, u32 lane) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < VALUE_COLUMNS; ++i) squares += x[i] * x[i];
#pragma unroll
        for (int other = 1; other < 32; other *= 2) squares += __shfl_xor_sync(~0u, squares, other);
        const float factor = rsqrtf(squares * (1.0f / HEAD_DIM) + EPSILON);
#pragma unroll
        for (int i = 0; i < VALUE_COLUMNS; ++i)
            x[i] = rounded(unpack(weight[lane * VALUE_COLUMNS + i]) * rounded(x[i] * factor));
    }

    __device__ void rotate(const float (&cosine)[VALUE_COLUMNS], const float (&sine)[VALUE_COLUMNS], u32 lane) {
#pragma unroll
        for (int i = 0; i < VALUE_COLUMNS; ++i) {
            const float partner = __shfl_xor_sync(~0u, x[i], 16);  // half a head away
            x[i] = rounded(rounded(x[i] * cosine[i]) + rounded((lane < 16 ? -partner : partner) * sine[i]));
        }
    }
};

__device__ __forceinline__ void unpack_words(float (&to)[VALUE_COLUMNS], const u32 (&words)[VALUE_COLUMNS / 2]) {
#pragma unroll
    for (int i = 0; i < VALUE_COLUMNS; ++i) to[i] = i % 2 ? high(words[i / 2]) : low(words[i / 2]);
}

__device__ __forceinline__ float dot8(const float (&a)[8], const float (&b)[8]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += a[i] * b[i];
    return sum;
}

// The softmax of a warp's positions so far: `weight` counts the positions that this lane scored.
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
__device__ __forceinline__ void attend_slot(Online& online, const Block& block, const float (&queries)[SHARERS][8],
                                            int sequence, int begin, int count, s64 newest) {
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

// Adds up the warps' parts of a chunk: for an even column of a head, two columns, the largest score and the sum of
// weights.
struct Added {
    float first, second, largest, weight;
};

__device__ __forceinline__ Added added_warps(const Block& block, int head, int column) {
    Added sum = {0.0f, 0.0f, -INFINITY, 0.0f};
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp)
        sum.largest = fmaxf(sum.largest, load_shared_f32(heads_scratch(block, warp, head, HEAD_DIM)));
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

// Adds up a head over the chunks of its sequence as they arrive; done by one warp.
__device__ __forceinline__ void combine(const Block& block, const Chunk& chunk, int sharer) {
    constexpr int AT_ONCE = MOST_CHUNKS < 16 ? MOST_CHUNKS : 16;
    for (int column = 2 * block.lane; column < HEAD_DIM; column += 64) {
        float largest = -INFINITY, weight = 0.0f, first = 0.0f, second = 0.0f;
        for (int begin = 0; begin < block.chunks; begin += AT_ONCE) {
            uint2 v[2 * AT_ONCE];
#pragma unroll
            for (int i = 0; i < 2 * AT_ONCE; ++i)
                v[i] = begin + i / 2 < block.chunks ? make_uint2(ABSENT, ABSENT) : make_uint2(0, 0);
            arrive(v, block, STAGE_ATTENTION, [&](int i) {
                return block.words(part_at(chunk.sequence, chunk.head, begin + i / 2, sharer) +
                                   (i % 2 ? HEAD_DIM : column));
            });
            float top = largest;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (begin + i < block.chunks) top = fmaxf(top, __uint_as_float(v[2 * i + 1].x));
            const float zero = top == -INFINITY ? 0.0f : top, old = exp2f(largest - zero);
            weight *= old, first *= old, second *= old, largest = top;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const float share = begin + i < block.chunks ? exp2f(__uint_as_float(v[2 * i + 1].x) - zero) : 0.0f;
                weight += share * __uint_as_float(v[2 * i + 1].y);
                first += share * __uint_as_float(v[2 * i].x);
                second += share * __uint_as_float(v[2 * i].y);
            }
        }
        block.hand(attended_at(chunk, sharer, column), pack(first / weight, second / weight));
    }
}

// Rotates the heads of a chunk into shared memory. The block that `appends` them also writes the new token's key and
// value into the cache.
__device__ __forceinline__ void prepare_heads(const Block& block, const Layer& layer, const Chunk& chunk, s64 newest,
                                              bool appends) {
    u32 words[VALUE_COLUMNS / 2];
    float cosine[VALUE_COLUMNS], sine[VALUE_COLUMNS];
    const int column = block.lane * VALUE_COLUMNS;
    const s64 table = chunk.sequence * block.p.rotary_step + column;
#pragma unroll
    for (int i = 0; i < VALUE_COLUMNS; ++i)
        cosine[i] = unpack(block.p.cosine[table + i]), sine[i] = unpack(block.p.sine[table + i]);
    stamp(block, STAGE_ATTENTION, 0);
#pragma unroll 1
    for (int head = block.warp; head < SHARERS + (appends ? 2 : 0); head += WARPS) {
        const int from = head < SHARERS ? (chunk.head * SHARERS + head) * HEAD_DIM
                                        : QUERY + (head - SHARERS) * KEY + chunk.head * HEAD_DIM;
#pragma unroll
        for (int i = 0; i < VALUE_COLUMNS / 2; ++i) words[i] = ABSENT;
        arrive(words, block, STAGE_ATTENTION,
               [&](int i) { return block.words(QKV_AT + (chunk.sequence * QKV + from + column) / 2 + i); });
        Prepared prepared;
        unpack_words(prepared.x, words);
        if (head <= SHARERS) {
            if constexpr (HEAD_NORMS)
                prepared.normalise(head < SHARERS ? layer.query_norm : layer.key_norm, block.lane);
            prepared.rotate(cosine, sine, block.lane);
        }
        if (head >= SHARERS && newest < CACHE) {
            u32* const to = reinterpret_cast<u32*>((head == SHARERS ? layer.keys : layer.values) +
                                                   (chunk.first_row() + newest) * HEAD_DIM + column);
#pragma unroll
            for (int i = 0; i < VALUE_COLUMNS / 2; ++i) to[i] = pack(prepared.x[2 * i], prepared.x[2 * i + 1]);
        }
#pragma unroll
        for (int i = 0; i < VALUE_COLUMNS; ++i)
            store_shared_f32(head_at(block, head, column + i),
                             prepared.x[i] * (head < SHARERS ? SCALE * LOG2_E : 1.0f));
    }
    consumers_meet();
    stamp(block, STAGE_ATTENTION, 1);
}

__device__ __forceinline__ void read_head(float (&to)[8], const Block& block, int head) {
    const u32 at = head_at(block, head, block.lane % KEY_LANES * 8);
    const float4 first = load_shared_f32x4(at), second = load_shared_f32x4(at + 16);
    to[0] = first.x, to[1] = first.y, to[2] = first.z, to[3] = first.w;
    to[4] = second.x, to[5] = second.y, to[6] = second.z, to[7] = second.w;
}

// The softmax of the new token alone.
__device__ __forceinline__ void take_newest(Online& online, const Block& block, const Chunk& chunk,
                                            const float (&queries)[SHARERS][8], s64 newest) {
    float key[8];
    read_head(key, block, SHARERS);
    const bool masked = WITH_MASK && block.p.mask[chunk.sequence * block.p.mask_step + newest] == 0;
#pragma unroll
    for (int head = 0; head < SHARERS; ++head) {
        float score = dot8(queries[head], key);
#pragma unroll
        for (int other = 1; other < KEY_LANES; other *= 2) score += __shfl_xor_sync(~0u, score, other);
        online.largest[head] = masked ? score + MASKED * LOG2_E : score;
        online.weight[head] = block.lane < KEY_LANES ? 1.0f : 0.0f;
#pragma unroll
        for (int i = 0; i < VALUE_COLUMNS; ++i)
            online.sums[head][i] = load_shared_f32(head_at(block, SHARERS + 1, block.lane * VALUE_COLUMNS + i));
    }
}

__device__ __forceinline__ void attend_chunk(Block& block, const Layer& layer, const Chunk& chunk, s64 newest) {
    const bool appends = newest >= chunk.begin && (newest < chunk.end || chunk.number + 1 == block.chunks);
    prepare_heads(block, layer, chunk, newest, appends);
    float queries[SHARERS][8];
#pragma unroll
    for (int head = 0; head < SHARERS; ++head) read_head(queries[head], block, head);
    Online online;
#pragma unroll
    for (int head = 0; head < SHARERS; ++head) {
        online.largest[head] = -INFINITY, online.weight[head] = 0.0f;
#pragma unroll
        for (int i = 0; i < VALUE_COLUMNS; ++i) online.sums[head][i] = 0.0f;
    }
    if (appends && newest < chunk.end && block.warp == WARPS - 1) take_newest(online, block, chunk, queries, newest);
    for (int at = chunk.begin; at < chunk.end; at += SLOT_POSITIONS) {
        int count = chunk.end - at < SLOT_POSITIONS ? chunk.end - at : SLOT_POSITIONS;
        if (at + count - 1 == newest) --count;
        wait_local(block.shared + FULL_AT + 8 * block.ring.slot, block.ring.turn);
        attend_slot(online, block, queries, chunk.sequence, at, count, newest);
        __syncwarp();
        if (block.lane == 0) mbarrier_arrive_release_cta(block.shared + FREE_AT + 8 * block.ring.slot);
        block.ring.advance();
    }
#pragma unroll
    for (int head = 0; head < SHARERS; ++head) {
#pragma unroll
        for (int other = KEY_LANES; other < 32; other *= 2)
            online.weight[head] += __shfl_xor_sync(~0u, online.weight[head], other);
#pragma unroll
        for (int i = 0; i < VALUE_COLUMNS; ++i)
            store_shared_f32(heads_scratch(block, block.warp, head, block.lane * VALUE_COLUMNS + i),
                             online.sums[head][i]);
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
                if (column == 0)
                    block.hand_float(at + HEAD_DIM, sum.largest), block.hand_float(at + HEAD_DIM + 1, sum.weight);
            }
        }
        if (block.chunks > 1)
            for (int sharer = chunk.number + block.warp * block.chunks; sharer < SHARERS;
                 sharer += WARPS * block.chunks)
                combine(block, chunk, sharer);
        consumers_meet();
        stamp(block, STAGE_ATTENTION, 3);
    }
    // A later launch may have more chunks than this one: the chunks that the last launch wrote into the other set are
    // cleared.
    constexpr int WORDS = SHARERS * PARTIAL;
    for (int part = blockIdx.x; part < BATCH * KV_HEADS * MOST_CHUNKS; part += BLOCKS) {
        if (block.chunks > 1 && part % MOST_CHUNKS < block.chunks) continue;
        for (int word = block.thread; word < WORDS; word += CONSUMERS)
            store_relaxed_gpu_u32(
                block.other + static_cast<s64>(block.layer) * LAYER_WORDS + PARTS_AT + part * WORDS + word, ABSENT);
    }
}
