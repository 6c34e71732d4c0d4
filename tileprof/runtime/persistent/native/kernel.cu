// One launch for a chain of products, convolutions and attention on sm_90.
//
// A cluster of SPLIT blocks takes the tiles of its list in order; each block sums its part of k, and the sums meet in
// shared memory. Where blocks are PAIRED, two take half of the rows each, and load half of the weights for both. In
// stages where they stand ABREAST, each takes some of the columns and all of k. In a block
//
//     warp 0  loads weights into a ring. It waits for free slots and for nothing else: not for tiles, not for stages.
//     warp 1  loads activations into a ring, as far as
//     warp 2  has awaited the semaphores of the policy, which it does ahead of the loads.
//     two warpgroups multiply, add up with the other blocks, finish and store.
//     warp 3  posts what they have stored, while they continue.
//
// Where blocks are a pair, whose tiles are long, warp 1 awaits, and warp 3 stores as well as posts.
//
//     weights ---TMA---> [ slot | slot | slot | ... ] --+
//                                                       +--> wgmma --> registers --> buffers of owners --> out
//     activations -TMA-> [ slot | slot | ... ] ---------+
//
// "stages.h" is made by persistent_build.py: the constants below and, for every stage, Stage<n>; Multiply<columns> for
// every width of wgmma.
#include "attention.cuh"
#include "common.cuh"
#include "dealing.cuh"
#include "ends.cuh"
#include "handover.cuh"
#include "loads.cuh"

// The position of a warpgroup in the rings: blocks of k, several of which may share a slot of weights and, in groups
// of neighbouring taps, a slot of activations.
struct Reader {
    Ring<A_SLOTS> a;
    Ring<B_SLOTS> b;
    int block = 0;  // of the slot of weights
    int group = 0;  // of the slot of activations

    // Whether a block is the last of its slot of weights.
    template <class S>
    __device__ bool ends_weights(bool last) const {
        return block + 1 == S::PACK || last;
    }

    // Whether a group is the last of its slot of activations.
    template <class S>
    __device__ bool ends_activations(bool last) const {
        return group + 1 == S::SLOT_TAPS / S::GROUP || last;
    }

    template <class S>
    __device__ void next_block(bool last) {
        const bool ends = ends_weights<S>(last);
        if (ends) b.advance();
        block = ends ? 0 : block + 1;
    }

    template <class S>
    __device__ void next_group(bool last) {
        const bool ends = ends_activations<S>(last);
        if (ends) a.advance();
        group = ends ? 0 : group + 1;
    }
};

// Signals that a group has been multiplied and its slots are free.
template <class S>
__device__ __forceinline__ void release(Reader& done, bool last, u32 shared, Rank rank, u32 lane) {
    if (lane == 0 && done.ends_activations<S>(last)) mbarrier_arrive_release_cta(shared + A_FREE + 8 * done.a.slot);
#pragma unroll
    for (int block = 0; block < S::GROUP; ++block) {
        const bool ends = last && block + 1 == S::GROUP;
        if (done.ends_weights<S>(ends)) {
            const u32 b_free = shared + B_FREE + 8 * done.b.slot;
            if (HALVES == 1 && lane == 0) mbarrier_arrive_release_cta(b_free);
            if (HALVES > 1 && lane < HALVES)
                mbarrier_arrive_relaxed_cluster(map_shared_rank(b_free, rank.with_half(lane)));
        }
        done.next_block<S>(ends);
    }
    done.next_group<S>(last);
}

// Number of rows from the first one of a slot of activations to the first one that a group multiplies.
template <class S>
__device__ __forceinline__ int first_tap(int group) {
    if constexpr (S::SLOT_TAPS == 1) return 0;
    return S::GROUP > 1 ? group * S::ROW_STEP : group / S::SHARE * S::ROW_STEP + group % S::SHARE;
}

// Multiplies GROUP blocks of k at a time. Those of a halo are the taps of a row: each begins one pixel further into
// the slot of activations.
template <class S>
__device__ __forceinline__ void multiply(float (&sums)[S::WIDTH / 2], Reader& reader, Blocks blocks, u32 shared,
                                         Rank rank, u32 thread) {
    const int warpgroup = thread / 128;
    const u32 a_at = shared + (ROWS == 128 ? warpgroup * S::GROUP_STEP * SLOT_COLUMNS * 2 : 0);
    const u32 b_at = shared + B_AT + (ROWS == 64 ? warpgroup * S::WIDTH * SLOT_COLUMNS * 2 : 0);
    const auto [begin, end] = blocks;
    const u32 lane = thread % 32;
    reader.group = begin % S::SLOT_TAPS / S::GROUP;
    Reader done = reader;
    int free = begin;
    for (int k = begin; k < end; k += S::GROUP) {
        const bool last = k + S::GROUP == end;
        u64 b[S::GROUP];
#pragma unroll
        for (int block = 0; block < S::GROUP; ++block) {
            if (reader.block == 0) wait_cta(shared + B_FULL + 8 * reader.b.slot, reader.b.turn);
            b[block] = descriptor(b_at + reader.b.slot * B_BYTES + reader.block * S::BLOCK_BYTES);
            reader.next_block<S>(last && block + 1 == S::GROUP);
        }
        if (k == begin || reader.group == 0) wait_cta(shared + A_FULL + 8 * reader.a.slot, reader.a.turn);
        const u64 a = descriptor(a_at + reader.a.slot * A_BYTES + first_tap<S>(reader.group) * SLOT_COLUMNS * 2);
        wgmma_fence();
#pragma unroll
        for (int block = 0; block < S::GROUP; ++block)
#pragma unroll
            for (int step = 0; step < SLOT_COLUMNS / 16; ++step)
                Multiply<S::WIDTH>::add(sums, a + block * (SLOT_COLUMNS * 2 / 16) + 2 * step, b[block] + 2 * step);
        wgmma_commit();
        wgmma_wait<LAG>();
        if (k - begin >= LAG * S::GROUP) release<S>(done, (free += S::GROUP) == end, shared, rank, lane);
        reader.next_group<S>(last);
    }
    wgmma_wait<0>();
    while (free < end) release<S>(done, (free += S::GROUP) == end, shared, rank, lane);
}

// Loads the biases of all stages, for epilogues.
template <int FIRST = 0>
__device__ __forceinline__ void keep_biases(const Arguments& arguments, u32 shared, u32 thread) {
    using S = Stage<FIRST>;
    if constexpr (BIAS_BYTES > 0) {
        for (int column = 8 * thread; S::BIAS && column < S::N * (S::GATED ? 2 : 1); column += 8 * CONSUMERS)
            store_shared_u32x4(shared + BIAS_SHARED + S::BIAS_AT + 2 * column,
                               load_halves(arguments.stage[FIRST].bias, column).all);
        if constexpr (FIRST + 1 < STAGES)
            keep_biases<FIRST + 1>(arguments, shared, thread);
        else
            barrier_sync<1, CONSUMERS>();
    }
}

template <int FIRST = 0>
__device__ __forceinline__ void prefetch_values(const Arguments& arguments) {
    if constexpr (Stage<FIRST>::ATTENTION) prefetch_tensormap(&arguments.stage[FIRST].values);
    if constexpr (FIRST + 1 < STAGES) prefetch_values<FIRST + 1>(arguments);
}

__device__ __forceinline__ void consume(const Arguments& arguments, u32 shared, Rank rank, const Tasks& tasks) {
    const u32 thread = threadIdx.x - 128;
    Reader reader;
    Ring<POST_SLOTS> posting;
    Ends ends = {arguments, shared, rank, thread};
    keep_biases(arguments, shared, thread);
    Handing handing = {arguments, shared, thread};
    for_tasks(arguments, tasks, [&](auto stage, const Task& task, int number) {
        using S = decltype(stage);
        const int posts = HANDED ? 0 : DEALER == PILOT ? 1 : task.posts_end - task.post;  // warp 3 knows itself
        if constexpr (S::ATTENTION) {
            attend<S>(arguments, task, reader.a, shared, rank, thread, number);
        } else {
            const int rows = product_rows<S>(S::M - first_row<S>(task, rank));
            // Without zeros a product would begin with undefined sums, which ptxas spills.
            float sums[S::WIDTH / 2] = {};
            multiply<S>(sums, reader, blocks_of<S>(task, rank), shared, rank, thread);
            delay(arguments, number, rank, 1);
            if constexpr (S::CUT > 0) {
                if (task.early()) {
                    put_partial<S>(sums, arguments.stage[S::INDEX].partials, task.tile, rank, thread);
                    return;
                }
                add_partial<S>(sums, arguments.stage[S::INDEX].partials, task.tile, rank, thread);
            }
            if constexpr (HANDED)
                handing.passes<S>(sums, task, first_row<S>(task, rank), rows);
            else
                ends.passes<S>(sums, task, rows);
        }
        if (posts > 0) {
            wait_cta(shared + POSTED + 8 * posting.slot, posting.turn ^ 1);
            __syncwarp();
            if (thread % 32 == 0) mbarrier_arrive_release_cta(shared + STORED + 8 * posting.slot);
            posting.advance();
        }
    });
    ends.drain();
}

// All lanes of a warp: posts each task when the warps that multiply have stored it and arrived. It releases what they
// wrote, for threads that wait to load it by TMA.
__device__ __forceinline__ void post_tasks(const Arguments& arguments, u32 shared, const Tasks& tasks) {
    const u32 lane = threadIdx.x % 32;
    Ring<POST_SLOTS> ring;
    for_tasks(arguments, tasks, [&](auto, const auto& task, int) {
        if (DEALER != PILOT && task.post == task.posts_end) return;
        s32 semaphore = !DEALT && task.post + lane < task.posts_end ? arguments.posts[task.post + lane] : 0;
        wait_cta(shared + STORED + 8 * ring.slot, ring.turn);
        fence_proxy_async_global();
        if constexpr (DEALT) {
            post_dealt(arguments, shared, task);
        } else {
            for (int post = task.post + lane; post < task.posts_end; post += 32) {
                if (post != task.post + lane) semaphore = arguments.posts[post];
                add_release_gpu_s32(arguments.flags + semaphore * FLAG_WORDS, 1);
            }
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive_release_cta(shared + POSTED + 8 * ring.slot);
        ring.advance();
    });
}

extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(128 + CONSUMERS, 1)
    persistent(const __grid_constant__ Arguments arguments) {
    extern __shared__ unsigned char memory[];
    const u32 shared = (shared_address(memory) + 1023) & ~1023u;
    // Both are the rank in the cluster. For the register, ptxas does not know that all threads read the same value;
    // from the block's number it computes dependent values in uniform registers. Convolutions take 1 to 9% less time,
    // products 1 to 6% more (measured, and not explained).
    const u32 number = SPLIT == 1 ? 0 : Stage<0>::CONVOLUTION ? blockIdx.x % SPLIT : cluster_rank();
    const Rank rank = {number % HALVES, number / HALVES};
    grid_launch_dependents();
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < A_SLOTS; ++slot) {
            mbarrier_init(shared + A_FULL + 8 * slot, 1);
            mbarrier_init(shared + A_FREE + 8 * slot, CONSUMER_WARPS);
        }
        for (int slot = 0; slot < B_SLOTS; ++slot) {
            mbarrier_init(shared + B_FULL + 8 * slot, 1);
            mbarrier_init(shared + B_FREE + 8 * slot, CONSUMER_WARPS * HALVES);
        }
        for (int slot = 0; slot < BUFFERS; ++slot) {
            mbarrier_init(shared + SUMS_FULL + 8 * slot, HANDED ? CONSUMER_WARPS / 2 : 1);
            mbarrier_init(shared + SUMS_FREE + 8 * slot, HANDED ? 1 : CONSUMER_WARPS * PARTS);
        }
        for (int slot = 0; slot < POST_SLOTS; ++slot) {
            mbarrier_init(shared + STORED + 8 * slot, CONSUMER_WARPS);
            mbarrier_init(shared + POSTED + 8 * slot, 1);
        }
        for (int slot = 0; DEALT && slot < DEALT_SLOTS; ++slot) {
            mbarrier_init(shared + DEALT_FULL + 8 * slot, 1);
            mbarrier_init(shared + DEALT_FREE + 8 * slot, DEALT_READERS);
        }
        store_release_cta_shared_u32(shared + AWAITED, 0);
        store_release_cta_shared_u32(shared + LOADED, 0);
        store_shared_s32(shared + BEGUN, -1);
        fence_mbarrier_init_release_cluster();
    }
    if (threadIdx.x < 32 && threadIdx.x / 2 < STAGES) {
        const StageTensors& tensors = arguments.stage[threadIdx.x / 2];
        prefetch_tensormap(threadIdx.x % 2 ? &tensors.activations : &tensors.weights);
    }
    if (threadIdx.x == 0) prefetch_values(arguments);
    const Tasks tasks(arguments, shared, number);
    cluster_barrier();
    grid_wait();
    if (threadIdx.x < 128) {
        registers_give<HANDED ? 88 : 56>();
        if (threadIdx.x == 0) load_weights(arguments, shared, rank, tasks);
        if (threadIdx.x / 32 == 1) load_activations(arguments, shared, rank, tasks);
        if (!HANDED && threadIdx.x / 32 == 2) await_tasks(arguments, shared, rank, tasks);
        if (!HANDED && threadIdx.x / 32 == 3) post_tasks(arguments, shared, tasks);
        if (HANDED && threadIdx.x / 32 == 3) store_and_post(arguments, shared, rank, tasks);
    } else {
        registers_take<HANDED ? 208 : 224>();
        consume(arguments, shared, rank, tasks);
    }
    if constexpr (PAIRED || (DEALT && SPLIT > 1)) {  // no block ends while another may still signal that a slot is free
        __syncwarp();
        cluster_barrier();
    }
}
