// One launch for the layers of a transformer: products with what surrounds them, attention, and ends of rows, where
// parts of sums meet and norms are.
//
// Every block takes the tasks of its list in order. In a block
//
//     warps 0 to 7  load a task's activations, again and again until they are there, multiply, finish and store.
//     warp 8        says which slots of the ring of weights are free; it waits for nothing else: not tasks, not stages.
//     warp 9        loads weights into the slots that are free in all blocks of the cluster, which share them.
//     warp 10       has the next task's tables, bias and parameters of the norm in shared memory when it begins; posts
//                   generations that the block has ended, and waits for those that the next task needs ended.
//     warp 11       makes memory absent, if WIPING_WARP says that consumers do not.
//
// What stages there are is in tables, so that programs of any length are the same code. "stages.h" is made by
// source.py: sizes, and the widths of products.
#include "attention.cuh"
#include "finish.cuh"
#include "product.cuh"

constexpr int THREADS = 384;

// The weights that a task multiplies.
struct alignas(16) Stream {
    s32 stage, column, from, chunks, bytes, unused[3];
};

extern __shared__ unsigned char memory[];

struct Parameters {
    Arguments arguments;
    const Stream* streams;
    const s32* stream_ends;
};

// Calls work(stream, blocks of k before) for the weights of the tasks of this cluster.
template <class Work>
__device__ __forceinline__ void for_streams(const Parameters& parameters, Work&& work) {
    const s32 cluster = blockIdx.x / CLUSTER, end = parameters.stream_ends[cluster + 1];
    s32 number = parameters.stream_ends[cluster];
    if (number == end) return;
    u32 chunk = 0;
    for (Stream next = parameters.streams[number]; number < end;) {
        const Stream stream = next;
        if (++number < end) next = parameters.streams[number];
        work(stream, chunk);
        chunk += stream.chunks;
    }
}

__device__ __forceinline__ void say_free(const Parameters& parameters, u32 shared) {
    for_streams(parameters, [&](const Stream& stream, u32 chunk) {
#pragma unroll 1
        for (u32 place = chunk; place < chunk + stream.chunks; ++place) {
            const u32 slot = place % SLOTS, ready = shared + WEIGHTS_READY + 8 * slot;
            wait_cta(shared + WEIGHTS_FREE + 8 * slot, (place / SLOTS & 1) ^ 1);
            mbarrier_arrive_expect_release_cta(shared + WEIGHTS_FULL + 8 * slot, stream.bytes);
            if constexpr (CLUSTER == 1)
                mbarrier_arrive_release_cta(ready);
            else
                mbarrier_arrive_relaxed_cluster(map_shared_rank(ready, place % CLUSTER));
        }
    });
}

// A block of k: as rows of columns, or as rows of k of 32 columns each.
__device__ __forceinline__ void copy_weights(u32 to, const TensorMap* map, u32 barrier, s32 k, s32 column) {
    const s32 x = K_MAJOR ? k : 0, y = K_MAJOR ? column : k, z = K_MAJOR ? 0 : column / 32;
    if constexpr (CLUSTER == 1)
        copy_tensor_3d(to, map, barrier, x, y, z, EVICT_NORMAL);
    else
        copy_tensor_3d_multicast(to, map, barrier, x, y, z, (1 << CLUSTER) - 1, EVICT_NORMAL);
}

__device__ __forceinline__ void load_weights(const Parameters& parameters, u32 shared, u32 rank) {
    for_streams(parameters, [&](const Stream& stream, u32 chunk) {
        const TensorMap* map = parameters.arguments.maps + stream.stage;
        prefetch_tensormap(map);
#pragma unroll 1
        for (u32 place = chunk; place < chunk + stream.chunks; ++place) {
            if (place % CLUSTER != rank) continue;
            const u32 slot = place % SLOTS, to = shared + slot * SLOT_BYTES, full = shared + WEIGHTS_FULL + 8 * slot;
            const s32 k = stream.from + K_CHUNK * (place - chunk);
            wait_cluster(shared + WEIGHTS_READY + 8 * slot, place / SLOTS & 1);
            copy_weights(to, map, full, k, stream.column);
        }
    });
}

__device__ __forceinline__ void copy_table(u32 to, const void* from, int vectors, int lane) {
#pragma unroll 1
    for (int i = lane; i < vectors; i += 32)
        store_shared_u32x4(to + 16 * i, load_table_u32x4(static_cast<const uint4*>(from) + i));
}

// Waits until all blocks have ended a generation in this run.
__device__ __forceinline__ void wait_for_end(const Arguments& arguments, u32 record, int generation, u32 posts,
                                             bool& gave_up) {
    Patience patience{arguments, record, gave_up};
    const s32* fence = arguments.fences + FENCE_WORDS * generation;
    while (static_cast<s32>(static_cast<u32>(load_acquire_gpu_s32(fence)) - posts) < 0 && patience.more()) {
    }
}

// Prepares one record after the other, while consumers process the one before. A record is free when its task is
// done: then the block has ended all generations before the next task's.
__device__ __forceinline__ void read_tables(const Arguments& arguments, u32 shared, int lane) {
    static_assert(RECORDS == 2, "of the tasks before the next, one may not be done");
    const int begin = arguments.task_ends[blockIdx.x], end = arguments.task_ends[blockIdx.x + 1];
    const u32 runs = load_relaxed_gpu_s32(arguments.state), posts = (runs + 1) * gridDim.x;
    const Stage* stages = arguments.stages + runs % arguments.period * arguments.stage_count;
    int ended = 0, before = 0;  // generations: that of the task before, which was posted
    bool gave_up = false;
#pragma unroll 1
    for (int number = begin; number < end + RECORDS; ++number) {
        const u32 place = number - begin, slot = place % RECORDS, record = shared + RECORDS_AT + slot * RECORD_BYTES;
        wait_cta(shared + RECORD_FREE + 8 * slot, (place / RECORDS & 1) ^ 1);
        for (; ended < before; ++ended)
            if (lane == 0) add_release_gpu_s32(arguments.fences + FENCE_WORDS * ended, 1);
        if (number >= end) {
            before = arguments.generations;
            continue;
        }
        const Task task = arguments.tasks[number];
        copy_table(record, stages + task.stage, sizeof(Stage) / 16, lane);
        copy_table(record + RECORD_TASK, arguments.tasks + number, sizeof(Task) / 16, lane);
        __syncwarp();
        const u64 gamma = STAGE_POINTER(record, gamma), beta = STAGE_POINTER(record, beta),
                  bias = STAGE_POINTER(record, bias);
        const int columns = STAGE_S32(record, columns), width = STAGE_S32(record, width), left = columns - task.column,
                  generation = STAGE_S32(record, generation);
        if (gamma != 0) {
            copy_table(record + RECORD_GAMMA, reinterpret_cast<const void*>(gamma), columns / 8, lane);
            copy_table(record + RECORD_BETA, reinterpret_cast<const void*>(beta), columns / 8, lane);
        }
        if (bias != 0)
            copy_table(record + RECORD_BIAS, reinterpret_cast<const void*>(bias + 2 * static_cast<u64>(task.column)),
                       (left < width ? left : width) / 8, lane);
        if (generation != before && generation >= FENCE && lane == 0)
            wait_for_end(arguments, record, generation - FENCE, posts, gave_up);
        before = generation;
        __syncwarp();
        if (lane == 0) mbarrier_arrive_release_cta(shared + RECORD_FULL + 8 * slot);
    }
}

// Makes rows from `row` on absent, from column `column` on.
__device__ __forceinline__ void wipe(u64 matrix, int pitch, int row, int rows, int column, int columns, int lane) {
    if (matrix == 0) return;
#pragma unroll 1
    for (int i = lane; i < rows * (columns / 4); i += 32)
        store_words(matrix + 2 * (static_cast<u64>(row + i / (columns / 4)) * pitch + column + i % (columns / 4) * 4),
                    nothing<uint2>());
}

// Makes the memory of each task absent while consumers process it, or shortly before.
__device__ __forceinline__ void wipe_matrices(const Arguments& arguments, u32 shared, int lane) {
    const int begin = arguments.task_ends[blockIdx.x], end = arguments.task_ends[blockIdx.x + 1];
#pragma unroll 1
    for (int number = begin; number < end; ++number) {
        const u32 place = number - begin, slot = place % RECORDS, record = shared + RECORDS_AT + slot * RECORD_BYTES;
        wait_cta(shared + RECORD_FULL + 8 * slot, place / RECORDS & 1);
        const int kind = STAGE_S32(record, kind), row = TASK_S32(record, row), part = TASK_S32(record, part),
                  all_columns = STAGE_S32(record, columns);
        int end_row = STAGE_S32(record, rows), column = 0, columns = all_columns;
        if (kind == ATTENTION) {
            column = HEAD * TASK_S32(record, column), columns = HEAD, end_row = part + STAGE_S32(record, keys);
        } else if (kind == PRODUCT) {
            const int width = STAGE_S32(record, width);
            column = TASK_S32(record, column), columns = columns - column < width ? columns - column : width;
        }
        const int most = kind == FINISH ? part : ROWS, rows = end_row - row < most ? end_row - row : most;
        wipe(STAGE_POINTER(record, out_wiped), STAGE_S32(record, out_pitch), row, rows, column, columns, lane);
        wipe(STAGE_POINTER(record, normalised_wiped), all_columns, row, rows, column, columns, lane);
        __syncwarp();
        if (lane == 0) mbarrier_arrive_release_cta(shared + RECORD_FREE + 8 * slot);
    }
}

__device__ __forceinline__ void consume(const Arguments& arguments, u32 shared) {
    const int begin = arguments.task_ends[blockIdx.x], end = arguments.task_ends[blockIdx.x + 1];
    u32 chunk = 0;
    bool gave_up = false;
#pragma unroll 1
    for (int number = begin; number < end; ++number) {
        const u32 place = number - begin, slot = place % RECORDS, record = shared + RECORDS_AT + slot * RECORD_BYTES;
        wait_cta(shared + RECORD_FULL + 8 * slot, place / RECORDS & 1);
        const int kind = STAGE_S32(record, kind), depth = STAGE_S32(record, depth);
        stamp(arguments, number, 0);
        switch (kind) {
            case PRODUCT:
                product(arguments, shared, record, number, chunk, gave_up);
                break;
            case FINISH:
                finish(arguments, shared, record, number, gave_up);
                break;
            default:
                attention(arguments, shared, record, number, gave_up);
        }
        delay(arguments, number, 1);
        meet_consumers();  // shared memory is the next task's
        stamp(arguments, number, 3);
        if (kind == PRODUCT) chunk += (depth + K_CHUNK - 1) / K_CHUNK;
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive_release_cta(shared + RECORD_FREE + 8 * slot);
    }
    if (threadIdx.x == 0 && fetch_add_acq_rel_gpu_s32(arguments.state + 1, 1) == static_cast<s32>(gridDim.x) - 1) {
        arguments.state[1] = 0;
        arguments.state[0] += 1;
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    transformer(const __grid_constant__ Parameters parameters) {
    const u32 shared = (shared_address(memory) + 1023) & ~1023u, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (u32 slot = 0; slot < SLOTS; ++slot) {
            mbarrier_init(shared + WEIGHTS_FULL + 8 * slot, 1);
            mbarrier_init(shared + WEIGHTS_FREE + 8 * slot, 2);
            mbarrier_init(shared + WEIGHTS_READY + 8 * slot, CLUSTER);
        }
        init_ring<RECORDS>(shared + RECORD_FULL, shared + RECORD_FREE, 1, CONSUMERS / 32 + WIPING_WARP);
        fence_mbarrier_init_release_cluster();
    }
    cluster_barrier();
    if (warp < CONSUMERS / 32) {
        registers_take<224>();
        consume(parameters.arguments, shared);
    } else {
        registers_give<56>();
        if (warp == 8 && lane == 0) say_free(parameters, shared);
        if (warp == 9 && lane == 0) load_weights(parameters, shared, blockIdx.x % CLUSTER);
        if (warp == 10) read_tables(parameters.arguments, shared, lane);
        if (WIPING_WARP && warp == 11) wipe_matrices(parameters.arguments, shared, lane);
        __syncwarp();
    }
    cluster_barrier();
}
