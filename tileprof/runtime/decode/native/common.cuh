// Shared by all stages of the decoder: the model's sizes, parameters, memory that is passed from stage to stage, and
// the ring of weights.
#pragma once

#include "config.h"  // first: ptx.cuh asks it for the type of halves
#include "decoder_ptx.cuh"
#include "model.cuh"

constexpr int WARPS = 8;  // warps that multiply
constexpr int CONSUMERS = 32 * WARPS;
constexpr int GROUP = 8;  // rows of weights that are distributed to blocks as a unit
constexpr int PIECE = 1024;  // columns of weights in a slot of the ring
constexpr int STEP = 32;  // columns that a warp multiplies at a time
constexpr u32 ROW_BYTES = 2 * PIECE + 64;  // bytes of a row of a slot; rows begin 16 banks apart
constexpr u32 SLOT_BYTES = GROUP * ROW_BYTES;
constexpr int TILES = 8;  // tiles of 16 rows that are finished together
constexpr int TILES_HELD = 2;  // tiles of 16 rows whose sums a warp holds at a time, if activations are streamed

constexpr int SHARERS = HEADS / KV_HEADS;  // query heads per key head
constexpr int QUERY = HEADS * HEAD_DIM, KEY = KV_HEADS * HEAD_DIM, QKV = QUERY + 2 * KEY;
constexpr int MOST_CHUNKS = BLOCKS / (BATCH * KV_HEADS) > 1 ? BLOCKS / (BATCH * KV_HEADS) : 1;
constexpr int SMALLEST_CHUNK = 32, CHUNK_STEP = 16;  // positions
constexpr int SLOT_POSITIONS = GROUP * PIECE / (2 * HEAD_DIM);  // positions whose keys, then values, a slot holds
constexpr int PARTIAL = HEAD_DIM + 2;  // words of a part of a head: sums, largest score, sum of weights

// Words that one stage passes to the next, by layer: see Handed.
constexpr int QKV_AT = 0, ATTENDED_AT = QKV_AT + BATCH * QKV / 2, MIDDLE_AT = ATTENDED_AT + BATCH * QUERY / 2;
constexpr int ACTIVATED_AT = MIDDLE_AT + BATCH * HIDDEN / 2, OUT_AT = ACTIVATED_AT + BATCH * INTERMEDIATE / 2;
constexpr int PARTS_AT = OUT_AT + BATCH * HIDDEN / 2;
constexpr int LAYER_WORDS = (PARTS_AT + BATCH * KV_HEADS * MOST_CHUNKS * SHARERS * PARTIAL + 31) / 32 * 32;
constexpr long long SET_WORDS = static_cast<long long>(LAYER_WORDS) * LAYERS;

struct Layer {
    const u16 *norm, *query, *key, *value, *query_bias, *key_bias, *value_bias, *query_norm, *key_norm;
    const u16 *output, *middle_norm, *gate, *up, *down;
    u16 *keys, *values;
    s64* counter;  // tokens in the cache
};
static_assert(sizeof(Layer) == 17 * 8);

struct Parameters {
    Layer layers[LAYERS];
    const s64* tokens;
    const u16* embedding;
    const u16 *cosine, *sine;  // [1 or BATCH, HEAD_DIM]
    const s64* last;  // the last position that is attended to
    const unsigned char* mask;  // [1 or BATCH, CACHE], instead
    const u16 *norm, *head;
    u32* logits;
    u32* sets;  // two sets of SET_WORDS words
    s32* state;  // see State
    u64* clocks;
    s64 rotary_step, mask_step;  // elements from one sequence to the next
};

// Stages of a layer, and of what follows the last layer.
enum Stage : int { STAGE_QKV, STAGE_ATTENTION, STAGE_OUTPUT, STAGE_GATE, STAGE_DOWN, STAGE_HEAD, STAGES };

// Shared memory. The scratch holds a stage's normalised activations, then its sums; in the attention stage, the warps'
// parts.
constexpr u32 ACTIVATION_BYTES = 2 * HIDDEN + 64;  // bytes of a token: tokens begin 16 banks apart
constexpr int SQUARES = (HIDDEN + 255) / 256;  // parts of a token's sum of squares, one per warp
constexpr u32 SCRATCH_PRODUCT = 4 * WARPS * TILES * 16 * BATCH, SCRATCH_HEADS = 4 * WARPS * SHARERS * PARTIAL,
              SCRATCH_TOKENS = BATCH * ACTIVATION_BYTES;
constexpr u32 larger(u32 a, u32 b) { return a > b ? a : b; }
constexpr u32 SCRATCH_AT = SLOTS * SLOT_BYTES,
              HEADS_AT = SCRATCH_AT + larger(SCRATCH_PRODUCT, larger(SCRATCH_HEADS, SCRATCH_TOKENS));
constexpr u32 SQUARES_AT = HEADS_AT + 4 * (SHARERS + 2) * HEAD_DIM,
              FULL_AT = (SQUARES_AT + 4 * SQUARES * BATCH + 7) / 8 * 8;
constexpr u32 FREE_AT = FULL_AT + 8 * SLOTS,
              GROUPS_AT = FREE_AT + 8 * SLOTS;  // GROUPS: the group of the head that a slot holds
constexpr u32 TILES_AT = GROUPS_AT + 4 * SLOTS,
              ABORTED_AT = TILES_AT + 4 * TILES;  // TILES: the tiles of the head that are finished together
static_assert(ABORTED_AT + 4 + 128 <= SHARED_BYTES, "ring, scratch and barriers fit");

// A block's view of the launch. The words that a stage passes to the next are in one of two sets, which launches use
// in turn. The writer of a word of this launch's set marks the same word of the other set as absent, so that the next
// launch finds no old values.
struct Block {
    static constexpr int STAGE_COUNT = STAGES;

    const Parameters& p;
    u32 shared;
    u32* set;
    u32* other;
    int limit;  // number of positions that may be attended to
    int chunk, chunks;  // positions per chunk, chunks per sequence
    u32 thread, warp, lane;
    Ring<SLOTS> ring;
    int layer = 0;

    __device__ u32* words(int at) const { return set + static_cast<s64>(layer) * LAYER_WORDS + at; }

    __device__ void hand(int at, u32 value) const {
        const s64 word = static_cast<s64>(layer) * LAYER_WORDS + at;
        store_relaxed_gpu_u32(set + word, value);
        store_relaxed_gpu_u32(other + word, ABSENT);
    }

    __device__ void hand_float(int at, float value) const {
        const u32 bits = __float_as_uint(value);
        hand(at, bits == ABSENT ? 0x7FFFFFFFu : bits);
    }

    // The index of a word among those of the layer, for the record of a wait.
    __device__ s32 place_of(const void* word) const {
        return static_cast<s32>(static_cast<const u32*>(word) - set - static_cast<s64>(layer) * LAYER_WORDS);
    }

    __device__ s32 launch() const { return p.state[EPOCH]; }
    __device__ bool aborted() const { return load_shared_s32(shared + ABORTED_AT) != 0; }
    __device__ void abort() const { store_shared_s32(shared + ABORTED_AT, 1); }
};

__device__ __forceinline__ void consumers_meet() { barrier_sync<1, CONSUMERS>(); }

__device__ __forceinline__ float load_shared_f32(u32 address) { return __int_as_float(load_shared_s32(address)); }
__device__ __forceinline__ void store_shared_f32(u32 address, float value) {
    store_shared_s32(address, __float_as_int(value));
}

__device__ __forceinline__ void load_relaxed(uint4& v, const void* from, bool when) {
    load_relaxed_gpu_u32x4(v, from, when);
}
__device__ __forceinline__ void load_relaxed(uint2& v, const void* from, bool when) {
    load_relaxed_gpu_u32x2(v, from, when);
}
__device__ __forceinline__ void load_relaxed(u32& v, const void* from, bool when) {
    load_relaxed_gpu_u32(v, from, when);
}

// Reads N values from(i) again and again until none of their words is absent. All loads are in flight at the same
// time. `v` contains what was read before, or absent words.
template <int N, class T, class From>
__device__ __forceinline__ void arrive(T (&v)[N], const Block& block, int stage, From&& from) {
    Patience patience;
    bool again = false;
#pragma unroll
    for (int i = 0; i < N; ++i) again |= absent(v[i]);
    while (again) {
#pragma unroll
        for (int i = 0; i < N; ++i) load_relaxed(v[i], from(i), absent(v[i]));
        again = false;
        const void* awaited = nullptr;
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (absent(v[i])) again = true, awaited = from(i);
        if (again && !patience.more(block, stage, block.place_of(awaited))) break;
    }
}

// Eight halves to floats.
__device__ __forceinline__ void widen(float (&to)[8], const uint4& from) {
    to[0] = low(from.x), to[1] = high(from.x), to[2] = low(from.y), to[3] = high(from.y);
    to[4] = low(from.z), to[5] = high(from.z), to[6] = low(from.w), to[7] = high(from.w);
}

__device__ __forceinline__ uint4 narrow(const float (&from)[8]) {
    return make_uint4(pack(from[0], from[1]), pack(from[2], from[3]), pack(from[4], from[5]), pack(from[6], from[7]));
}

constexpr u32 FIRST_BARRIER = 2;  // barriers of TILES, after those of all threads and of the consumers

// The groups of eight rows of a product that this block has: first, first + BLOCKS, ... Which blocks have one more
// differs from stage to stage.
struct Share {
    int first, count;

    __device__ Share(int groups, int before) {
        first = (static_cast<int>(blockIdx.x) + BLOCKS - before % BLOCKS) % BLOCKS;
        count = first < groups ? (groups - first + BLOCKS - 1) / BLOCKS : 0;
    }

    __device__ int group(int i) const { return first + i * BLOCKS; }
};

constexpr int QKV_GROUPS = QKV / GROUP, HIDDEN_GROUPS = HIDDEN / GROUP, GATE_GROUPS = INTERMEDIATE / GROUP,
              HEAD_GROUPS = VOCABULARY / GROUP;
constexpr int LAYER_GROUPS = QKV_GROUPS + 2 * HIDDEN_GROUPS + 2 * GATE_GROUPS;

__device__ __forceinline__ Share qkv_share(int layer) { return {QKV_GROUPS, layer * LAYER_GROUPS}; }
__device__ __forceinline__ Share output_share(int layer) { return {HIDDEN_GROUPS, layer * LAYER_GROUPS + QKV_GROUPS}; }
__device__ __forceinline__ Share gate_share(int layer) {
    return {GATE_GROUPS, layer * LAYER_GROUPS + QKV_GROUPS + HIDDEN_GROUPS};
}
__device__ __forceinline__ Share down_share(int layer) {
    return {HIDDEN_GROUPS, layer * LAYER_GROUPS + QKV_GROUPS + HIDDEN_GROUPS + 2 * GATE_GROUPS};
}

// The head's tiles of two groups: a block has HEAD_FIXED tiles of its own, and takes the others dynamically.
constexpr int HEAD_TILES = (HEAD_GROUPS + 1) / 2,
              HEAD_FIXED = HEAD_TILES / BLOCKS * 3 / 4 > 1 ? HEAD_TILES / BLOCKS * 3 / 4 : 1;

// The work of the attention stage: a chunk of the positions of a sequence and a key head.
struct Chunk {
    int sequence, head, number, begin, end;

    __device__ Chunk(const Block& block, int task) {
        sequence = task / (KV_HEADS * block.chunks), head = task / block.chunks % KV_HEADS,
        number = task % block.chunks;
        begin = number * block.chunk;
        end = number + 1 < block.chunks ? begin + block.chunk : block.limit;
    }

    __device__ s64 first_row() const { return (static_cast<s64>(sequence) * KV_HEADS + head) * CACHE; }
};
