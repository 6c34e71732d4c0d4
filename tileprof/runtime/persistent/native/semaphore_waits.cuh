// Waits of tasks for semaphores that other blocks post; the warp that awaits them in front of the loads.
#pragma once

#include "common.cuh"
#include "dealing.cuh"

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
