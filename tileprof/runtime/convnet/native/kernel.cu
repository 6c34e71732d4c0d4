// A whole convolutional network in one launch on sm_90.
//
// Each block takes the tiles of its list in order, of which tiles of later layers wait for those of earlier ones. In a
// block
//
//     warp 0  loads weights into a ring. It waits for free slots and for nothing else: not for tiles, not for layers.
//     warp 1  awaits the semaphores of a tile, then loads its activations into a ring.
//     two warpgroups multiply, finish and store.
//     warp 3  posts what they have stored, while they continue.
//
// A layer is a row of a table (Stage): there is code for each width of a tile, not for each layer. "stages.h" has the
// sizes of the rings and Multiply<columns> for every width of wgmma; network_build.py writes it.
#include "common.cuh"
#include "loads.cuh"
#include "pools.cuh"
#include "products.cuh"

// A functor, because nvcc would make a function of such a long lambda and serialise products there.
struct Consumes {
    const Arguments& arguments;
    u32 shared;
    Consumer consumer;
    Ring<POST_SLOTS> posting;

    __device__ __forceinline__ void operator()(const Stage& stage, const Task& task, s32 number) {
        const u32 thread = consumer.thread;
        if (stage.kind == CONVOLUTION)
            convolution(stage, task, number);
        else
            other(stage, task, thread);
        if (thread == 0) stamp(arguments, number, STORED_TILE);
        wait_cta(shared + POSTED + 8 * posting.slot, posting.turn ^ 1);
        __syncwarp();
        if (thread % 32 == 0) mbarrier_arrive_release_cta(shared + STORED + 8 * posting.slot);
        posting.advance();
    }

    __device__ __forceinline__ void convolution(const Stage& stage, const Task& task, s32 number) {
        switch (stage.columns + stage.deep) {
            case 8:
                consumer.tile<8, false>(stage, task, number);
                break;
            case 8 + 1:
                consumer.tile<8, true>(stage, task, number);
                break;
            case 16:
                consumer.tile<16, false>(stage, task, number);
                break;
            case 16 + 1:
                consumer.tile<16, true>(stage, task, number);
                break;
            case 32:
                consumer.tile<32, false>(stage, task, number);
                break;
            case 32 + 1:
                consumer.tile<32, true>(stage, task, number);
                break;
            default:
                consumer.tile<64, false>(stage, task, number);
        }
    }

    __device__ __forceinline__ void other(const Stage& stage, const Task& task, u32 thread) {
        auto* out = static_cast<unsigned short*>(stage.out != nullptr ? stage.out : arguments.out);
        wait_cta(shared + A_FULL + 8 * consumer.reader.a.slot, consumer.reader.a.turn);
        if (stage.kind == MAXIMUM && stage.window == 3) pool_maximum<3>(stage, task, out, thread);
        if (stage.kind == MAXIMUM && stage.window == 2) pool_maximum<2>(stage, task, out, thread);
        if (stage.kind == AVERAGE) pool_average(stage, task, out, shared, thread);
        if (stage.kind == FLAT) flatten(stage, task, out, thread);
        if (stage.kind == WINDOWS)
            lay_windows(stage, task, static_cast<const unsigned short*>(arguments.x), out, thread);
        __syncwarp();
        if (thread % 32 == 0) mbarrier_arrive_release_cta(shared + A_FREE + 8 * consumer.reader.a.slot);
        consumer.reader.a.advance();
    }
};

// One thread: posts each tile when the warps that multiply have stored it and arrived. It releases what they wrote,
// for threads that wait to load it by TMA.
__device__ __forceinline__ void post_tiles(const Arguments& arguments, u32 shared) {
    Ring<POST_SLOTS> ring;
    for_tasks(arguments, [&](const Stage&, const Task& task, s32 number) {
        wait_cta(shared + STORED + 8 * ring.slot, ring.turn);
        fence_proxy_async_global();
        add_release_gpu_s32(arguments.flags + task.post * FLAG_WORDS, 1);
        stamp(arguments, number, POSTED_TILE);
        mbarrier_arrive_release_cta(shared + POSTED + 8 * ring.slot);
        ring.advance();
    });
}

extern "C" __global__ void __launch_bounds__(128 + CONSUMERS, 1)
    persistent(const __grid_constant__ Arguments arguments) {
    extern __shared__ unsigned char memory[];
    const u32 shared = (shared_address(memory) + 1023) & ~1023u;
    if (threadIdx.x == 0) {
        init_ring<A_SLOTS>(shared + A_FULL, shared + A_FREE, 1, CONSUMER_WARPS);
        init_ring<W_SLOTS>(shared + W_FULL, shared + W_FREE, 1, CONSUMER_WARPS);
        init_ring<POST_SLOTS>(shared + STORED, shared + POSTED, CONSUMER_WARPS, 1);
        fence_mbarrier_init_release_cluster();
    }
    barrier_sync<0, 128 + CONSUMERS>();
    if (threadIdx.x < 128) {
        registers_give<88>();
        if (threadIdx.x == 0) load_weights(arguments, shared);
        if (threadIdx.x / 32 == 1) load_activations(arguments, shared);
        if (threadIdx.x == 96) post_tiles(arguments, shared);
    } else {
        registers_take<208>();
        for_tasks(arguments, Consumes{arguments, shared, {arguments, shared, threadIdx.x - 128}});
    }
}
