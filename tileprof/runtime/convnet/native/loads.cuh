// The warps that load: weights, which wait only for free slots, and activations, which wait for the tiles that wrote
// them.
#pragma once

#include "common.cuh"

// One thread. A load fills consecutive blocks of k: taps of 64 input channels, or 64 input channels each if there is
// one tap. Weights of windows are copied in their final layout. Scales and biases come with a tile's first slot.
__device__ __forceinline__ void load_weights(const Arguments& arguments, u32 shared) {
    Ring<W_SLOTS> ring;
    for_tasks(arguments, [&](const Stage& stage, const Task& task, s32) {
        if (stage.kind != CONVOLUTION) return;
        const TensorMap* map = &arguments.rows[task.stage].weights;
        const int blocks = stage.k_blocks, most = stage.weight_blocks, load = stage.weight_load, taps = stage.taps;
        const int column = task.column * stage.columns, begin = task.part * blocks;
        const u32 bytes = load * stage.columns * ROW_BYTES;
        int channels = begin / taps, tap = begin - channels * taps;  // in blocks of 64
        for (int k = 0; k < blocks; k += most, ring.advance()) {
            const int loads = ((blocks - k < most ? blocks - k : most) + load - 1) / load;
            const u32 full = shared + W_FULL + 8 * ring.slot;
            const u32 slot = shared + W_AT + ring.slot * W_BYTES, ends = k == 0 ? 8 * stage.columns : 0;
            const u32 block = stage.columns * ROW_BYTES, here = (blocks - k < most ? blocks - k : most) * block;
            wait_cta(shared + W_FREE + 8 * ring.slot, ring.turn ^ 1);
            mbarrier_arrive_expect_release_cta(full, (stage.window ? here : loads * bytes) + ends);
            if (ends > 0) copy_bulk(slot + ENDS_AT, stage.ends + 2 * column, ends, full, EVICT_NORMAL);
            if (stage.window) {
                copy_bulk(slot, stage.windows + (task.column * blocks + k) * block, here, full, EVICT_NORMAL);
                continue;
            }
            for (int i = 0; i < loads; ++i) {
                const u32 to = slot + i * bytes;
                if (taps == 1) {
                    copy_tensor_3d(to, map, full, 0, column, channels, EVICT_NORMAL);
                    channels += load;
                } else {
                    copy_tensor_3d(to, map, full, 64 * channels, column, tap, EVICT_NORMAL);
                    if ((tap += load) == taps) tap = 0, ++channels;
                }
            }
        }
    });
}

// Returns whether a count has reached a value that is less than half a round before or after it: both continue from
// 2^31 - 1 to -2^31.
__device__ __forceinline__ bool reached(s32 seen, s32 expected) {
    return static_cast<s32>(static_cast<u32>(seen) - static_cast<u32>(expected)) >= 0;
}

// Returns when the semaphore has all posts of this run, or on timeout.
__device__ __forceinline__ void await(const Arguments& arguments, int2 wait, u32 epoch, const Task& task, s32 number) {
    const s32* flag = arguments.flags + wait.x * FLAG_WORDS;
    const u32 before = epoch * static_cast<u32>(wait.y);
    const s32 expected = static_cast<s32>(before + static_cast<u32>(wait.y));
    u64 start = 0;
    for (u32 tries = 1;; ++tries) {
        const s32 seen = load_acquire_gpu_s32(flag);
        if (reached(seen, expected)) return;
        if (tries == 1) start = globaltimer();
        // Reading the record takes as long as reading the semaphore.
        if (tries % 16 == 0 && (globaltimer() - start > TIMEOUT_NS || load_relaxed_gpu_s32(arguments.record) != 0)) {
            if (compare_and_swap_relaxed_gpu_s32(arguments.record, 0, 1) == 0) {
                arguments.record[1] = task.stage;
                arguments.record[2] = number;
                arguments.record[3] = wait.x;
                arguments.record[4] = static_cast<s32>(static_cast<u32>(seen) - before);
                arguments.record[5] = wait.y;
            }
            return;
        }
        nanosleep(20);
    }
}

// One thread: loads the boxes of a tile's blocks of k, which run over channels, and per channel over taps.
__device__ __forceinline__ void load_tile(const Stage& stage, const TensorMap* map, const Task& task, u32 shared,
                                          Ring<A_SLOTS>& ring) {
    const int blocks = stage.k_blocks, most = stage.slot_blocks, taps = stage.taps, halo = stage.halo;
    const int step = stage.pool * stage.stride, y = task.y * step - stage.padding, x = task.x * step - stage.padding;
    int channel = 0, tap = 0, down = 0, across = 0;
    if (const int begin = task.part * blocks; begin > 0) {
        channel = begin / taps * 64, tap = begin % taps;
        down = tap / stage.tap_columns, across = tap - down * stage.tap_columns;
    }
    for (int k = 0; k < blocks; k += most, ring.advance()) {
        const u32 full = shared + A_FULL + 8 * ring.slot, to = shared + ring.slot * A_BYTES;
        const int here = blocks - k < most ? blocks - k : most;
        wait_cta(shared + A_FREE + 8 * ring.slot, ring.turn ^ 1);
        if (halo) {
            mbarrier_arrive_expect_release_cta(full, stage.box_bytes);
            if (halo > 0)
                copy_tensor_4d(to, map, full, channel + k / taps * 64, x, y, task.image, EVICT_NORMAL);
            else
                copy_tensor_4d(to, map, full, 0, x, task.image * stage.in_rows + y, channel / 64 + k, EVICT_NORMAL);
            continue;
        }
        mbarrier_arrive_expect_release_cta(full, here * stage.box_bytes);
        for (int block = 0; block < here; ++block) {
            copy_tensor_4d(to + block * stage.block_bytes, map, full, channel, x + across, y + down, task.image,
                           EVICT_NORMAL);
            if (++across == stage.tap_columns) across = 0, ++down;
            if (++tap == taps) tap = across = down = 0, channel += 64;
        }
    }
}

// One thread: loads consecutive rows of the padded input, WINDOW_PITCH apart, in which a step of the convolution is
// 16 bytes: as many rows as both warpgroups and all pairs of taps read.
__device__ __forceinline__ void load_windows(const Stage& stage, const Task& task, u32 shared, Ring<A_SLOTS>& ring) {
    const int rows = stage.stride + 2 * stage.k_blocks, bytes = stage.box_bytes,
              width = stage.source_columns * 16 / stage.stride;
    const u32 full = shared + A_FULL + 8 * ring.slot, to = shared + ring.slot * A_BYTES;
    const auto* image = static_cast<const unsigned char*>(stage.from) +
                        static_cast<long long>(task.image) * stage.source_rows * width + task.x * stage.pool * 16;
    wait_cta(shared + A_FREE + 8 * ring.slot, ring.turn ^ 1);
    mbarrier_arrive_expect_release_cta(full, rows * bytes);
    for (int row = 0; row < rows; ++row) {
        const int y = task.y * stage.pool * stage.stride + row, last = stage.source_rows - 1;
        copy_bulk_written(to + row * WINDOW_PITCH, image + (y < last ? y : last) * width, bytes, full, EVICT_NORMAL);
    }
    ring.advance();
}

// All lanes of a warp.
__device__ __forceinline__ void load_activations(const Arguments& arguments, u32 shared) {
    const u32 lane = threadIdx.x % 32, epoch = arguments.state[0];
    Ring<A_SLOTS> ring;
    for_tasks(arguments, [&](const Stage& stage, const Task& task, s32 number) {
        const TensorMap* map = &arguments.rows[task.stage].map;
        if (lane == 0 && stage.kind == CONVOLUTION && !stage.window) prefetch_tensormap(map);
        delay(arguments, number, 0);
        if (lane == 0) stamp(arguments, number, AWAITS);
        for (int wait = task.wait + lane; wait < task.waits_end; wait += 32)
            await(arguments, arguments.waits[wait], epoch, task, number);
        __syncwarp();
        if (lane == 0) {
            stamp(arguments, number, AWAITED);
            if (stage.kind == CONVOLUTION) {
                fence_proxy_async_global();
                if (stage.window)
                    load_windows(stage, task, shared, ring);
                else
                    load_tile(stage, map, task, shared, ring);
            } else {  // its consumers read memory directly
                wait_cta(shared + A_FREE + 8 * ring.slot, ring.turn ^ 1);
                mbarrier_arrive_release_cta(shared + A_FULL + 8 * ring.slot);
                ring.advance();
            }
        }
        __syncwarp();
    });
    // The last block that has read the number of the run increments it.
    if (lane == 0 && fetch_add_acq_rel_gpu_s32(arguments.state + 1, 1) == static_cast<s32>(gridDim.x) - 1) {
        arguments.state[1] = 0;
        arguments.state[0] = epoch + 1;
    }
}
