// Shared by all roles of a block: the network's tables, shared memory, rings and their barriers.
#pragma once

#include "stages.h"  // first: ptx.cuh asks it for the type of halves
#include "ring_waits.cuh"

constexpr int CONSUMERS = 256;
constexpr int CONSUMER_WARPS = CONSUMERS / 32;
constexpr int FLAG_WORDS = 32;  // one semaphore per cache line
// bytes of a row of shared memory: 64 channels of a pixel, or 64 of k of a row of weights
constexpr int ROW_BYTES = 128;
// maximum number of tasks between the task that is multiplied and the task that is posted
constexpr int POST_SLOTS = 4;
constexpr int WINDOW_PITCH = 1024;  // bytes of a row of the padded input

enum Kind : s32 { CONVOLUTION, MAXIMUM, AVERAGE, WINDOWS, FLAT };

// A layer, as plan.py writes it. A tile is `columns` channels of a box of output pixels.
struct alignas(64) Stage {
    void* out;  // null: the network's result
    const void* from;  // null: the network's input
    const void* residual;  // null: none
    const float* ends;  // scale and bias per channel, for all columns of tiles
    s32 kind, columns, k_blocks, weight_blocks;  // blocks of k in a slot of weights
    s32 taps, tap_columns, slot_blocks, halo;  // blocks of k in a slot of activations; whether they are the taps of
                                               // one box, or (-1) channels of one tap, also of one box
    s32 box_bytes, block_bytes, step, group_rows;  // of a load; from a block to the next; rows of a slot from a row of
                                                   // pixels to the next, from a warpgroup's first to the other's
    s32 deep, tile_rows, tile_columns, tile_images;  // deep: both warpgroups take the same rows and share k
    s32 stride, padding, out_rows, out_columns;
    s32 out_images, out_channels, relu, weight_load;  // blocks of k per load of weights
    s32 in_rows, in_columns, channels, window;
    s32 image_stride, channel_stride, row_stride, column_stride;  // of the network's input, in elements; of a result
                                                                  // whose channels are in front of pixels, the second
    s32 parts;  // number of parts of k, each of which is a task
    s32 source_rows, source_columns;  // of the padded input, where `window` is set
    s32 pool;  // pixels of a convolution per side of a pixel of the result
    float* sums;  // sums of the parts of each tile
    const unsigned char* windows;  // weights of windows, in the layout of shared memory, per column of tiles
};
static_assert(sizeof(Stage) == 192 && __builtin_offsetof(Stage, sums) == 4 * (8 + 36));

// A row of the table of layers. Roles copy what they need of `stage` before they wait: memory would have to be read
// again after every wait.
struct Row {
    TensorMap map;  // of what a convolution reads: channels, columns, rows, images; where a box has several blocks of
                    // 64 channels: 64 channels, columns, rows of all images, blocks of channels
    TensorMap weights;  // as parameters lie: channels in, channels out, taps; where there is one tap, 64 channels in,
                        // channels out, blocks of channels in
    Stage stage;
};
static_assert(sizeof(Row) == 448);

struct alignas(16) Task {
    s32 stage, image, y, x, column, wait, waits_end, post;  // image, y, x: the tile's first output pixel
    // If parts of k are tasks: the part, the tile's semaphore, and the index among the layer's tiles.
    s32 part, counter, place, unused;
};
static_assert(sizeof(Task) == 48);

struct Arguments {
    const Row* rows;
    const s32* heads;  // per block: its first task, and the first task of the next block
    const Task* tasks;
    const int2* waits;  // semaphore, posts per run
    const void* x;
    void* out;
    const s32* seed;
    s32 *flags, *state, *record;
    u64* times;  // PLACES per task, if TIMELINE is set
};
static_assert(sizeof(Arguments) == 88);

// Times of a task that a timeline records, in the order of PLACES of network_launch.py.
enum Place : u32 { AWAITS, AWAITED, WEIGHTS_THERE, TILES_THERE, MULTIPLIED, STORED_TILE, POSTED_TILE, PLACES };

// Shared memory: rings, sums and outgoing halves, barriers. Offsets from an address that is a multiple of 1024, as
// the swizzle requires.
constexpr u32 W_AT = A_SLOTS * A_BYTES;
constexpr u32 SCRATCH_AT = W_AT + W_SLOTS * W_BYTES;
constexpr u32 SCRATCH_BYTES = 16 * 1024;  // sums of 128 rows and 32 columns, halves of 64
constexpr u32 BARRIERS_AT = SCRATCH_AT + SCRATCH_BYTES;
constexpr u32 A_FULL = BARRIERS_AT, A_FREE = A_FULL + 8 * A_SLOTS;
constexpr u32 W_FULL = A_FREE + 8 * A_SLOTS, W_FREE = W_FULL + 8 * W_SLOTS;
constexpr u32 STORED = W_FREE + 8 * W_SLOTS, POSTED = STORED + 8 * POST_SLOTS;
constexpr u32 LAST_AT = POSTED + 8 * POST_SLOTS;  // a word: whether the task is the last of its tile's parts
static_assert(LAST_AT + 16 + 1024 <= SHARED_BYTES, "rings, scratch and barriers fit");

// Calls work(stage, task, number) for each task of this block; a task is read while the one before is processed.
template <class Work>
__device__ __forceinline__ void for_tasks(const Arguments& arguments, Work&& work) {
    const s32 begin = arguments.heads[2 * blockIdx.x], end = arguments.heads[2 * blockIdx.x + 1];
    if (begin == end) return;
    Task next = arguments.tasks[begin];
    for (s32 number = begin; number < end; ++number) {
        const Task task = next;
        if (number + 1 < end) next = arguments.tasks[number + 1];
        const Stage stage = arguments.rows[task.stage].stage;
        work(stage, task, number);
    }
}

// One thread per place and task.
__device__ __forceinline__ void stamp(const Arguments& arguments, s32 task, Place place) {
    if constexpr (TIMELINE) arguments.times[task * PLACES + place] = globaltimer();
}

// For tests: sleeps up to DELAY_NS, a different time per task, run and place.
__device__ __forceinline__ void delay(const Arguments& arguments, s32 task, u32 place) {
    if constexpr (DELAY_NS > 0) {
        random_sleep((task + 1) * 40503u + *arguments.seed * 30011u + place * 7919u);
    }
}
