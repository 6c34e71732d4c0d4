// Tiles that multiply nothing: pooling, and the network's input laid out so that a convolution of few channels can be loaded as rows of windows.
#pragma once

#include "common.cuh"

struct Eight {
    float values[8];

    __device__ void put(int pair, u32 two) { values[2 * pair] = unpack(two & 0xFFFF), values[2 * pair + 1] = unpack(two >> 16); }
};

// Eight channels of a pixel, as other blocks have stored them.
__device__ __forceinline__ Eight load_eight(const unsigned short* from) {
    const uint4 bits = load_global_u32x4(from);
    Eight eight;
    eight.put(0, bits.x), eight.put(1, bits.y), eight.put(2, bits.z), eight.put(3, bits.w);
    return eight;
}

__device__ __forceinline__ void store_eight(unsigned short* to, const Eight& eight) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) store_global_u32(to + 2 * pair, pack(eight.values[2 * pair], eight.values[2 * pair + 1]));
}

__device__ __forceinline__ void pool_maximum(const Stage& stage, const Task& task, unsigned short* out, u32 thread) {
    const auto* from = static_cast<const unsigned short*>(stage.from);
    const int chunks = stage.channels / 8, all = stage.tile_rows * stage.tile_columns * chunks;
    for (int item = thread; item < all; item += CONSUMERS) {
        const int chunk = item % chunks, pixel = item / chunks, y = task.y + pixel / stage.tile_columns, x = task.x + pixel % stage.tile_columns;
        if (y >= stage.out_rows || x >= stage.out_columns) continue;
        Eight most;
        for (float& value : most.values) value = -INFINITY;
        for (int down = 0; down < stage.window; ++down)
            for (int across = 0; across < stage.window; ++across) {
                const int row = y * stage.stride - stage.padding + down, column = x * stage.stride - stage.padding + across;
                if (row < 0 || row >= stage.in_rows || column < 0 || column >= stage.in_columns) continue;
                const Eight here = load_eight(from + ((task.image * stage.in_rows + row) * stage.in_columns + column) * stage.channels + 8 * chunk);
#pragma unroll
                for (int i = 0; i < 8; ++i) most.values[i] = here.values[i] <= most.values[i] ? most.values[i] : here.values[i];  // or no number
            }
        store_eight(out + ((task.image * stage.out_rows + y) * stage.out_columns + x) * stage.channels + 8 * chunk, most);
    }
}

// The mean of 64 channels of an image: 32 threads for each eight of them, whose sums meet in shared memory, added in order.
__device__ __forceinline__ void pool_average(const Stage& stage, const Task& task, unsigned short* out, u32 shared, u32 thread) {
    const int pixels = stage.in_rows * stage.in_columns;
    const auto* from = static_cast<const unsigned short*>(stage.from) + task.image * pixels * stage.channels + task.column * 64 + thread % 8 * 8;
    Eight sums = {};
    for (int pixel = thread / 8; pixel < pixels; pixel += CONSUMERS / 8) {
        const Eight here = load_eight(from + pixel * stage.channels);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums.values[i] += here.values[i];
    }
    const u32 scratch = shared + SCRATCH_AT;
    barrier_sync<1, CONSUMERS>();  // what a tile before has left there is read
#pragma unroll
    for (int pair = 0; pair < 4; ++pair)
        store_shared_f32x2(scratch + thread / 8 * 256 + thread % 8 * 32 + pair * 8, float2{sums.values[2 * pair], sums.values[2 * pair + 1]});
    barrier_sync<1, CONSUMERS>();
    if (thread < 32) {
        float2 sum = {0.0f, 0.0f};
#pragma unroll 8
        for (int part = 0; part < CONSUMERS / 8; ++part) {
            const float2 more = load_shared_f32x2(scratch + part * 256 + thread * 8);
            sum.x += more.x, sum.y += more.y;
        }
        store_global_u32(out + task.image * stage.channels + task.column * 64 + 2 * thread, pack(sum.x / pixels, sum.y / pixels));
    }
    barrier_sync<1, CONSUMERS>();
}

// Pixels of the network's input, with `channels` of 4 or 8 where it has `window`, and zeros around: `padding` columns to the left.
__device__ __forceinline__ void lay_windows(const Stage& stage, const Task& task, const unsigned short* from, unsigned short* out, u32 thread) {
    const int all = stage.tile_rows * stage.out_columns, pairs = stage.channels / 2;
    for (int item = thread; item < all; item += CONSUMERS) {
        const int y = task.y + item / stage.out_columns, x = item % stage.out_columns, column = x - stage.padding;
        if (y >= stage.out_rows) continue;
        const bool inside = column >= 0 && column < stage.in_columns;
        const unsigned short* pixel = from + task.image * stage.image_stride + y * stage.row_stride + column * stage.column_stride;
        unsigned short* to = out + ((task.image * stage.out_rows + y) * stage.out_columns + x) * stage.channels;
        for (int pair = 0; pair < pairs; ++pair) {
            const u32 low = inside && 2 * pair < stage.window ? pixel[2 * pair * stage.channel_stride] : 0;
            const u32 high = inside && 2 * pair + 1 < stage.window ? pixel[(2 * pair + 1) * stage.channel_stride] : 0;
            store_global_u32(to + 2 * pair, low | high << 16);
        }
    }
}
