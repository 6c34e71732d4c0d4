// The warps that load: weights, which wait only for free slots, and activations, which also wait for semaphores, in
// most kernels through a separate warp (semaphore_waits.cuh).
#pragma once

#include "common.cuh"
#include "dealing.cuh"
#include "semaphore_waits.cuh"

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
