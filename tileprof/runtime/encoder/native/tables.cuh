// What a block reads of the tables that the host makes: stages and tasks; how they lie in shared memory; and how blocks
// hand over matrices.
//
// A matrix between stages carries its own arrival: its memory holds ABSENT words until a task has written them, which
// no arithmetic results in, and readers load again what is absent. Memory is used again (memory.py): tasks that write a
// matrix make other memory absent, tasks that add up parts of k make these absent, and a task waits until every block
// has ended the generation of stages before the last, so that no task reads what becomes absent.
#pragma once

#include "stages.h"  // first: ptx.cuh asks it for the type of halves
#include "absent.cuh"
#include "ring_waits.cuh"
#include "warp.cuh"

constexpr int CONSUMERS = 256;
constexpr int ROWS = 32;  // of a tile
constexpr int K_CHUNK = 64;  // rows of weights that a slot of the ring holds
constexpr int K_GROUPS = 4;  // groups of warps that share k
constexpr int RECORDS = 2;  // tasks whose tables are in shared memory
constexpr int PARAMETERS = 128;  // addresses that differ from call to call
constexpr int FENCE = 2;  // as in memory.py
constexpr int FENCE_WORDS = 32;
enum : int { PRODUCT = 0, ATTENTION = 1, FINISH = 2 };
constexpr int MOST_SPLITS = 4;

enum : int { NO_EPILOGUE = 0, GELU = 1, GELU_TANH = 2, SILU = 3, RELU = 4 };
enum : int { NO_MASK = 0, BOOL_MASK = 1, ADDED_MASK = 2 };

// One product, attention or end of rows of the program. An address is 0 for none; with bit 63 set it is a parameter's
// number and, from bit 8 on, an offset in bytes; with bit 62 set it is memory between stages. Pitches are in
// elements.
struct alignas(16) Stage {
    u64 activations, gamma, beta, normalised;
    u64 bias, residual, out, partials;
    u64 key, value, mask;
    // memory that tasks make absent, with the layout of `out` and `normalised`
    u64 out_wiped, normalised_wiped, unused;
    s32 kind, rows, columns, depth;  // depth: the part of k that one task multiplies
    s32 activation_pitch, residual_pitch, out_pitch, epilogue;
    float epsilon, scale;
    float masked;  // value that is added where a mask is false
    s32 causal;
    s32 mask_batch, mask_head, mask_row;
    s32 keys;
    s32 splits, width;  // splits: parts of k, or query heads that share a key head; width: columns of a tile
    s32 generation, unused_word;
};
static_assert(sizeof(Stage) == 192);

// A tile of a stage. `part`: products: first of k; attention: first row of the sequence; ends of rows: rows.
struct alignas(16) Task {
    s32 stage, row, column, part;
};
static_assert(sizeof(Task) == 16);

struct Arguments {
    const TensorMap* maps;  // of each stage's weights
    const Stage* stages;  // of each run of a period
    const Task* tasks;
    const s32* task_ends;  // index of each block's first task, and the end
    s32 *state, *record;  // state: number of runs so far, number of blocks that are done
    const s32* seed;
    u64* stamps;
    s32* fences;  // number of blocks that have ended each generation, in all runs; FENCE_WORDS apart
    s32 stage_count, period, generations, unused;
    u64 parameters[PARAMETERS];
};

// Shared memory.
constexpr u32 AREA_AT = SLOTS * SLOT_BYTES;  // activations, then sums
constexpr u32 AREA_PITCH = 2 * ACTIVATION_COLUMNS + 16;  // bytes: rows begin in different banks
constexpr u32 RECORDS_AT = AREA_AT + AREA_BYTES;
constexpr u32 RECORD_TASK = sizeof(Stage), RECORD_BIAS = RECORD_TASK + sizeof(Task),
              RECORD_GAMMA = RECORD_BIAS + 2 * ROW_COLUMNS;
constexpr u32 RECORD_BETA = RECORD_GAMMA + 2 * ROW_COLUMNS, RECORD_BYTES = RECORD_BETA + 2 * ROW_COLUMNS;
constexpr u32 BARRIERS_AT = RECORDS_AT + RECORDS * RECORD_BYTES;
constexpr u32 WEIGHTS_FULL = BARRIERS_AT, WEIGHTS_FREE = WEIGHTS_FULL + 8 * SLOTS,
              WEIGHTS_READY = WEIGHTS_FREE + 8 * SLOTS;
constexpr u32 RECORD_FULL = WEIGHTS_READY + 8 * SLOTS, RECORD_FREE = RECORD_FULL + 8 * RECORDS;
constexpr u32 BARRIERS_END = RECORD_FREE + 8 * RECORDS;
static_assert(BARRIERS_END + 1024 <= SHARED_BYTES, "rings, tables and barriers fit");
static_assert(SLOTS % CLUSTER == 0, "a slot is always filled by the same block");
static_assert(RECORD_BYTES % 16 == 0 && AREA_BYTES % 16 == 0 && SLOT_BYTES % 1024 == 0);

__device__ __forceinline__ void meet_consumers() { barrier_sync<1, CONSUMERS>(); }

// Fields of a record in shared memory.
#define STAGE_S32(record, name) load_shared_s32((record) + offsetof(Stage, name))
#define STAGE_F32(record, name) load_shared_f32((record) + offsetof(Stage, name))
#define TASK_S32(record, name) load_shared_s32((record) + RECORD_TASK + offsetof(Task, name))

// The address of a stage's matrix. `between`: in memory between stages, where words may be absent.
struct Place {
    u64 address;
    bool between;
};

__device__ __forceinline__ Place resolved(const Arguments& arguments, u64 address) {
    if (address >> 63) return {arguments.parameters[address & 255] + (address << 1 >> 9), false};
    return {address & ~(1ull << 62), (address >> 62 & 1) != 0};
}

#define STAGE_PLACE(record, name) resolved(arguments, load_shared_u64((record) + offsetof(Stage, name)))
#define STAGE_POINTER(record, name) STAGE_PLACE(record, name).address

// For tests: sleeps up to DELAY_NS, a different time per task, block, run and place.
__device__ __forceinline__ void delay(const Arguments& arguments, int number, u32 place) {
    if constexpr (DELAY_NS > 0) {
        nap((number + 1) * 40503u + (blockIdx.x + 1) * 58757u + *arguments.seed * 30011u + place * 7919u);
    }
}

__device__ __forceinline__ void stamp(const Arguments& arguments, int number, u32 place) {
    if constexpr (STAMPS > 0)
        if (threadIdx.x == 0) arguments.stamps[4 * number + place] = globaltimer();
}

// The first wait that timed out.
__device__ __noinline__ void give_up(const Arguments& arguments, u32 record) {
    if (compare_and_swap_relaxed_gpu_s32(arguments.record, 0, 1) != 0) return;
    arguments.record[1] = TASK_S32(record, stage);
    arguments.record[2] = TASK_S32(record, row);
    arguments.record[3] = TASK_S32(record, column);
    arguments.record[4] = blockIdx.x;
}

// Returns whether to try again. A wait that lasts too long is recorded, and later ones do not wait.
struct Patience {
    const Arguments& arguments;
    u32 record;
    bool& gave_up;
    u64 start = 0;
    u32 tries = 0;

    __device__ bool more() {
        if (++tries % 256 == 0) {  // the clock is slow to read
            if (start == 0) start = globaltimer();
            gave_up = gave_up || load_relaxed_gpu_s32(arguments.record) != 0;
            if (!gave_up && globaltimer() - start > TIMEOUT_NS) {
                give_up(arguments, record);
                gave_up = true;
            }
        }
        return !gave_up;
    }
};

template <class V>
__device__ __forceinline__ V load_matrix(u64 address) {
    if constexpr (sizeof(V) == 16)
        return load_relaxed_gpu_u32x4(reinterpret_cast<const void*>(address));
    else
        return load_relaxed_gpu_u32x2(reinterpret_cast<const void*>(address));
}

// Waits until everything that a thread has loaded has arrived; `where(i)`: the address from which value i was loaded.
template <int COUNT, class V, class Where>
__device__ __forceinline__ void complete(const Arguments& arguments, u32 record, V (&values)[COUNT], bool& gave_up,
                                         Where&& where) {
    Patience patience{arguments, record, gave_up};
    for (;;) {
        bool missing = false;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (absent(values[i])) {
                values[i] = poll_matrix(where(i), values[i]);
                missing = true;
            }
        if (!missing || !patience.more()) return;
    }
}

template <class V>
__device__ __forceinline__ void store_words(u64 address, const V& value) {
    if constexpr (sizeof(V) == 16)
        store_relaxed_gpu_u32x4(reinterpret_cast<void*>(address), value);
    else
        store_relaxed_gpu_u32x2(reinterpret_cast<void*>(address), value);
}

template <class V>
__device__ __forceinline__ V nothing() {
    V none;
    none.x = none.y = ABSENT;
    if constexpr (sizeof(V) == 16) none.z = none.w = ABSENT;
    return none;
}

// Stores part of a matrix, and makes the same place of `wiped` absent, if there is one and no separate warp does it.
template <class V>
__device__ __forceinline__ void store_matrix(u64 address, u64 wiped, u64 bytes, const V& value) {
    store_words(address + bytes, value);
    if constexpr (!WIPING_WARP)
        if (wiped != 0) store_words(wiped + bytes, nothing<V>());
}
