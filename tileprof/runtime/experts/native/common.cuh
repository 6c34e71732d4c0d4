// A mixture of experts in one launch: what its roles share. "config.h" is made by shape.py: the sizes of the layer.
//
// Rows of tokens are sorted by expert while they are routed: each expert has room for all tokens, in tiles of 64 rows.
// A tile of rows exists once 64 rows are in it, or once all tokens are routed and it has any. Only then there are tasks
// for it:
//
//     ROUTE  eight tokens: scores, the best experts, copies of the row
//     UP     a tile of rows, 64 columns of the gated inner layer
//     DOWN   a tile of rows, 64 columns of the result; the last of a token's experts adds them up
#pragma once

#include "config.h"
#include "ring_waits.cuh"
#include "warp.cuh"

constexpr int ROWS = 64, COLUMNS = 64, K_BLOCK = 64, GROUP = 8;  // GROUP: tokens per routing task
constexpr int CONSUMERS = 256, CONSUMER_WARPS = CONSUMERS / 32, THREADS = 128 + CONSUMERS;
constexpr int ROUTES = (TOKENS + GROUP - 1) / GROUP;
constexpr int HIGH = (TOKENS + ROWS - 1) / ROWS;  // tiles of rows for which an expert has room
constexpr int TILES = EXPERTS * HIGH;
constexpr int MOST_TILES = MOST_FULL + (EXPERTS < TOKENS * TOP ? EXPERTS : TOKENS * TOP);  // maximum number of tiles
constexpr int UPS = INNER / COLUMNS, DOWNS = WIDTH / COLUMNS;  // tasks per tile
static_assert(INNER % COLUMNS == 0 && WIDTH % 256 == 0 && TOP <= EXPERTS && EXPERTS <= 32 && GROUP * TOP <= 32);

// A task: its kind, and its index among those of the kind: tile times the number of columns, plus the column.
enum Kind : int { ROUTE, UP, DOWN };
constexpr int KIND_AT = 18;
constexpr s32 AWAITS = 1 << 30, NO_MORE = -1, END = 3 << KIND_AT;  // END: the end of the queue
static_assert(TILES * UPS < 1 << KIND_AT && TILES * DOWNS < 1 << KIND_AT);

__device__ __forceinline__ s32 task_of(Kind kind, int number) { return kind << KIND_AT | number; }
__device__ __forceinline__ int kind_of(s32 task) { return task >> KIND_AT & 3; }
__device__ __forceinline__ int number_of(s32 task) { return task & ((1 << KIND_AT) - 1); }

// Words of `counts`, which the last block of a run resets to zero. First those that describe memory that TMA reads.
constexpr int LINE = 32;
constexpr int FILLED_AT = 0, UP_DONE_AT = FILLED_AT + TILES, ROUTED_AT = UP_DONE_AT + TILES + LINE,
              TAIL_AT = ROUTED_AT + LINE, COUNT_AT = TAIL_AT + LINE, HEAD_AT = COUNT_AT + EXPERTS * LINE,
              SENT_AT = HEAD_AT + LINE, ARRIVED_AT = SENT_AT + LINE, COUNTS = ARRIVED_AT + TOKENS * DOWNS;
// Words of `kept`, which persist from run to run.
constexpr int EPOCH_AT = 0, LEFT_AT = LINE, SENT_BEFORE_AT = 2 * LINE, TAKEN_AT = 3 * LINE,
              PLACES_AT = TAKEN_AT + BLOCKS, KEPT = PLACES_AT + MOST_TILES * (UPS + DOWNS) + BLOCKS;

static_assert(COUNTS == COUNTS_WORDS && KEPT == KEPT_WORDS, "shape.py makes room for them");

// What assigns tasks to blocks: every block strides through all possible tasks, a queue on the GPU, or a thread of
// the CPU.
enum Dealing : int { LISTS, QUEUE, PILOT };

struct alignas(64) Arguments {
    TensorMap sorted, inner, up, down;  // operands of products
    const unsigned char *tokens, *router;  // [TOKENS, WIDTH], [EXPERTS, WIDTH]
    unsigned char *sorted_rows, *inner_rows;  // [TILES * ROWS, WIDTH], [TILES * ROWS, INNER]
    float* parts;  // [TOKENS * TOP, WIDTH]: each expert's result for a token
    unsigned char* out;  // [TOKENS, WIDTH]
    s32 *sources, *counts, *kept, *record;  // sources [TILES * ROWS]: the token of a row, times TOP, and its rank there
    float* weights;  // [TOKENS * TOP]
    u64* link;
    s32 first, last;  // kinds of tasks in this launch
    const s32* seed;
};
static_assert(sizeof(Arguments) == 640, "layer.py writes its words");

// Shared memory.
constexpr int SLOTS = 8, TASK_SLOTS = 2;  // at most one task is fetched while another is processed
constexpr int A_BYTES = ROWS * K_BLOCK * 2, B_BYTES = 2 * COLUMNS * K_BLOCK * 2;
constexpr u32 B_AT = SLOTS * A_BYTES, FULL_AT = B_AT + SLOTS * B_BYTES, FREE_AT = FULL_AT + 8 * SLOTS,
              TASK_FULL_AT = FREE_AT + 8 * SLOTS, TASK_FREE_AT = TASK_FULL_AT + 8 * TASK_SLOTS,
              STORED_AT = TASK_FREE_AT + 8 * TASK_SLOTS, WORDS_AT = STORED_AT + 8 * TASK_SLOTS,
              PLACES_SHARED = WORDS_AT + 8 * TASK_SLOTS, LAST_AT = PLACES_SHARED + 4 * 32 * TASK_SLOTS,
              RESET_AT = LAST_AT + 4 * ROWS, END_AT = RESET_AT + 16;
static_assert(END_AT + 1024 <= SHARED_BYTES);

__device__ __forceinline__ void consumers_meet() { barrier_sync<1, CONSUMERS>(); }

// For tests: sleeps up to DELAY_NS, a different time per task, block, run and place.
__device__ __forceinline__ void delay(const Arguments& p, int number, u32 place) {
    if constexpr (DELAY_NS > 0)
        nap((number + 1) * 40503u + (blockIdx.x + 1) * 58757u + *p.seed * 30011u + place * 7919u);
}

// The number of rows of a tile that have a token.
__device__ __forceinline__ int rows_of(const Arguments& p, int tile) {
    const int left = load_acquire_gpu_s32(p.counts + COUNT_AT + tile / HIGH * LINE) - tile % HIGH * ROWS;
    return left < ROWS ? left : ROWS;
}
