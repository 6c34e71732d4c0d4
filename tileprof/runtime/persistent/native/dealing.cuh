// Tasks that are dealt while the kernel runs.
//
// QUEUE: a queue in global memory, of tickets. A cluster draws the next ticket and waits until a task stands in that
// place. The block that completes the last semaphore of a task puts it in. Nothing is emptied between runs: counts
// continue, and what stands in a place says of which run it is.
//
//     done -> semaphore + 1 -- value? -> each waiter's count + 1 -- all? -> place in the queue -> cluster that drew it
//
// PILOT: a thread of the CPU says what comes next, in a ring for each cluster in memory of the CPU, and reads of what
// is done in another. CLAIMS: it may write another task over a command until the cluster reads it, which takes what it
// read and writes that word into a ring of claims.
#pragma once

#include "common.cuh"

// Counts in device memory behind the semaphores and sums, with a cache line each if many threads add to them.
constexpr int HEAD_AT = COUNTS_AT, TAIL_AT = HEAD_AT + FLAG_WORDS, PENDING_AT = TAIL_AT + FLAG_WORDS,
              PLACES_AT = PENDING_AT + TASKS;  // QUEUE
constexpr int SENT_AT = COUNTS_AT, TAKEN_AT = SENT_AT + FLAG_WORDS, DONE_AT = TAKEN_AT + CLUSTERS;  // PILOT

// A slot of the queue, or of the ring of a cluster: a task number, marked with its run or its turn.
constexpr int NUMBER_BITS = 20;
constexpr s32 NUMBERS = (1 << NUMBER_BITS) - 1;
static_assert(TASKS <= NUMBERS);

__device__ __forceinline__ s32 marked(u32 run, s32 task) {
    return static_cast<s32>((run + 1) % 2048 << NUMBER_BITS | static_cast<u32>(task));
}

// Memory of the CPU: a word that ends everything, then a ring of COMMANDS per cluster, then one ring of COMPLETIONS,
// then a ring of COMMANDS per cluster in which it repeats each command that it took.
constexpr int LINK_HEAD = 16;

__device__ __forceinline__ u64* link_commands(const Arguments& arguments, int cluster) {
    return reinterpret_cast<u64*>(arguments.link) + LINK_HEAD + cluster * COMMANDS;
}

__device__ __forceinline__ u64* link_completions(const Arguments& arguments) {
    return reinterpret_cast<u64*>(arguments.link) + LINK_HEAD + CLUSTERS * COMMANDS;
}

__device__ __forceinline__ u64* link_claims(const Arguments& arguments, int cluster) {
    return link_completions(arguments) + COMPLETIONS + cluster * COMMANDS;
}

// Records that no task arrived, like a wait that timed out, with the task's slot instead of a semaphore.
__device__ __forceinline__ void record_no_task(const Arguments& arguments, s32 place) {
    if (compare_and_swap_relaxed_gpu_s32(arguments.record, 0, 1) == 0) {
        arguments.record[1] = 0;
        arguments.record[2] = 0;
        arguments.record[3] = place;
        arguments.record[4] = 0;
        arguments.record[5] = 0;
    }
}

// State of the thread that fetches tasks for all of a cluster.
struct Dealer {
    const Arguments& arguments;
    const u32 run;
    const int cluster;
    u32 taken = 0;

    __device__ Dealer(const Arguments& arguments)
        : arguments(arguments), run(arguments.state[0]), cluster(blockIdx.x / SPLIT) {
        if constexpr (DEALER == PILOT) taken = arguments.flags[TAKEN_AT + cluster];
    }

    // Calls look(value) until it finds a task, or until the timeout. `place` goes into the record.
    template <class Look>
    __device__ s32 poll(s32 place, Look&& look) {
        s32 task = NO_MORE;
        if (look(task)) return task;
        const u64 start = globaltimer();
        for (u32 tries = 1;; ++tries) {
            nanosleep(20);
            if (look(task)) return task;
            if (tries % 64 != 0) continue;
            if (load_relaxed_gpu_s32(arguments.record) != 0) return NO_MORE;
            if (ended() || globaltimer() - start > TIMEOUT_NS) {
                record_no_task(arguments, place);
                return NO_MORE;
            }
        }
    }

    // Whether the thread of the CPU has ended, for example with its program.
    __device__ bool ended() const {
        return DEALER == PILOT && load_acquire_sys_u64(reinterpret_cast<const u64*>(arguments.link)) != 0;
    }

    __device__ s32 next() {
        if constexpr (DEALER == QUEUE) {
            const u32 ticket = static_cast<u32>(fetch_add_relaxed_gpu_s32(arguments.flags + HEAD_AT, 1)) -
                               run * static_cast<u32>(TASKS + CLUSTERS);
            if (ticket >= TASKS) return NO_MORE;
            if (ticket < READY) return arguments.dealt[READY_AT + ticket];
            const s32* place = arguments.flags + PLACES_AT + ticket;
            return poll(ticket, [&](s32& task) {
                const s32 seen = load_acquire_gpu_s32(place);
                task = seen & NUMBERS;
                return seen == marked(run, task);
            });
        } else {
            const u32 place = taken++ % COMMANDS;
            const u64* command = link_commands(arguments, cluster) + place;
            return poll(taken, [&](s32& task) {
                const u64 seen = load_acquire_sys_u64(command);
                task = static_cast<s32>(static_cast<u32>(seen));
                if (static_cast<u32>(seen >> 32) != taken) return false;
                // Before the task's completion, which releases it; the CPU relies on that order.
                if constexpr (CLAIMS) store_relaxed_sys_u64(link_claims(arguments, cluster) + place, seen);
                return true;
            });
        }
    }

    // Prepares the next run.
    __device__ void leave() {
        if constexpr (DEALER == PILOT) arguments.flags[TAKEN_AT + cluster] = taken;
    }
};

// One thread of each block, of which the one in the first block fetches for all: calls work for each task.
template <class Work>
__device__ __forceinline__ void for_fetched_tasks(const Arguments& arguments, const Tasks& tasks, Work&& work) {
    if constexpr (!DEALT) {
        for_tasks(arguments, tasks, work);
    } else {
        Ring<DEALT_SLOTS> ring;
        Dealer dealer(arguments);
        for (int number = 0;; ++number, ring.advance()) {
            const u32 full = tasks.shared + DEALT_FULL + 8 * ring.slot,
                      word = tasks.shared + DEALT_WORDS + 4 * ring.slot;
            s32 dealt;
            if (tasks.rank == 0) {
                wait_blocks<SPLIT>(tasks.shared + DEALT_FREE + 8 * ring.slot, ring.turn ^ 1);
                dealt = dealer.next();
                for (int rank = 0; rank < SPLIT; ++rank) {
                    if constexpr (SPLIT == 1) {
                        store_shared_s32(tasks.shared + RUN, dealer.run);
                        store_shared_s32(word, dealt);
                        mbarrier_arrive_release_cta(full);
                    } else {
                        store_shared_cluster_s32(map_shared_rank(tasks.shared + RUN, rank), dealer.run);
                        store_shared_cluster_s32(map_shared_rank(word, rank), dealt);
                        mbarrier_arrive_release_cluster(map_shared_rank(full, rank));
                    }
                }
            } else {
                wait_cluster(full, ring.turn);
                dealt = load_shared_s32(word);
            }
            free_dealt(tasks, ring.slot);
            if (dealt == NO_MORE) break;
            const DealtTask task(arguments, dealt);
            with_stage(task.stage, [&](auto stage) { work(stage, task, number); });
        }
        if (tasks.rank == 0) dealer.leave();
    }
}

// All lanes: handles a semaphore that has reached `value`. Tasks that wait for this value are counted, and put into
// the queue if they wait for nothing else.
__device__ __forceinline__ void pass_on(const Arguments& arguments, u32 run, s32 semaphore, s32 value) {
    const s32* events = arguments.dealt + EVENTS_AT;
    const s32* begin = arguments.dealt + EVENT_PTR_AT + semaphore;
    for (int event = begin[0]; event < begin[1]; ++event) {
        if (events[3 * event] != value) continue;
        for (int waiter = events[3 * event + 1] + threadIdx.x % 32; waiter < events[3 * event + 2]; waiter += 32) {
            const s32 task = arguments.dealt[WAITERS_AT + waiter];
            const s32 needs = arguments.dealt[NEEDS_AT + task];
            const u32 count = fetch_add_acq_rel_gpu_s32(arguments.flags + PENDING_AT + task, 1) + 1u;
            if (count != (run + 1) * static_cast<u32>(needs)) continue;
            const u32 place = READY + static_cast<u32>(fetch_add_relaxed_gpu_s32(arguments.flags + TAIL_AT, 1)) -
                              run * static_cast<u32>(TASKS - READY);
            if (place < TASKS) store_release_gpu_s32(arguments.flags + PLACES_AT + place, marked(run, task));
        }
    }
}

// All lanes of the warp that posts, once this block has stored its part of a task.
__device__ __forceinline__ void post_dealt(const Arguments& arguments, u32 shared, const DealtTask& task) {
    const u32 lane = threadIdx.x % 32, run = load_shared_s32(shared + RUN);
    for (int first = task.post; first < task.posts_end; first += 32) {
        const int post = first + lane, here = task.posts_end - first < 32 ? task.posts_end - first : 32;
        const bool mine = post < task.posts_end;
        const s32 semaphore = mine ? arguments.posts[post] : 0;
        if constexpr (DEALER == QUEUE) {
            u32 value = 0;
            if (mine)
                value = fetch_add_acq_rel_gpu_s32(arguments.flags + semaphore * FLAG_WORDS, 1) + 1u -
                        run * static_cast<u32>(arguments.dealt[POSTS_AT + semaphore]);
            for (int source = 0; source < here; ++source)
                pass_on(arguments, run, __shfl_sync(~0u, semaphore, source), __shfl_sync(~0u, value, source));
        } else if (mine) {
            add_release_gpu_s32(arguments.flags + semaphore * FLAG_WORDS, 1);
        }
    }
    if constexpr (DEALER == PILOT) {
        __syncwarp();
        if (lane != 0) return;
        if (SPLIT > 1) {
            const u32 done = fetch_add_acq_rel_gpu_s32(arguments.flags + DONE_AT + task.id, 1) + 1u;
            if (done != (run + 1) * SPLIT) return;
        }
        const u32 place = fetch_add_acq_rel_gpu_s32(arguments.flags + SENT_AT, 1);
        store_release_sys_u64(link_completions(arguments) + place % COMPLETIONS,
                              static_cast<u64>(place + 1) << 32 | static_cast<u32>(task.id));
    }
}
