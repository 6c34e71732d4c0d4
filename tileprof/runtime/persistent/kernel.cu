// One launch for a chain of products and convolutions on sm_90.
//
// A cluster of SPLIT blocks takes the tiles of its list in order; each block sums its part of k, and the sums meet in shared memory. Where blocks are
// PAIRED, two take half of the rows each, and load half of the weights for both. In a block
//
//     warp 0  loads weights into a ring. It waits for free slots and for nothing else: not for tiles, not for stages.
//     warp 1  loads activations into a ring. It alone awaits the semaphores of the policy, before the first k-block that needs them.
//     two warpgroups multiply, add up with the other blocks, finish, store and post.
//     warp 3  stores and posts for them where blocks are a pair.
//
//     weights ---TMA---> [ slot | slot | slot | ... ] --+
//                                                       +--> wgmma --> registers --> buffers of the blocks that own the rows --> out, semaphores
//     activations -TMA-> [ slot | slot | ... ] ---------+
//
// "stages.h" is made by build.py: the constants below and, for every stage, Stage<n>; Multiply<columns> for every width of wgmma.
#include "common.cuh"
#include "ends.cuh"
#include "handover.cuh"
#include "loads.cuh"

// K-major, 128-byte swizzle: eight rows of 128 bytes are an atom, atoms follow each other.
__device__ __forceinline__ u64 descriptor(u32 address) {
    return static_cast<u64>((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

// Where a warpgroup stands in the rings: blocks of k one by one, several to a slot of weights.
struct Reader {
    Ring<A_SLOTS> a;
    Ring<B_SLOTS> b;
    int block = 0;  // of the slot of weights

    template <class S>
    __device__ bool fills(bool last) const {
        return block + 1 == S::PACK || last;
    }

    template <class S>
    __device__ void advance(bool last) {
        a.advance();
        const bool done = fills<S>(last);
        if (done) b.advance();
        block = done ? 0 : block + 1;
    }
};

// Says that a block has been multiplied, and its slots are free.
template <class S>
__device__ __forceinline__ void release(Reader& done, bool last, u32 shared, Rank rank, u32 lane) {
    if (lane == 0) mbarrier_arrive_release_cta(shared + A_FREE + 8 * done.a.slot);
    if (done.fills<S>(last)) {
        const u32 b_free = shared + B_FREE + 8 * done.b.slot;
        if (HALVES == 1 && lane == 0) mbarrier_arrive_release_cta(b_free);
        if (HALVES > 1 && lane < HALVES) mbarrier_arrive_relaxed_cluster(map_shared_rank(b_free, rank.with_half(lane)));
    }
    done.advance<S>(last);
}

template <class S>
__device__ __forceinline__ void multiply(float (&sums)[S::WIDTH / 2], Reader& reader, Blocks blocks, u32 shared, Rank rank, u32 thread) {
    const int group = thread / 128;
    const u32 a_at = shared + (ROWS == 128 ? group * 64 * SLOT_COLUMNS * 2 : 0);
    const u32 b_at = shared + B_AT + (ROWS == 64 ? group * S::WIDTH * SLOT_COLUMNS * 2 : 0);
    const auto [begin, end] = blocks;
    const u32 lane = thread % 32;
    Reader done = reader;
    int free = begin;
    for (int k = begin; k < end; ++k) {
        if (reader.block == 0) wait_cta(shared + B_FULL + 8 * reader.b.slot, reader.b.turn);
        wait_cta(shared + A_FULL + 8 * reader.a.slot, reader.a.turn);
        const u64 a = descriptor(a_at + reader.a.slot * A_BYTES);
        const u64 b = descriptor(b_at + reader.b.slot * B_BYTES + reader.block * S::BLOCK_BYTES);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < SLOT_COLUMNS / 16; ++step) Multiply<S::WIDTH>::add(sums, a + 2 * step, b + 2 * step);
        wgmma_commit();
        wgmma_wait<LAG>();
        if (k - begin >= LAG) release<S>(done, ++free == end, shared, rank, lane);
        reader.advance<S>(k + 1 == end);
    }
    wgmma_wait<0>();
    while (free < end) release<S>(done, ++free == end, shared, rank, lane);
}

__device__ __forceinline__ void consume(const Arguments& arguments, u32 shared, Rank rank, const Tasks& tasks) {
    const u32 thread = threadIdx.x - 128;
    Reader reader;
    Ends ends = {arguments, shared, rank, thread};
    Handing handing = {arguments, shared, thread};
    for_tasks(arguments, tasks, [&](auto stage, const Task& task, int number) {
        using S = decltype(stage);
        const int posts = HANDED ? 0 : task.posts_end - task.post;  // warp 3 posts
        const s32 semaphore = static_cast<int>(thread) < posts ? arguments.posts[task.post + thread] : 0;
        const int left = S::M - first_row<S>(task, rank), rows = left < S::BLOCK_ROWS ? left : S::BLOCK_ROWS;
        float sums[S::WIDTH / 2] = {};  // a product that begins without them would leave them undefined, and ptxas spill them
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
        if (posts > 0) {
            fence_proxy_async_global();
            barrier_sync<1, CONSUMERS>();
            if (static_cast<int>(thread) < posts) add_release_gpu_s32(arguments.flags + semaphore * FLAG_WORDS, 1);
        }
    });
    ends.drain();
}

extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(128 + CONSUMERS, 1)
    persistent(const __grid_constant__ Arguments arguments) {
    extern __shared__ unsigned char memory[];
    const u32 shared = (shared_address(memory) + 1023) & ~1023u;
    const u32 number = SPLIT > 1 ? cluster_rank() : 0;
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
        store_shared_s32(shared + BEGUN, -1);
        fence_mbarrier_init_release_cluster();
    }
    if (threadIdx.x < 32 && threadIdx.x / 2 < STAGES) {
        const StageTensors& tensors = arguments.stage[threadIdx.x / 2];
        prefetch_tensormap(threadIdx.x % 2 ? &tensors.activations : &tensors.weights);
    }
    const Tasks tasks(arguments);
    cluster_barrier();
    grid_wait();
    if (threadIdx.x < 128) {
        registers_give<HANDED ? 88 : 56>();
        if (threadIdx.x == 0) load_weights(arguments, shared, rank, tasks);
        if (threadIdx.x / 32 == 1) load_activations(arguments, shared, rank, tasks);
        if (HANDED && threadIdx.x / 32 == 3) store_and_post(arguments, shared, rank, tasks);
    } else {
        registers_take<HANDED ? 208 : 224>();
        consume(arguments, shared, rank, tasks);
    }
    if constexpr (PAIRED) {  // no block ends while the other may still say that a slot is free
        __syncwarp();
        cluster_barrier();
    }
}
