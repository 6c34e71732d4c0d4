// The epilogue of a tile: sums go through shared memory, so that each thread has eight channels of a pixel. It adds
// the residual to them, and keeps the largest of two by two pixels if the layer pools.
#pragma once

#include "halves.cuh"

constexpr int MOST_PART = 32;  // columns of sums per pass through shared memory

constexpr int LEAST_POOLED = 16;  // columns of a pooling tile if the warpgroups have different rows

// Returns the number of elements from the beginning of the result to a pixel of the tile, which is in row `row` of
// its image's rows of shared memory (in pixels of the result, `step` apart); -1 if there is no such pixel.
__device__ __forceinline__ s32 pixel_at(const Stage& stage, const Task& task, int row, int step, int image) {
    const int down = row / step, across = row - down * step;
    const bool there = down < stage.tile_rows && across < stage.tile_columns && task.y + down < stage.out_rows &&
                       task.x + across < stage.out_columns && image < stage.out_images;
    return there ? ((image * stage.out_rows + task.y + down) * stage.out_columns + task.x + across) * stage.out_channels
                 : -1;
}

// Returns the number of bytes from the first row of `PART` sums to sum `column` of a row. Pairs of chunks of 16 bytes
// are swapped, so that threads of a warp that write a column of rows use different banks.
template <int PART>
__device__ __forceinline__ u32 sum_at(u32 row, u32 column) {
    const u32 turned = PART == 32 ? row % 4 * 2 : PART == 16 ? row / 2 % 2 * 2 : 0;
    return row * (PART * 4) + ((column / 4 ^ turned) * 16 + column % 4 * 4);
}

// Writes a thread's sums of PART columns from `FIRST` on into its two rows.
template <int PART, int FIRST, int ALL>
__device__ __forceinline__ void put_sums(const float (&sums)[ALL], u32 to, u32 row, u32 lane) {
#pragma unroll
    for (int i = 0; i < PART / 8; ++i) {
        const float* from = sums + (FIRST / 8 + i) * 4;
        store_shared_f32x2(to + sum_at<PART>(row, 8 * i + lane % 4 * 2), float2{from[0], from[1]});
        store_shared_f32x2(to + sum_at<PART>(row + 8, 8 * i + lane % 4 * 2), float2{from[2], from[3]});
    }
}

template <int PART>
__device__ __forceinline__ void add_sums(Eight& eight, u32 from, u32 row, u32 column) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float4 four = load_shared_f32x4(from + sum_at<PART>(row, column + 4 * half));
        eight.values[4 * half] += four.x, eight.values[4 * half + 1] += four.y;
        eight.values[4 * half + 2] += four.z, eight.values[4 * half + 3] += four.w;
    }
}

__device__ __forceinline__ void finish(unsigned short* out, Eight eight, const uint4& residual, bool adds, bool relu) {
    if (adds) {
        const Eight more = eight_of(residual);
#pragma unroll
        for (int i = 0; i < 8; ++i) eight.values[i] += more.values[i];
    }
    if (relu)  // NaN stays NaN
#pragma unroll
        for (int i = 0; i < 8; ++i) eight.values[i] = eight.values[i] < 0.0f ? 0.0f : eight.values[i];
    store_eight(out, eight);
}

// The case in which the warpgroups have different rows. Each warp takes its sixteen rows through its own memory.
template <int W>
struct Apart {
    static constexpr int PART = W < MOST_PART ? W : MOST_PART, ACROSS = PART / 8, PASSES = W / PART;
    static constexpr int ROWS = ACROSS > 2 ? ACROSS / 2 : 1;  // pixels per thread and pass

    s32 at[ROWS];
    uint4 more[ROWS * PASSES];
    int first, channels;
    u32 warp, lane;

    __device__ Apart(const Stage& stage, const Task& task, u32 thread) : warp(thread / 32), lane(thread % 32) {
        const int group = thread / 128, two = stage.tile_images > 1;
        first = task.column * W + lane % ACROSS * 8, channels = stage.out_channels;
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            at[i] = mine(i) < 16 ? pixel_at(stage, task, warp % 4 * 16 + mine(i) + (two ? 0 : group * 64), stage.step,
                                            task.image + (two ? group : 0))
                                 : -1;
    }

    __device__ int mine(int i) const { return (i * 32 + lane) / ACROSS; }

    __device__ bool here(int pass, int i) const { return at[i] >= 0 && first + pass * PART < channels; }

    __device__ void load(const unsigned short* residual) {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
                if (here(pass, i)) more[pass * ROWS + i] = load_global_u32x4(residual + at[i] + first + pass * PART);
    }

    template <int PASS = 0>
    __device__ void store(const Stage& stage, unsigned short* out, const float (&sums)[W / 2], u32 shared) const {
        const u32 scratch = shared + SCRATCH_AT + warp * (16 * MOST_PART * 4);
        put_sums<PART, PASS * PART>(sums, scratch, lane / 4, lane);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (!here(PASS, i)) continue;
            Eight eight = {};
            add_sums<PART>(eight, scratch, mine(i), lane % ACROSS * 8);
            finish(out + at[i] + first + PASS * PART, eight, more[PASS * ROWS + i], stage.residual != nullptr,
                   stage.relu);
        }
        __syncwarp();
        if constexpr (PASS + 1 < PASSES) store<PASS + 1>(stage, out, sums, shared);
    }
};

// The case in which both warpgroups have sums of the same rows, of halves of k.
template <int W>
struct Together {
    static_assert(W <= MOST_PART);
    static constexpr int ACROSS = W / 8;
    static constexpr u32 GROUP_BYTES = 64 * W * 4;

    s32 at;
    uint4 more;
    int column, row;
    u32 thread;

    __device__ Together(const Stage& stage, const Task& task, u32 thread) : thread(thread) {
        column = thread % ACROSS * 8, row = thread / ACROSS;
        const bool here = row < 64 && task.column * W + column < stage.out_channels;
        at = here ? pixel_at(stage, task, row, stage.step, task.image) : -1;
        if (at >= 0) at += task.column * W + column;
    }

    __device__ void load(const unsigned short* residual) {
        if (at >= 0) more = load_global_u32x4(residual + at);
    }

    __device__ void store(const Stage& stage, unsigned short* out, const float (&sums)[W / 2], u32 shared) const {
        put_both(sums, shared, thread);
        if (at < 0) return;
        Eight eight = {};
        sum_both(eight, shared, row, column);
        finish(out + at, eight, more, stage.residual != nullptr, stage.relu);
    }

    // The end of a part of k: its sums go to memory. The last part of the tile adds all of them up in a fixed order,
    // so that it does not matter which part is the last.
    __device__ void store_part(const Stage& stage, const Task& task, s32* flags, unsigned short* out,
                               const float (&sums)[W / 2], u32 shared) const {
        put_both(sums, shared, thread);
        float* const parts = stage.sums + static_cast<u64>(task.place) * stage.parts * (64 * W) + row * W + column;
        Eight mine = {};
        if (at >= 0) {
            sum_both(mine, shared, row, column);
            float* const to = parts + task.part * (64 * W);
            const float (&v)[8] = mine.values;
            store_global_f32x4(to, float4{v[0], v[1], v[2], v[3]});
            store_global_f32x4(to + 4, float4{v[4], v[5], v[6], v[7]});
        }
        barrier_sync<1, CONSUMERS>();
        if (thread == 0) {
            const u32 before = fetch_add_acq_rel_gpu_s32(flags + task.counter * FLAG_WORDS, 1);
            store_shared_s32(shared + LAST_AT, (before + 1) % stage.parts == 0);
        }
        barrier_sync<1, CONSUMERS>();
        if (at < 0 || load_shared_s32(shared + LAST_AT) == 0) return;
        Eight eight = {};
#pragma unroll 4
        for (int part = 0; part < stage.parts; ++part) {
            const float* from = parts + part * (64 * W);
            const float4 low = load_global_f32x4(from), high = load_global_f32x4(from + 4);
            eight.values[0] += low.x, eight.values[1] += low.y, eight.values[2] += low.z, eight.values[3] += low.w;
            eight.values[4] += high.x, eight.values[5] += high.y, eight.values[6] += high.z, eight.values[7] += high.w;
        }
        finish(out + at, eight, more, stage.residual != nullptr, stage.relu);
    }

    // All threads have read the last tile's sums before this tile's sums are written.
    static __device__ void put_both(const float (&sums)[W / 2], u32 shared, u32 thread) {
        put_sums<W, 0>(sums, shared + SCRATCH_AT + thread / 128 * GROUP_BYTES, thread % 128 / 32 * 16 + thread % 32 / 4,
                       thread % 32);
        barrier_sync<1, CONSUMERS>();
    }

    static __device__ void sum_both(Eight& eight, u32 shared, u32 row, u32 column) {
        add_sums<W>(eight, shared + SCRATCH_AT, row, column);
        add_sums<W>(eight, shared + SCRATCH_AT + GROUP_BYTES, row, column);
    }
};

// Eight channels, from `channel` on, of the pixel that would begin at element `at` if channels were last; in this
// result, pixels are last.
__device__ __forceinline__ void store_flat(const Stage& stage, unsigned short* out, s32 at, int channel,
                                           const Eight& eight) {
    const int pixels = stage.channel_stride, number = at / stage.out_channels, image = number / pixels;
    unsigned short* to = out + (image * stage.out_channels + channel) * pixels + number - image * pixels;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float value = stage.relu && eight.values[i] < 0.0f ? 0.0f : eight.values[i];
        to[i * pixels] = static_cast<unsigned short>(pack(value, 0.0f) & 0xFFFF);
    }
}

// The largest of the sums of two by two pixels. `value(row, column)` has eight sums of a pixel, with `row` relative
// to the image's first row in shared memory. Threads take eight channels of a pixel of the result in turn.
template <int PART, class Value>
__device__ __forceinline__ void store_largest(const Stage& stage, const Task& task, unsigned short* out, int first,
                                              u32 thread, Value&& value) {
    constexpr int ACROSS = PART / 8;
    const int columns = stage.tile_columns, each = stage.tile_rows * columns, all = stage.tile_images * each * ACROSS;
    for (int item = thread; item < all; item += CONSUMERS) {
        const int column = item % ACROSS * 8, pixel = item / ACROSS, image = pixel / each,
                  inside = pixel - image * each;
        const int down = inside / columns, across = inside - down * columns;
        const s32 at = pixel_at(stage, task, down * columns + across, columns, task.image + image);
        if (at < 0 || first + column >= stage.out_channels) continue;
        const int row = image * 64 + 2 * (down * stage.step + across);
        Eight most = value(row, column);
#pragma unroll
        for (int tap = 1; tap < 4; ++tap) keep_larger(most, value(row + tap / 2 * stage.step + tap % 2, column));
        if (stage.channel_stride > 0)
            store_flat(stage, out, at, first + column, most);
        else
            finish(out + at + first + column, most, uint4{}, false, stage.relu);
    }
}

// The tile of a pooling layer whose warpgroups have different rows: halves of all rows are in shared memory. Halves
// have the same order as sums, and zeros follow in the end.
template <int W>
__device__ __forceinline__ void pool_apart(const Stage& stage, const Task& task, unsigned short* out,
                                           const float (&sums)[W / 2], u32 shared, u32 thread) {
    constexpr int SQUARES = W / 8;
    static_assert(128 * W * 2 <= SCRATCH_BYTES);
    const u32 scratch = shared + SCRATCH_AT, lane = thread % 32;
    const auto at = [=](u32 row, u32 square) {
        return scratch + row * (W * 2) + (square ^ row * SQUARES / 8 % SQUARES) * 16;
    };
#pragma unroll
    for (int i = 0; i < SQUARES; i += 2) {
        const float* from = sums + i * 4;
        const u32 squares[4] = {pack(from[0], from[1]), pack(from[2], from[3]), pack(from[4], from[5]),
                                pack(from[6], from[7])};
        store_matrices_shared(at(thread / 32 * 16 + lane % 16, i + lane / 16), squares);
    }
    barrier_sync<1, CONSUMERS>();
    store_largest<W>(stage, task, out, task.column * W, thread,
                     [&](int row, int column) { return eight_of(load_shared_u32x4(at(row, column / 8))); });
}

template <int W>
__device__ __forceinline__ void pool_together(const Stage& stage, const Task& task, unsigned short* out,
                                              const float (&sums)[W / 2], u32 shared, u32 thread) {
    Together<W>::put_both(sums, shared, thread);
    store_largest<W>(stage, task, out, task.column * W, thread, [&](int row, int column) {
        Eight eight = {};
        Together<W>::sum_both(eight, shared, row, column);
        return eight;
    });
}

template <int W, bool DEEP>
struct End {
    using Type = Apart<W>;
};
template <int W>
struct End<W, true> {
    using Type = Together<W>;
};
