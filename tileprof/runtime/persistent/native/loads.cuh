// The warps that load: weights, which wait only for free slots, and activations, which await semaphores, most of them
// in a separate warp.
#pragma once

#include "common.cuh"
#include "dealing.cuh"

// Weights: the rows of a tile, twice with a gate, and as many blocks of 64 along k as fit into a slot.
template <class S>
__device__ __forceinline__ void load_block(const TensorMap* map, u32 to, u32 full, int row, int k, Rank rank) {
    // Weights that only one row of tiles reads are evicted first from L2.
    constexpr u64 HINT = S::ONE_ROW ? EVICT_FIRST : EVICT_NORMAL;
    const int tap = k % S::TAPS, channel = k / S::TAPS * SLOT_COLUMNS;
    if constexpr (PAIRED) {
        row += rank.half * (S::GATED ? S::N : S::COLUMNS / 2);
        const unsigned short blocks = 3 << rank.with_half(0);
        copy_tensor_3d_multicast(to + rank.half * (S::BLOCK_BYTES / 2), map, full, channel, tap, row, blocks, HINT);
    } else if constexpr (S::INTERLEAVED) {  // what each warpgroup multiplies: its gates, then what they gate
        for (int quarter = 0; quarter < 4; ++quarter)
            copy_tensor_3d(to + quarter * (S::BLOCK_BYTES / 4), map, full, channel, tap,
                           row + quarter % 2 * S::N + quarter / 2 * S::SEGMENT, HINT);
    } else {
        copy_tensor_3d(to, map, full, channel, tap, row, HINT);
        if constexpr (S::GATED) copy_tensor_3d(to + S::BLOCK_BYTES / 2, map, full, channel, tap, S::N + row, HINT);
    }
}

// Returns when so few loads are in flight that a block may request more weights. More loads than the memory answers
// at a time only queue there: some blocks then get half as much again as others, and activations wait behind weights.
// Blocks at a task whose activations cannot be loaded yet leave the others a larger share.
template <class S>
__device__ __forceinline__ void wait_for_share(u32 shared, int slot, int task) {
    if constexpr (S::UNDER_WAY > 0) {
        const int landed = slot - (load_shared_s32(shared + BEGUN) < task ? S::UNDER_WAY_AHEAD : S::UNDER_WAY);
        if (landed >= 0) wait_cta(shared + B_FULL + 8 * (landed % B_SLOTS), landed / B_SLOTS & 1);
    }
}

__device__ __forceinline__ void load_weights(const Arguments& arguments, u32 shared, Rank rank, const Tasks& tasks) {
    Ring<B_SLOTS> ring;
    int slot = 0;
    for_fetched_tasks(arguments, tasks, [&](auto stage, const Task& task, int number) {
        using S = decltype(stage);
        if constexpr (!S::ATTENTION) {  // which multiplies only what stages in front compute
            const TensorMap* map = &arguments.stage[S::INDEX].weights;
            const auto [begin, end] = blocks_of<S>(task, rank);
            for (int k = begin; k < end; k += S::PACK, ring.advance(), ++slot) {
                const u32 full = shared + B_FULL + 8 * ring.slot, to = shared + B_AT + ring.slot * B_BYTES;
                const int blocks = end - k < S::PACK ? end - k : S::PACK;
                wait_blocks<HALVES>(shared + B_FREE + 8 * ring.slot, ring.turn ^ 1);
                wait_for_share<S>(shared, slot, number);
                mbarrier_arrive_expect_release_cta(full, blocks * S::BLOCK_BYTES);
                for (int block = 0; block < blocks; ++block)
                    load_block<S>(map, to + block * S::BLOCK_BYTES, full, first_column<S>(task, rank), k + block, rank);
            }
        }
    });
}

struct Wait {
    int k_from, k_to, semaphore, value, posts;
};

// Returns whether a count has reached a value that is less than half a round before or after it: both continue from
// 2^31 - 1 to -2^31. (The difference of signed numbers may not overflow, so that compilers compare the two directly,
// which is wrong in the run that wraps around.)
__device__ __forceinline__ bool reached(s32 seen, s32 expected) {
    return static_cast<s32>(static_cast<u32>(seen) - static_cast<u32>(expected)) >= 0;
}

// Returns when the semaphore has reached its value, or on timeout, like tileprof.runtime.sync.device.wait.
__device__ __forceinline__ void await(const Arguments& arguments, const Wait& wait, u32 epoch, int stage, int tile) {
    const s32* flag = arguments.flags + wait.semaphore * FLAG_WORDS;
    const u32 before = epoch * static_cast<u32>(wait.posts);
    const s32 expected = static_cast<s32>(before + static_cast<u32>(wait.value));
    if (reached(load_acquire_gpu_s32(flag), expected)) return;
    const u64 start = globaltimer();
    while (true) {
        nanosleep(20);
        const s32 seen = load_acquire_gpu_s32(flag);
        if (reached(seen, expected)) return;
        if (globaltimer() - start > TIMEOUT_NS || load_relaxed_gpu_s32(arguments.record) != 0) {
            if (compare_and_swap_relaxed_gpu_s32(arguments.record, 0, 1) == 0) {
                arguments.record[1] = stage;
                arguments.record[2] = tile;
                arguments.record[3] = wait.semaphore;
                arguments.record[4] = static_cast<s32>(static_cast<u32>(seen) - before);
                arguments.record[5] = wait.value;
            }
            return;
        }
    }
}

// The waits of a task, in order of k_from, 32 at a time: one per lane, so that their latencies overlap.
struct Waits {
    const Arguments& arguments;
    const Task& task;
    const u32 lane, epoch;
    const int begin;  // the block's part of k
    int first;
    bool mine;
    Wait wait;

    __device__ Waits(const Arguments& arguments, const Task& task, u32 lane, u32 epoch, int begin)
        : arguments(arguments), task(task), lane(lane), epoch(epoch), begin(begin), first(task.wait) {
        read();
    }

    __device__ void read() {
        const int number = first + lane;
        mine = number < task.waits_end;
        if (mine) {
            const s32* row = arguments.waits + 5 * number;
            wait = {row[0], row[1], row[2], row[3], row[4]};
            if (wait.k_to <= begin) wait.k_from = -1;  // this wait concerns another block and counts as done
        }
    }

    // All lanes: returns when block k may be loaded; true if there was something to wait for.
    __device__ bool before(int k) {
        bool waited = false;
        while (__any_sync(~0u, mine && wait.k_from <= k)) {
            if (mine && wait.k_from <= k) {
                if (wait.k_from >= 0) await(arguments, wait, epoch, task.stage, task.tile);
                mine = false;
            }
            waited = true;
            __syncwarp();
            if (!__any_sync(~0u, mine) && first + 32 < task.waits_end) {
                first += 32;
                read();
            }
        }
        return waited;
    }

    // The first block that still has to be awaited, but at most `end`.
    __device__ int awaited_to(int end) const {
        return __reduce_min_sync(~0u, mine && wait.k_from < end ? wait.k_from : end);
    }
};

// The bytes of a slot of activations.
template <class S>
__device__ __forceinline__ u32 slot_bytes(int k) {
    if constexpr (S::ATTENTION)
        return (k < S::QUERY_SLOTS && S::TILE_ROWS <= KEYS ? 1 : SLOT_BOXES) * HEAD_BOX_BYTES;
    else
        return S::BOX_ROWS * SLOT_COLUMNS * 2;
}

// Slot k of a task of attention: 64 columns of the queries, or boxes of a block of keys, then of its values.
template <class S>
__device__ __forceinline__ void load_heads(const StageTensors& tensors, u32 to, u32 full, const Task& task, int k) {
    constexpr int BOXES = S::N / SLOT_COLUMNS;
    if (k < S::QUERY_SLOTS) {
        for (u32 box = 0; box < slot_bytes<S>(k) / HEAD_BOX_BYTES; ++box)
            copy_tensor_4d(to + box * HEAD_BOX_BYTES, &tensors.weights, full, k * SLOT_COLUMNS, task.column,
                           task.row * S::TILE_ROWS + box * KEYS, 0, EVICT_NORMAL);
        return;
    }
    const int block = (k - S::QUERY_SLOTS) / S::BLOCK_SLOTS, part = (k - S::QUERY_SLOTS) % S::BLOCK_SLOTS;
    for (int box = part * SLOT_BOXES; box < (part + 1) * SLOT_BOXES; ++box)
        copy_tensor_4d(to + box % SLOT_BOXES * HEAD_BOX_BYTES, box < BOXES ? &tensors.activations : &tensors.values,
                       full, box % BOXES * SLOT_COLUMNS, task.column / S::SHARERS, block * KEYS, 0, EVICT_NORMAL);
}

template <class S>
__device__ __forceinline__ void load_activation(const TensorMap* map, u32 to, u32 full, int first, int k) {
    const int tap = k % S::TAPS / S::SLOT_TAPS * S::SLOT_TAPS, channel = k / S::TAPS * SLOT_COLUMNS;
    if constexpr (S::CONVOLUTION) {
        const int x = first % S::Q * S::STRIDE + tap % S::S - S::PADDING;
        const int y = first / S::Q % S::P * S::STRIDE + tap / S::S - S::PADDING;
        copy_tensor_4d(to, map, full, channel, x, y, first / (S::P * S::Q), EVICT_NORMAL);
    } else {
        copy_tensor_4d(to, map, full, channel, first, 0, 0, EVICT_NORMAL);
    }
}

// The index of block k of a cluster's task among all blocks of its tasks, from 1 on: blocks up to the value of the
// word AWAITED may be loaded.
__device__ __forceinline__ u32 ordinal(const Tasks& tasks, int number, int k) {
    return (number - tasks.begin) * MOST_K_BLOCKS + k + 1;
}

// The task that is being loaded.
__device__ __forceinline__ int loading(u32 shared, const Tasks& tasks) {
    return tasks.begin + load_acquire_cta_shared_u32(shared + LOADED);
}

// All lanes of a warp: awaits the semaphores of task after task, a few tasks ahead of the loads. (Not more, because
// every poll empties L1.)
__device__ __forceinline__ void await_tasks(const Arguments& arguments, u32 shared, Rank rank, const Tasks& tasks) {
    const u32 epoch = arguments.state[0];
    const u32 lane = threadIdx.x % 32;
    for_tasks(arguments, tasks, [&](auto stage, const Task& task, int number) {
        using S = decltype(stage);
        const auto [begin, end] = blocks_of<S>(task, rank);
        Waits waits(arguments, task, lane, epoch, begin);
        if (lane == 0) until([&] { return number <= loading(shared, tasks) + MOST_AHEAD || (nanosleep(100), false); });
        delay(arguments, number, rank, 2);
        for (int k = begin; k < end;) {
            if (waits.before(k)) fence_proxy_async_global();
            k = waits.awaited_to(end);
            __syncwarp();
            if (lane == 0) store_release_cta_shared_u32(shared + AWAITED, ordinal(tasks, number, k - 1));
        }
    });
}

// All lanes of a warp, which in pairs awaits the data that it loads itself.
__device__ __forceinline__ void load_activations(const Arguments& arguments, u32 shared, Rank rank,
                                                 const Tasks& tasks) {
    const u32 lane = threadIdx.x % 32, epoch = arguments.state[0];
    Ring<A_SLOTS> ring;
    u32 awaited = 0;
    for_tasks(arguments, tasks, [&](auto stage, const Task& task, int number) {
        using S = decltype(stage);
        const TensorMap* map = &arguments.stage[S::INDEX].activations;
        const auto [begin, end] = blocks_of<S>(task, rank);
        const int first = first_row<S>(task, rank);
        auto load = [&](int k) {
            const u32 full = shared + A_FULL + 8 * ring.slot;
            wait_cta(shared + A_FREE + 8 * ring.slot, ring.turn ^ 1);
            mbarrier_arrive_expect_release_cta(full, slot_bytes<S>(k));
            if constexpr (S::ATTENTION)
                load_heads<S>(arguments.stage[S::INDEX], shared + ring.slot * A_BYTES, full, task, k);
            else
                load_activation<S>(map, shared + ring.slot * A_BYTES, full, first, k);
        };
        if constexpr (HANDED) {
            Waits waits(arguments, task, lane, epoch, begin);
            delay(arguments, number, rank, 0);
            if (DEALT) fence_proxy_async_global();  // a ready task need not be awaited
            for (int k = begin; k < end; ++k, ring.advance()) {
                if (waits.before(k)) fence_proxy_async_global();
                if (lane == 0) load(k);
                __syncwarp();
            }
        } else if (lane == 0) {
            store_release_cta_shared_u32(shared + LOADED, number - tasks.begin);
            delay(arguments, number, rank, 0);
            if (DEALT) fence_proxy_async_global();
            for (int k = begin, next; k < end; k = next, ring.advance()) {
                next = slot_end<S>(k, end);
                const u32 wanted = ordinal(tasks, number, next - 1);
                if (awaited < wanted) {
                    until([&] { return (awaited = load_acquire_cta_shared_u32(shared + AWAITED)) >= wanted; });
                    fence_proxy_async_global();
                }
                if (k == begin) store_shared_s32(shared + BEGUN, number);
                load(k);
            }
        }
    });
    __syncwarp();
    // The last block that has read the number of the run increments it.
    if (lane == 0 && fetch_add_acq_rel_gpu_s32(arguments.state + 1, 1) == static_cast<s32>(gridDim.x) - 1) {
        arguments.state[1] = 0;
        arguments.state[0] = epoch + 1;
    }
}
