// Tiles without products: pooling, images whose channels are moved in front of their pixels, and the network's input
// in a layout from which a convolution of few channels can load rows of windows.
#pragma once

#include "common.cuh"
#include "halves.cuh"

// Windows of SIDE x SIDE pixels. A pixel beyond an edge is replaced by the pixel at the edge, which is in the window,
// too, so that all loads are in flight at the same time.
template <int SIDE>
__device__ __forceinline__ void pool_maximum(const Stage& stage, const Task& task, unsigned short* out, u32 thread) {
    const auto* from = static_cast<const unsigned short*>(stage.from);
    const int chunks = stage.channels / 8, all = stage.tile_rows * stage.tile_columns * chunks;
    for (int item = thread; item < all; item += CONSUMERS) {
        const int chunk = item % chunks, pixel = item / chunks, y = task.y + pixel / stage.tile_columns,
                  x = task.x + pixel % stage.tile_columns;
        if (y >= stage.out_rows || x >= stage.out_columns) continue;
        uint4 window[SIDE * SIDE];
#pragma unroll
        for (int tap = 0; tap < SIDE * SIDE; ++tap) {
            const int down = y * stage.stride - stage.padding + tap / SIDE,
                      across = x * stage.stride - stage.padding + tap % SIDE;
            const int row = down < 0 ? 0 : down < stage.in_rows ? down : stage.in_rows - 1;
            const int column = across < 0 ? 0 : across < stage.in_columns ? across : stage.in_columns - 1;
            window[tap] = load_global_u32x4(
                from + ((task.image * stage.in_rows + row) * stage.in_columns + column) * stage.channels + 8 * chunk);
        }
        Eight most = eight_of(window[0]);
#pragma unroll
        for (int tap = 1; tap < SIDE * SIDE; ++tap) keep_larger(most, eight_of(window[tap]));
        store_eight(out + ((task.image * stage.out_rows + y) * stage.out_columns + x) * stage.channels + 8 * chunk,
                    most);
    }
}

// The mean of 64 channels of an image: 32 threads per eight channels, whose sums meet in shared memory and are added
// in order.
__device__ __forceinline__ void pool_average(const Stage& stage, const Task& task, unsigned short* out, u32 shared,
                                             u32 thread) {
    const int pixels = stage.in_rows * stage.in_columns;
    const auto* from = static_cast<const unsigned short*>(stage.from) + task.image * pixels * stage.channels +
                       task.column * 64 + thread % 8 * 8;
    Eight sums = {};
    for (int pixel = thread / 8; pixel < pixels; pixel += CONSUMERS / 8) {
        const Eight here = eight_of(load_global_u32x4(from + pixel * stage.channels));
#pragma unroll
        for (int i = 0; i < 8; ++i) sums.values[i] += here.values[i];
    }
    const u32 scratch = shared + SCRATCH_AT;
    barrier_sync<1, CONSUMERS>();  // all threads have read what the previous tile left there
#pragma unroll
    for (int pair = 0; pair < 4; ++pair)
        store_shared_f32x2(scratch + thread / 8 * 256 + thread % 8 * 32 + pair * 8,
                           float2{sums.values[2 * pair], sums.values[2 * pair + 1]});
    barrier_sync<1, CONSUMERS>();
    if (thread < 32) {
        float2 sum = {0.0f, 0.0f};
#pragma unroll 8
        for (int part = 0; part < CONSUMERS / 8; ++part) {
            const float2 more = load_shared_f32x2(scratch + part * 256 + thread * 8);
            sum.x += more.x, sum.y += more.y;
        }
        store_global_u32(out + task.image * stage.channels + task.column * 64 + 2 * thread,
                         pack(sum.x / pixels, sum.y / pixels));
    }
    barrier_sync<1, CONSUMERS>();
}

// 64 channels of an image in the layout of a matrix whose columns are (channels, rows, columns): per channel its
// pixels.
__device__ __forceinline__ void flatten(const Stage& stage, const Task& task, unsigned short* out, u32 thread) {
    const int pixels = stage.in_rows * stage.in_columns, first = task.column * 64;
    const int channels = stage.channels - first < 64 ? stage.channels - first : 64;
    const auto* from = static_cast<const unsigned short*>(stage.from) + task.image * pixels * stage.channels + first;
    unsigned short* to = out + (task.image * stage.channels + first) * pixels;
    for (int item = thread; item < channels / 8 * pixels; item += CONSUMERS) {
        const int pixel = item % pixels, channel = item / pixels * 8;
        const uint4 eight = load_global_u32x4(from + pixel * stage.channels + channel);
        const u32 words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (int i = 0; i < 8; ++i)
            to[(channel + i) * pixels + pixel] = static_cast<unsigned short>(words[i / 2] >> i % 2 * 16 & 0xFFFF);
    }
}

__device__ __forceinline__ void store_window_pixel(const Stage& stage, unsigned short* to, u32 low, u32 high) {
    if (stage.channels == 8)
        store_global_u32x4(to, uint4{low, high, 0, 0});
    else
        store_global_u32x2(to, low, high);
}

// Half i of the loaded values.
template <int WORDS>
__device__ __forceinline__ u32 half_of(const u32 (&words)[WORDS], int i) {
    return words[i / 2] >> i % 2 * 16 & 0xFFFF;
}

// Eight pixels of three channels, pixel by pixel or channel by channel, with sixteen bytes per load. The last item of
// a row writes its edges.
__device__ __forceinline__ void lay_eights(const Stage& stage, const Task& task, const unsigned short* from,
                                           unsigned short* out, u32 thread) {
    const bool last_channels = stage.channel_stride == 1;
    const int each = stage.in_columns / 8 + 1, all = stage.tile_rows * each;
    for (int item = thread; item < all; item += CONSUMERS) {
        const int y = task.y + item / each, eight = item % each, row = y - stage.padding;
        if (y >= stage.out_rows) continue;
        unsigned short* to = out + (task.image * stage.out_rows + y) * stage.out_columns * stage.channels;
        if (eight == each - 1) {
            for (int column = 0; column < stage.out_columns - stage.in_columns; ++column)
                store_window_pixel(
                    stage, to + (column < stage.padding ? column : column + stage.in_columns) * stage.channels, 0, 0);
            continue;
        }
        u32 words[12] = {};
        if (row >= 0 && row < stage.in_rows) {
            const unsigned short* pixel =
                from + task.image * stage.image_stride + row * stage.row_stride + 8 * eight * stage.column_stride;
#pragma unroll
            for (int i = 0; i < 3; ++i) {
                const uint4 loaded = load_global_u32x4(pixel + i * (last_channels ? 8 : stage.channel_stride));
                words[4 * i] = loaded.x, words[4 * i + 1] = loaded.y, words[4 * i + 2] = loaded.z,
                          words[4 * i + 3] = loaded.w;
            }
        }
        to += (stage.padding + 8 * eight) * stage.channels;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const u32 red = last_channels ? half_of(words, 3 * i) : half_of(words, i);
            const u32 green = last_channels ? half_of(words, 3 * i + 1) : half_of(words, 8 + i);
            const u32 blue = last_channels ? half_of(words, 3 * i + 2) : half_of(words, 16 + i);
            store_window_pixel(stage, to + i * stage.channels, red | green << 16, blue);
        }
    }
}

// Whether `lay_eights` can load an input of these strides.
__device__ __forceinline__ bool in_eights(const Stage& stage, const unsigned short* from) {
    const bool last_channels = stage.channel_stride == 1 && stage.column_stride == 3,
               first_channels = stage.column_stride == 1;
    const int strides = stage.row_stride | stage.image_stride | (first_channels ? stage.channel_stride : 0);
    return stage.window == 3 && (last_channels || first_channels) && stage.in_columns % 8 == 0 && strides % 8 == 0 &&
           reinterpret_cast<u64>(from) % 16 == 0;
}

// Pixels of the network's input, with `channels` of 4 or 8 if it has `window`, at most four of them from the input,
// and zeros around: `padding` rows above and columns to the left.
__device__ __forceinline__ void lay_windows(const Stage& stage, const Task& task, const unsigned short* from,
                                            unsigned short* out, u32 thread) {
    if (in_eights(stage, from)) return lay_eights(stage, task, from, out, thread);
    constexpr int AT_ONCE = 4;  // pixels per thread, so that their loads overlap
    const int all = stage.tile_rows * stage.out_columns;
    for (int first = thread; first < all; first += AT_ONCE * CONSUMERS) {
        unsigned short pixels[AT_ONCE][4];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int item = first + i * CONSUMERS, row = task.y + item / stage.out_columns - stage.padding,
                      column = item % stage.out_columns - stage.padding;
            const bool inside =
                item < all && row >= 0 && row < stage.in_rows && column >= 0 && column < stage.in_columns;
            const unsigned short* pixel =
                from + task.image * stage.image_stride + row * stage.row_stride + column * stage.column_stride;
#pragma unroll
            for (int channel = 0; channel < 4; ++channel)
                pixels[i][channel] = inside && channel < stage.window ? pixel[channel * stage.channel_stride] : 0;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int item = first + i * CONSUMERS, y = task.y + item / stage.out_columns, x = item % stage.out_columns;
            if (item >= all || y >= stage.out_rows) continue;
            unsigned short* to = out + ((task.image * stage.out_rows + y) * stage.out_columns + x) * stage.channels;
            const u32 low = pixels[i][0] | static_cast<u32>(pixels[i][1]) << 16,
                      high = pixels[i][2] | static_cast<u32>(pixels[i][3]) << 16;
            store_window_pixel(stage, to, low, high);
        }
    }
}
