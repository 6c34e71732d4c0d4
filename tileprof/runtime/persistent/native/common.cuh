// Shared by all roles of a block: parameters, shared memory, rings and their barriers, and the tasks of a cluster.
#pragma once

#include "stages.h"  // first: ptx.cuh asks it for the type of halves
#include "ring_waits.cuh"

constexpr int CONSUMERS = 256;
constexpr int CONSUMER_WARPS = CONSUMERS / 32;
constexpr int FLAG_WORDS = 32;  // one semaphore per cache line
constexpr int SLOT_COLUMNS = 64;  // block of k
// maximum number of tasks between the task that is multiplied and the task that is posted
constexpr int POST_SLOTS = 4;
constexpr int MOST_AHEAD = 2;  // number of tasks that are awaited ahead of those that are loaded
constexpr int HALVES = PAIRED ? 2 : 1;  // halves of the rows
constexpr int PARTS = SPLIT / HALVES;  // parts of k
constexpr bool HANDED = PAIRED && PARTS == 1;  // tiles are stored as in handover.cuh
// The source of tasks: the plan's lists, a queue in global memory that blocks fill as they complete tasks, or a
// thread of the CPU.
enum { LISTS, QUEUE, PILOT };
constexpr bool DEALT = DEALER != LISTS;  // assigned while the kernel runs
// What wgmma reads of shared memory, with 128-byte swizzle: eight rows of 128 bytes are an atom, and atoms are
// consecutive.
__device__ __forceinline__ u64 descriptor(u32 address) {
    return static_cast<u64>((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

// Attention: keys of a block, which are rows of a box of 64 columns, and boxes of a slot of activations.
constexpr int KEYS = 64, SLOT_BOXES = ROWS / KEYS;
constexpr u32 HEAD_BOX_BYTES = KEYS * SLOT_COLUMNS * 2;
constexpr int DEALT_SLOTS = 4;  // maximum number of tasks between a block's roles

struct StageTensors {
    TensorMap activations, weights;  // of attention: keys, and queries
    TensorMap values;
    void* out;
    const void* bias;
    const void* residual;
    unsigned char* partials;  // if k is cut: a line per block of each tile, then sums
    const void *mean, *var, *scale, *shift;  // of a batch norm
};
static_assert(sizeof(StageTensors) == 448);

struct Arguments {
    StageTensors stage[STAGES];
    const s32* dealt;  // LISTS: a Head per cluster; otherwise the waits of tasks, see dealing.cuh
    const struct Task* tasks;
    const s32 *waits, *posts;
    const s32* seed;
    s32 *flags, *state, *record;
    unsigned char* link;  // PILOT: memory of the CPU, see dealing.cuh
};
static_assert(sizeof(Arguments) == 448 * STAGES + 128);  // 72 bytes of pointers; tensor maps are aligned to 64

// Shared memory: rings, buffers, barriers. Offsets from an address that is a multiple of 1024, as the swizzle
// requires.
constexpr u32 B_AT = A_SLOTS * A_BYTES;
constexpr u32 BUFFER_AT = B_AT + B_SLOTS * B_BYTES;
constexpr u32 BIAS_SHARED = BUFFER_AT + BUFFERS * BUFFER_BYTES;
constexpr u32 BARRIERS_AT = BIAS_SHARED + BIAS_BYTES;
constexpr u32 A_FULL = BARRIERS_AT, A_FREE = A_FULL + 8 * A_SLOTS;
constexpr u32 B_FULL = A_FREE + 8 * A_SLOTS, B_FREE = B_FULL + 8 * B_SLOTS;
constexpr u32 SUMS_FULL = B_FREE + 8 * B_SLOTS, SUMS_FREE = SUMS_FULL + 8 * BUFFERS;
constexpr u32 STORED = SUMS_FREE + 8 * BUFFERS, POSTED = STORED + 8 * POST_SLOTS;
constexpr u32 AWAITED = POSTED + 8 * POST_SLOTS, LOADED = AWAITED + 4;  // one word each: see load_activations
constexpr u32 BEGUN = LOADED + 4;  // the task whose activations are being loaded
constexpr u32 RUN = BEGUN + 4;  // number of earlier runs, if tasks are dealt
constexpr u32 DEALT_FULL = RUN + 4, DEALT_FREE = DEALT_FULL + 8 * DEALT_SLOTS,
              DEALT_WORDS = DEALT_FREE + 8 * DEALT_SLOTS;
static_assert(DEALT_WORDS + 4 * DEALT_SLOTS + 1024 <= SHARED_BYTES, "rings, buffers and barriers fit");

// The position of a block in a cluster: half `half` of the rows and part `part` of k. Blocks of a part have
// neighbouring ranks.
struct Rank {
    u32 half, part;

    // The rank of the block with another part of k for the same rows.
    __device__ u32 with_part(u32 other) const { return other * HALVES + half; }

    // The rank of a block that multiplies the same weights.
    __device__ u32 with_half(u32 other) const { return part * HALVES + other; }
};

// A row of the task table, which also says where its waits and posts are.
struct alignas(16) Task {
    int stage, row, column, tile, wait, waits_end, post, posts_end;

    // Whether it passes its sums to the tile's other task, if k is cut. It posts nothing.
    __device__ bool early() const { return posts_end < 0; }
};

// The range of a cluster's tasks, and the first of them, so that one memory access is enough to begin.
struct alignas(16) Head {
    int begin, end, unused[2];
    Task first;
};
static_assert(sizeof(Head) == 48);

// A barrier at which the threads of BLOCKS blocks arrive.
template <int BLOCKS>
__device__ __forceinline__ void wait_blocks(u32 barrier, u32 parity) {
    if constexpr (BLOCKS == 1)
        wait_cta(barrier, parity);
    else
        wait_cluster(barrier, parity);
}

// Calls work(Stage<stage>()).
template <int FIRST = 0, class Work>
__device__ __forceinline__ void with_stage(int stage, Work&& work) {
    if constexpr (FIRST + 1 == STAGES)
        work(Stage<FIRST>());
    else if (stage == FIRST)
        work(Stage<FIRST>());
    else
        with_stage<FIRST + 1>(stage, work);
}

// The tasks of a cluster. With lists, its blocks read them before the previous kernel has ended: the plan's tables
// never change.
struct Tasks : Head {
    u32 shared, rank;

    __device__ Tasks(const Arguments& arguments, u32 shared, u32 rank) : Head(), shared(shared), rank(rank) {
        if constexpr (!DEALT) {
            static_cast<Head&>(*this) = reinterpret_cast<const Head*>(arguments.dealt)[blockIdx.x / SPLIT];
            if (HANDED && begin < end) prefetch_global_l1(arguments.tasks + begin);
        }
    }
};

// The contents of a slot of dealt tasks: a task number, possibly with the bit that tells the block to await the
// semaphores itself, or the end.
constexpr s32 AWAITS = 1 << 30, NO_MORE = -1;

// A dealt task. A task that is ready has no waits.
struct DealtTask : Task {
    s32 id;

    __device__ DealtTask(const Arguments& arguments, s32 dealt)
        : Task(arguments.tasks[dealt & ~AWAITS]), id(dealt & ~AWAITS) {
        if ((dealt & AWAITS) == 0) waits_end = wait;
    }
};

// The readers of a slot: a slot is free once every role of every block of the cluster has read it: the thread that
// fetches, two or three warps, and those that multiply.
constexpr int DEALT_READERS = SPLIT * (1 + (HANDED ? 2 : 3) + CONSUMER_WARPS);

// Tells the block that fetches that a slot has been read.
__device__ __forceinline__ void free_dealt(const Tasks& tasks, u32 slot) {
    const u32 barrier = tasks.shared + DEALT_FREE + 8 * slot;
    if constexpr (SPLIT == 1)
        mbarrier_arrive_release_cta(barrier);
    else
        mbarrier_arrive_relaxed_cluster(map_shared_rank(barrier, 0));
}

// All lanes: returns the next dealt task.
__device__ __forceinline__ s32 dealt_next(const Tasks& tasks, const Ring<DEALT_SLOTS>& ring) {
    wait_blocks<SPLIT>(tasks.shared + DEALT_FULL + 8 * ring.slot, ring.turn);
    const s32 dealt = load_shared_s32(tasks.shared + DEALT_WORDS + 4 * ring.slot);
    __syncwarp();
    if (threadIdx.x % 32 == 0) free_dealt(tasks, ring.slot);
    return dealt;
}

// Calls work(Stage<stage>(), task, number) for each task; a row is read while the task before is processed.
template <class Work>
__device__ __forceinline__ void for_tasks(const Arguments& arguments, const Tasks& tasks, Work&& work) {
    if constexpr (DEALT) {
        Ring<DEALT_SLOTS> ring;
        for (int number = 0;; ++number, ring.advance()) {
            const s32 dealt = dealt_next(tasks, ring);
            if (dealt == NO_MORE) return;
            const DealtTask task(arguments, dealt);
            with_stage(task.stage, [&](auto stage) { work(stage, task, number); });
        }
    } else {
        Task next = tasks.first;
        for (int number = tasks.begin; number < tasks.end; ++number) {
            const Task task = HANDED ? arguments.tasks[number] : next;
            if (HANDED && number + 1 < tasks.end)
                prefetch_global_l1(arguments.tasks + number + 1);  // in registers, the next row makes ptxas spill
            if (!HANDED && number + 1 < tasks.end) next = arguments.tasks[number + 1];
            with_stage(task.stage, [&](auto stage) { work(stage, task, number); });
        }
    }
}

// For tests: sleeps up to DELAY_NS, a different time per task, rank, run and place.
__device__ __forceinline__ void delay(const Arguments& arguments, int task, Rank rank, u32 place) {
    if constexpr (DELAY_NS > 0) {
        random_sleep((task + 1) * 40503u + (rank.with_part(rank.part) + 1) * 58757u + *arguments.seed * 30011u +
                     place * 7919u);
    }
}

// A block's part of k, which is all of k if blocks stand abreast.
template <class S>
__device__ __forceinline__ u32 part_of(Rank rank) {
    return S::ABREAST > 1 ? 0 : rank.part;
}

template <class S>
__device__ __forceinline__ int k_begin(u32 part) {
    return S::K_BLOCKS / S::SHARE * part / (S::ABREAST > 1 ? 1 : PARTS) * S::SHARE;
}

// The blocks of keys that a task of attention reads.
template <class S>
__device__ __forceinline__ int key_blocks(const Task& task) {
    const int seen = S::CAUSAL ? (task.row + 1) * S::TILE_ROWS : S::KEY_ROWS;
    return ((seen < S::KEY_ROWS ? seen : S::KEY_ROWS) + KEYS - 1) / KEYS;
}

// The blocks of k of a task in this block; of attention, the slots that it loads.
struct Blocks {
    int begin, end;
};

template <class S>
__device__ __forceinline__ Blocks blocks_of(const Task& task, Rank rank) {
    if constexpr (S::ATTENTION) return {0, S::QUERY_SLOTS + S::BLOCK_SLOTS * key_blocks<S>(task)};
    if constexpr (S::CUT > 0) return task.early() ? Blocks{0, S::CUT} : Blocks{S::CUT, S::K_BLOCKS};
    return {k_begin<S>(part_of<S>(rank)), k_begin<S>(part_of<S>(rank) + 1)};
}

// The first row of the result of a tile that this block holds.
template <class S>
__device__ __forceinline__ int first_row(const Task& task, Rank rank) {
    return task.row * S::TILE_ROWS + rank.half * ROWS;
}

// The first column of the result for which this block has sums.
template <class S>
__device__ __forceinline__ int first_column(const Task& task, Rank rank) {
    return task.column * S::TILE_COLUMNS + (S::ABREAST > 1 ? rank.part * (S::TILE_COLUMNS / S::ABREAST) : 0);
}

// Blocks of k run over channels, and per channel over taps. A slot of activations serves SLOT_TAPS of them, or those
// of the block's part of k. Returns the end of the blocks that share the slot of block k.
template <class S>
__device__ __forceinline__ int slot_end(int k, int end) {
    if constexpr (S::SLOT_TAPS == 1) return k + 1;
    const int next = (k / S::SLOT_TAPS + 1) * S::SLOT_TAPS;
    return next < end ? next : end;
}

// The number of rows in the product of a tile that has `left` rows of the result from its first one on.
template <class S>
__device__ __forceinline__ int product_rows(int left) {
    if constexpr (S::SLOT_TAPS == 1) return left < S::BLOCK_ROWS ? left : S::BLOCK_ROWS;
    if constexpr (S::IMAGES > 1) return left > S::IMAGE_PIXELS ? S::BLOCK_ROWS : S::BLOCK_ROWS - 64;
    return S::BLOCK_ROWS;
}

// The row of the result, relative to a tile's first one, of a row of its product; -1 if there is none.
template <class S>
__device__ __forceinline__ int result_row(int row) {
    if constexpr (S::SLOT_TAPS == 1) {
        return row;
    } else {
        const int image = S::IMAGES == 1 ? 0 : row / 64, mine = row - 64 * image;
        const int column = mine % S::ROW_STEP, pixel = mine / S::ROW_STEP * S::ROW_PIXELS + column;
        return column < S::ROW_PIXELS && pixel < S::IMAGE_PIXELS ? image * S::IMAGE_PIXELS + pixel : -1;
    }
}
