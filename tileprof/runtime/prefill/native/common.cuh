// Shared by all roles of a block: sizes, parameters, flags, shared memory, waits.
#pragma once

#include "config.h"  // first: ptx.cuh asks it for the type of halves
#include "model.cuh"
#include "warp.cuh"

constexpr int CONSUMERS = 256, CONSUMER_WARPS = CONSUMERS / 32, THREADS = 384;
constexpr int TILE_ROWS = 64;  // rows of activations: those of a wgmma
constexpr int TILE = 128;      // columns of a product that a block computes at a time, 64 per warpgroup
constexpr int K_CHUNK = 64;    // elements of k in a slot of a ring
constexpr int BOX = 32;        // rows of weights per copy
constexpr u32 WEIGHT_BYTES = 2 * K_CHUNK * TILE, ACTIVATION_BYTES = 2 * K_CHUNK * TILE_ROWS;

constexpr int HEAD_DIM = 64, SHARERS = HEADS / KV_HEADS;  // query heads per key head
constexpr int QUERY = HEADS * HEAD_DIM, KEY = KV_HEADS * HEAD_DIM, QKV = QUERY + 2 * KEY;
constexpr int QUERIES = 32,
              QUERY_TASKS = (ROWS + QUERIES - 1) / QUERIES;  // query rows per task of attention, tasks per head
constexpr int GATE_COLUMNS = TILE / 2;  // activated columns that a tile of the gate produces
static_assert(ROWS <= TILE_ROWS && GATE_COLUMNS == K_CHUNK && HEAD_DIM == K_CHUNK);

// A product divided into tasks: tiles of columns and parts of k. `STAGE` is its number in reports.
template <int STAGE_, int COLUMNS_, int DEPTH_, int SPLITS_>
struct Product {
    static constexpr int STAGE = STAGE_, COLUMNS = COLUMNS_, DEPTH = DEPTH_, SPLITS = SPLITS_;
    static constexpr int TILES = (COLUMNS + TILE - 1) / TILE, PAIRS = DEPTH / (2 * K_CHUNK),
                         TASKS = TILES * SPLITS;  // two chunks are multiplied at a time
    static_assert(DEPTH % (2 * K_CHUNK) == 0 && SPLITS <= PAIRS);

    __device__ static int tile(int task) { return task % TILES; }
    __device__ static int split(int task) { return task / TILES; }
    __device__ static int begin(int task) { return split(task) * PAIRS / SPLITS * 2; }
    __device__ static int end(int task) { return (split(task) + 1) * PAIRS / SPLITS * 2; }
};

// Stages of a layer, of what precedes the first and of what follows the last.
enum Stage : int {
    STAGE_EMBEDDING,
    STAGE_QKV,
    STAGE_ATTENTION,
    STAGE_OUTPUT,
    STAGE_MIDDLE,
    STAGE_GATE,
    STAGE_DOWN,
    STAGE_NEXT,
    STAGE_HEAD,
    STAGES
};

using Qkv = Product<STAGE_QKV, QKV, HIDDEN, QKV_SPLITS>;
using Output = Product<STAGE_OUTPUT, HIDDEN, QUERY, OUTPUT_SPLITS>;
using Gate = Product<STAGE_GATE, 2 * INTERMEDIATE, HIDDEN, 1>;
using Down = Product<STAGE_DOWN, HIDDEN, INTERMEDIATE, DOWN_SPLITS>;
using Head = Product<STAGE_HEAD, VOCABULARY, HIDDEN, 1>;
static_assert(QKV % TILE == 0 && HIDDEN % TILE == 0 && INTERMEDIATE % GATE_COLUMNS == 0);

// Sums of parts of k, in vectors of four floats: columns 16 p + 2 q, + 1, + 8 and + 9 of a row, for q = 0 to 3, as a
// thread of a wgmma holds them.
template <class P>
struct Parts {
    static constexpr int ROW = P::COLUMNS / 4, VECTORS = P::SPLITS * ROWS * ROW;

    __device__ static int at(int split, int row, int p, int q) { return (split * ROWS + row) * ROW + 4 * p + q; }
};
static_assert(OUTPUT_SPLITS == DOWN_SPLITS,
              "the two products whose rows are finished take turns with two sets of parts");
constexpr int QKV_PARTS = 0, OUTPUT_PARTS = QKV_PARTS + 2 * Parts<Qkv>::VECTORS,
              DOWN_PARTS = OUTPUT_PARTS + Parts<Output>::VECTORS;
constexpr int PART_VECTORS = DOWN_PARTS + Parts<Down>::VECTORS;

// A float of a part is absent (all bits set, which no sum is) until it is stored. There are two sets of each kind.
// Before a thread stores a part in one set, it makes the same vector of the other set absent. The readers of that
// vector are done: they belong to the previous stage of this kind, on which the operands of this product depend.
// Threads that will read it there have read this part before.

// Flags, each incremented by one block: rows that enter a layer, rows in its middle, stored heads, and stored columns
// of the gate.
constexpr int NORMED_FLAGS = 0, MIDDLE_FLAGS = NORMED_FLAGS + ROWS, ATTENDED_FLAGS = MIDDLE_FLAGS + ROWS;
constexpr int ACTIVATED_FLAGS = ATTENDED_FLAGS + HEADS * QUERY_TASKS, FLAGS = ACTIVATED_FLAGS + Gate::TILES;

// Tensor maps: of the weights, layer by layer, of the head, and of the operands of products.
enum Map : int { MAP_QUERY, MAP_KEY, MAP_VALUE, MAP_OUTPUT, MAP_GATE, MAP_UP, MAP_DOWN, LAYER_MAPS };
constexpr int MAP_HEAD = LAYERS * LAYER_MAPS, MAP_NORMED = MAP_HEAD + 1, MAP_MIDDLE = MAP_NORMED + 1,
              MAP_ATTENDED = MAP_MIDDLE + 1;
constexpr int MAP_ACTIVATED = MAP_ATTENDED + 1;

struct Layer {
    const u16 *norm, *middle_norm;
    u16 *keys, *values;  // caches of the caller, [sequence, head, CACHE, HEAD_DIM]; null if not wanted
};

struct Parameters {
    Layer layers[LAYERS];
    const long long* tokens;
    const u16 *embedding, *cosine, *sine, *norm;  // tables: [1 or sequences, LENGTH, HEAD_DIM]
    u16* logits;
    const TensorMap* maps;
    unsigned char* workspace;  // see the offsets below
    s32* state;  // see State
    u64* clocks;
    long long rotary_step;  // elements from one sequence to the next
};

// Bytes of the workspace: first parts, then the residual and the operands of products, then flags.
constexpr long long RESIDUAL_AT = 16ll * PART_VECTORS, NORMED_AT = RESIDUAL_AT + 2ll * TILE_ROWS * HIDDEN,
                    MIDDLE_AT = NORMED_AT + 2ll * TILE_ROWS * HIDDEN;
constexpr long long ATTENDED_AT = MIDDLE_AT + 2ll * TILE_ROWS * HIDDEN,
                    ACTIVATED_AT = ATTENDED_AT + 2ll * TILE_ROWS * QUERY;
constexpr long long FLAGS_AT = ACTIVATED_AT + 2ll * TILE_ROWS * INTERMEDIATE;

// Shared memory, from an address that is a multiple of 1024, as the swizzle requires. Rows of attention's keys,
// values and queries begin four banks apart.
constexpr u32 HEAD_PITCH = 2 * HEAD_DIM + 16;
constexpr u32 ACTIVATIONS_AT = SLOTS * WEIGHT_BYTES, KEYS_AT = ACTIVATIONS_AT + ACTIVATION_SLOTS * ACTIVATION_BYTES;
constexpr u32 VALUES_AT = KEYS_AT + TILE_ROWS * HEAD_PITCH, QUERIES_AT = VALUES_AT + TILE_ROWS * HEAD_PITCH;
constexpr u32 SQUARES_AT = QUERIES_AT + QUERIES * HEAD_PITCH;
constexpr u32 W_FULL = SQUARES_AT + 4 * CONSUMER_WARPS, W_FREE = W_FULL + 8 * SLOTS, A_FULL = W_FREE + 8 * SLOTS;
constexpr u32 A_FREE = A_FULL + 8 * ACTIVATION_SLOTS, ABORTED_AT = A_FREE + 8 * ACTIVATION_SLOTS;
static_assert(ABORTED_AT + 4 + 1024 <= SHARED_BYTES, "rings, attention and barriers fit");

// A thread's view of the launch.
struct Block {
    static constexpr int STAGE_COUNT = STAGES;

    const Parameters& p;
    u32 shared, thread, warp, lane;
    s32 epoch;  // number of earlier launches
    int layer = 0;

    __device__ unsigned char* at(long long bytes) const { return p.workspace + bytes; }
    __device__ s32* flags() const { return reinterpret_cast<s32*>(at(FLAGS_AT)); }
    __device__ int qkv_parts(int which) const {
        return QKV_PARTS + ((epoch * LAYERS + layer + which) & 1) * Parts<Qkv>::VECTORS;
    }  // 0: of this layer, 1: the other set
    __device__ s32 launch() const { return epoch; }
    __device__ bool aborted() const { return load_shared_s32(shared + ABORTED_AT) != 0; }
    __device__ void abort() const { store_shared_s32(shared + ABORTED_AT, 1); }
};

__device__ __forceinline__ void consumers_meet() { barrier_sync<1, CONSUMERS>(); }

// Waits until all vectors of parts that a thread has loaded have arrived; `index(i)`: the vector of value i.
template <int COUNT, class Index>
__device__ __forceinline__ void arrive(uint4 (&values)[COUNT], const Block& block, int stage, Index&& index) {
    Patience patience;
    for (;;) {
        int missing = -1;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (absent(values[i])) {
                missing = index(i);
                values[i] = poll_matrix(reinterpret_cast<u64>(block.at(16ll * missing)), values[i]);
            }
        if (missing < 0 || !patience.more(block, stage, -1 - missing)) return;
    }
}

__device__ __forceinline__ uint4 load_part(const Block& block, int index) {
    return load_relaxed_gpu_u32x4(block.at(16ll * index));
}

// Returns whether a flag has been incremented in this launch's layer; `per_launch`: how often a launch increments it.
__device__ __forceinline__ bool passed(const Block& block, int flag, int per_launch) {
    const u32 expected = static_cast<u32>(block.epoch) * per_launch + block.layer + 1;
    return static_cast<s32>(static_cast<u32>(load_acquire_gpu_s32(block.flags() + flag)) - expected) >= 0;
}

// All lanes of a warp: waits until flags `first` to `first + count` have been incremented.
__device__ __forceinline__ void wait_flags(const Block& block, int stage, int first, int count, int per_launch) {
    Patience patience;
#pragma unroll 1
    for (int flag = first + static_cast<int>(block.lane); flag < first + count; flag += 32)
        while (!passed(block, flag, per_launch) && patience.more(block, stage, flag)) {
        }
    __syncwarp();
}

// All consumers: makes their stores visible, also for copies of other blocks.
__device__ __forceinline__ void post(const Block& block, int stage, int flag) {
    fence_proxy_async_global();
    delay(block, stage);
    consumers_meet();
    if (block.thread == 0) add_release_gpu_s32(block.flags() + flag, 1);
}
