// One launch for up to 64 rows of tokens: all layers of a decoder, its last norm and its head.
//
// One block per SM. In a block
//
//     warp 8       streams weights through a ring in shared memory, through all stages in program order.
//                  It waits for free slots only.
//     warp 9       loads the activations that products read, as soon as the flags of other blocks say that they are
//                  stored.
//     warps 0 - 7  two warpgroups: multiply, attend, add up, normalise.
//
// Products whose k is cut store sums as parts, whose words are absent until they are there: who adds them up waits for
// each. What products read is stored as halves and has flags. "config.h" is made by shape.py: the sizes of the model.
// Rounding is where PyTorch rounds.
#include "attention.cuh"
#include "finish.cuh"
#include "product.cuh"

__device__ __forceinline__ void layers(Block& block) {
    Rings rings;
    embed(block);
#pragma unroll 1
    for (block.layer = 0; block.layer < LAYERS; ++block.layer) {
        const Layer& layer = block.p.layers[block.layer];
        product<Qkv>(block, rings, block.qkv_parts(0), block.qkv_parts(1));
        attend(block, layer);
        product<Output>(block, rings, OUTPUT_PARTS, DOWN_PARTS);
        finish_rows<Output>(block, STAGE_MIDDLE, OUTPUT_PARTS, layer.middle_norm, MIDDLE_AT, MIDDLE_FLAGS);
        gate(block, rings);
        product<Down>(block, rings, DOWN_PARTS, OUTPUT_PARTS);
        const bool last = block.layer + 1 == LAYERS;
        ++block.layer;  // the rows belong to the next layer
        finish_rows<Down>(block, STAGE_NEXT, DOWN_PARTS, last ? block.p.norm : block.p.layers[block.layer].norm,
                          NORMED_AT, NORMED_FLAGS);
        --block.layer;
    }
    head(block, rings);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) prefill(const __grid_constant__ Parameters p) {
    extern __shared__ unsigned char memory[];
    const u32 shared = (shared_address(memory) + 1023) & ~1023u, thread = threadIdx.x;
    if (thread == 0) {
        init_ring<SLOTS>(shared + W_FULL, shared + W_FREE, 1, CONSUMER_WARPS);
        init_ring<ACTIVATION_SLOTS>(shared + A_FULL, shared + A_FREE, 1, CONSUMER_WARPS);
        fence_mbarrier_init_release_cluster();
        store_shared_s32(shared + ABORTED_AT, 0);
    }
    barrier_sync<0, THREADS>();
    Block block{p, shared, thread, thread / 32, thread % 32, load_relaxed_gpu_s32(p.state + EPOCH)};
    if (block.warp < CONSUMER_WARPS)
        layers(block);
    else if (block.warp == CONSUMER_WARPS)
        Weights{block}.run();
    else if (block.warp == CONSUMER_WARPS + 1)
        Activations{block}.run();
    barrier_sync<0, THREADS>();
    if (thread == 0 && fetch_add_acq_rel_gpu_s32(p.state + LEFT, 1) == BLOCKS - 1)
        p.state[LEFT] = 0, p.state[EPOCH] += 1;  // all have read the epoch
}
