// Tiles that multiply nothing: pooling, and the network's input laid out so that a convolution of few channels can be loaded as rows of windows.
#pragma once

#include "common.cuh"
#include "halves.cuh"

// Windows of SIDE x SIDE pixels. What is beyond an edge is replaced by the pixel at the edge, which is in the window, too; so all loads are under way at a time.
template <int SIDE>
__device__ __forceinline__ void pool_maximum(const Stage& stage, const Task& task, unsigned short* out, u32 thread) {
    const auto* from = static_cast<const unsigned short*>(stage.from);
    const int chunks = stage.channels / 8, all = stage.tile_rows * stage.tile_columns * chunks;
    for (int item = thread; item < all; item += CONSUMERS) {
        const int chunk = item % chunks, pixel = item / chunks, y = task.y + pixel / stage.tile_columns, x = task.x + pixel % stage.tile_columns;
        if (y >= stage.out_rows || x >= stage.out_columns) continue;
        uint4 window[SIDE * SIDE];
#pragma unroll
        for (int tap = 0; tap < SIDE * SIDE; ++tap) {
            const int down = y * stage.stride - stage.padding + tap / SIDE, across = x * stage.stride - stage.padding + tap % SIDE;
            const int row = down < 0 ? 0 : down < stage.in_rows ? down : stage.in_rows - 1;
            const int column = across < 0 ? 0 : across < stage.in_columns ? across : stage.in_columns - 1;
            window[tap] = load_global_u32x4(from + ((task.image * stage.in_rows + row) * stage.in_columns + column) * stage.channels + 8 * chunk);
        }
        Eight most = eight_of(window[0]);
#pragma unroll
        for (int tap = 1; tap < SIDE * SIDE; ++tap) keep_larger(most, eight_of(window[tap]));
        store_eight(out + ((task.image * stage.out_rows + y) * stage.out_columns + x) * stage.channels + 8 * chunk, most);
    }
}

// The mean of 64 channels of an image: 32 threads for each eight of them, whose sums meet in shared memory, added in order.
__device__ __forceinline__ void pool_average(const Stage& stage, const Task& task, unsigned short* out, u32 shared, u32 thread) {
    const int pixels = stage.in_rows * stage.in_columns;
    const auto* from = static_cast<const unsigned short*>(stage.from) + task.image * pixels * stage.channels + task.column * 64 + thread % 8 * 8;
    Eight sums = {};
    for (int pixel = thread / 8; pixel < pixels; pixel += CONSUMERS / 8) {
        const Eight here = eight_of(load_global_u32x4(from + pixel * stage.channels));
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

// Pixels of the network's input, with `channels` of 4 or 8 where it has `window`, four at most, and zeros around: `padding` rows above and columns to the left.
__device__ __forceinline__ void lay_windows(const Stage& stage, const Task& task, const unsigned short* from, unsigned short* out, u32 thread) {
    constexpr int AT_ONCE = 4;  // pixels of a thread, so that their loads overlap
    const int all = stage.tile_rows * stage.out_columns;
    for (int first = thread; first < all; first += AT_ONCE * CONSUMERS) {
        unsigned short pixels[AT_ONCE][4];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int item = first + i * CONSUMERS, row = task.y + item / stage.out_columns - stage.padding, column = item % stage.out_columns - stage.padding;
            const bool inside = item < all && row >= 0 && row < stage.in_rows && column >= 0 && column < stage.in_columns;
            const unsigned short* pixel = from + task.image * stage.image_stride + row * stage.row_stride + column * stage.column_stride;
#pragma unroll
            for (int channel = 0; channel < 4; ++channel) pixels[i][channel] = inside && channel < stage.window ? pixel[channel * stage.channel_stride] : 0;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int item = first + i * CONSUMERS, y = task.y + item / stage.out_columns, x = item % stage.out_columns;
            if (item >= all || y >= stage.out_rows) continue;
            unsigned short* to = out + ((task.image * stage.out_rows + y) * stage.out_columns + x) * stage.channels;
            const u32 low = pixels[i][0] | static_cast<u32>(pixels[i][1]) << 16, high = pixels[i][2] | static_cast<u32>(pixels[i][3]) << 16;
            if (stage.channels == 8)
                store_global_u32x4(to, uint4{low, high, 0, 0});
            else
                store_global_u32x2(to, low, high);
        }
    }
}
