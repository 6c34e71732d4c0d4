// Convolutions and products with a matrix: two warpgroups multiply the contents of the rings, finish and store.
#pragma once

#include "common.cuh"
#include "ends.cuh"

// The lower half of a descriptor: the address of an operand, which is K-major.
__device__ __forceinline__ u32 descriptor(u32 address) { return (address & 0x3FFFF) >> 4 | 1u << 16; }

// Upper halves. Swizzled: eight rows of 128 bytes are an atom, and atoms are consecutive. Windows: not swizzled,
// eight rows of 16 bytes are an atom, and the next eight of k follow after 16 bytes. As an atom's rows are also 16
// bytes apart, each row begins with the elements of the previous row from the ninth on: windows of a row of pixels
// with a step of 16 bytes.
constexpr u32 SWIZZLED = 64u | 1u << 30, WINDOWED = 8u;

// The position of a warpgroup in the rings.
struct Reader {
    Ring<A_SLOTS> a;
    Ring<W_SLOTS> w;
};

// Slots that are free once the products in flight have ended; -1: none.
struct Used {
    int a = -1, w = -1;

    __device__ void release(u32 shared, u32 lane) {
        if (lane == 0 && a >= 0) mbarrier_arrive_release_cta(shared + A_FREE + 8 * a);
        if (lane == 0 && w >= 0) mbarrier_arrive_release_cta(shared + W_FREE + 8 * w);
        a = w = -1;
    }
};

// One block of k, half of which each of DEEP warpgroups takes.
template <int W, bool DEEP>
__device__ __forceinline__ void multiply_block(float (&sums)[W / 2], u32 a, u32 b, u32 layout, u32 pair) {
#pragma unroll
    for (int step = 0; step < (DEEP ? 2 : 4); ++step)
        Multiply<W>::add(sums, static_cast<u64>(layout) << 32 | (a + 2 * (step % 2) + step / 2 * pair),
                         static_cast<u64>(SWIZZLED) << 32 | (b + 2 * step));
}

// A broadcast from lane 0 tells ptxas that all lanes read the same: descriptors then stay in uniform registers, which
// products read.
__device__ __forceinline__ u32 uniform(u32 value) { return __shfl_sync(~0u, value, 0); }

// Adds up all blocks of k, two at a time if a slot has two: these are in flight while the next slot is awaited.
template <int W, bool DEEP>
__device__ __forceinline__ void multiply(float (&sums)[W / 2], Reader& reader, const Stage& stage, u32 shared,
                                         u32 thread) {
    const int group = thread / 128, blocks = stage.k_blocks, a_most = stage.slot_blocks, w_most = stage.weight_blocks;
    const u32 half = DEEP ? group * 64 : 0;  // bytes along k
    const u32 a_at = shared + (DEEP ? 0 : group * stage.group_rows * ROW_BYTES) + half, w_at = shared + W_AT + half;
    const u32 lane = thread % 32;
    const u32 pair = uniform(stage.window ? WINDOW_PITCH / 16
                                          : 4);  // bytes between two pairs of steps along k: another tap, with windows
    const u32 next = uniform(stage.block_bytes / 16);
    const u32 layout = uniform(stage.window ? WINDOWED : SWIZZLED);
    Used before;
    for (int k = 0, a_begin = 0, w_begin = 0; k < blocks;) {
        const int a_end = a_begin + a_most < blocks ? a_begin + a_most : blocks,
                  w_end = w_begin + w_most < blocks ? w_begin + w_most : blocks;
        const int end = a_end < w_end ? a_end : w_end;
        if (k == w_begin) wait_cta(shared + W_FULL + 8 * reader.w.slot, reader.w.turn);
        if (k == a_begin) wait_cta(shared + A_FULL + 8 * reader.a.slot, reader.a.turn);
        const u32 a_slot = a_at + reader.a.slot * A_BYTES, w_slot = w_at + reader.w.slot * W_BYTES;
        for (; k + 1 < end; k += 2) {
            const u32 a = uniform(descriptor(a_slot + (k - a_begin) * stage.block_bytes));
            const u32 b = uniform(descriptor(w_slot + (k - w_begin) * (W * ROW_BYTES)));
            wgmma_fence();
            multiply_block<W, DEEP>(sums, a, b, layout, pair);
            multiply_block<W, DEEP>(sums, a + next, b + W * ROW_BYTES / 16, layout, pair);
            wgmma_commit();
        }
        if (k < end) {
            const u32 a = uniform(descriptor(a_slot + (k - a_begin) * stage.block_bytes));
            const u32 b = uniform(descriptor(w_slot + (k - w_begin) * (W * ROW_BYTES)));
            wgmma_fence();
            multiply_block<W, DEEP>(sums, a, b, layout, pair);
            wgmma_commit();
            ++k;
        }
        wgmma_wait<1>();
        before.release(shared, lane);
        if (end == a_end) before.a = reader.a.slot, reader.a.advance(), a_begin = end;
        if (end == w_end) before.w = reader.w.slot, reader.w.advance(), w_begin = end;
    }
    wgmma_wait<0>();
    before.release(shared, lane);
}

// The same for 3x3 taps of a box and slots of weights with three taps or a multiple: a row of taps at a time.
template <int W, bool DEEP>
__device__ __forceinline__ void multiply_rows(float (&sums)[W / 2], Reader& reader, const Stage& stage, u32 shared,
                                              u32 thread) {
    const int group = thread / 128, rows = stage.k_blocks / 3, w_most = stage.weight_blocks;
    const u32 half = DEEP ? group * 64 : 0;
    const u32 a_at = shared + (DEEP ? 0 : group * stage.group_rows * ROW_BYTES) + half, w_at = shared + W_AT + half,
              step = stage.step * ROW_BYTES;
    const u32 lane = thread % 32;
    Used before;
    for (int row = 0, down = 0, block = 0; row < rows; ++row) {
        if (block == 0) wait_cta(shared + W_FULL + 8 * reader.w.slot, reader.w.turn);
        if (down == 0) wait_cta(shared + A_FULL + 8 * reader.a.slot, reader.a.turn);
        const u32 a = uniform(descriptor(a_at + reader.a.slot * A_BYTES + down * step));
        const u32 b = uniform(descriptor(w_at + reader.w.slot * W_BYTES + block * (W * ROW_BYTES)));
        wgmma_fence();
#pragma unroll
        for (int tap = 0; tap < 3; ++tap)
            multiply_block<W, DEEP>(sums, a + tap * (ROW_BYTES / 16), b + tap * (W * ROW_BYTES / 16), SWIZZLED, 4);
        wgmma_commit();
        wgmma_wait<1>();
        before.release(shared, lane);
        block += 3;
        if (++down == 3) before.a = reader.a.slot, reader.a.advance(), down = 0;
        if (block == w_most || row + 1 == rows) before.w = reader.w.slot, reader.w.advance(), block = 0;
    }
    wgmma_wait<0>();
    before.release(shared, lane);
}

struct Consumer {
    const Arguments& arguments;
    u32 shared, thread;
    Reader reader;
    bool mixed = false;  // whether warps have read what others left in the scratch, in the last tile

    template <int W, bool DEEP>
    __device__ __forceinline__ void tile(const Stage& stage, const Task& task, s32 number) {
        const bool pools = stage.pool > 1;
        // of all warpgroups that share a tile's k, one adds the bias
        const bool adds = (!DEEP || thread < 128) && task.part == 0;
        float sums[W / 2];
        wait_cta(shared + W_FULL + 8 * reader.w.slot, reader.w.turn);
        if (thread == 0) stamp(arguments, number, WEIGHTS_THERE);
        float4 ends[W / 8];  // of two channels: scale, bias, scale, bias
#pragma unroll
        for (int i = 0; i < W / 8; ++i) {
            ends[i] =
                load_shared_f32x4(shared + W_AT + reader.w.slot * W_BYTES + ENDS_AT + 8 * (8 * i + thread % 4 * 2));
            sums[4 * i] = sums[4 * i + 1] = sums[4 * i + 2] = sums[4 * i + 3] = 0.0f;
        }
        typename End<W, DEEP>::Type end(stage, task, thread);
        if (stage.residual != nullptr) {
            wait_cta(shared + A_FULL + 8 * reader.a.slot, reader.a.turn);  // then its tiles have arrived, too
            end.load(static_cast<const unsigned short*>(stage.residual));
        }
        if constexpr (TIMELINE) {
            wait_cta(shared + A_FULL + 8 * reader.a.slot, reader.a.turn);
            if (thread == 0) stamp(arguments, number, TILES_THERE);
        }
        if (stage.halo > 0)
            multiply_rows<W, DEEP>(sums, reader, stage, shared, thread);
        else
            multiply<W, DEEP>(sums, reader, stage, shared, thread);
#pragma unroll
        for (int i = 0; i < W / 8; ++i) {
            const float first = adds ? ends[i].y : 0.0f, second = adds ? ends[i].w : 0.0f;
            sums[4 * i] = sums[4 * i] * ends[i].x + first, sums[4 * i + 2] = sums[4 * i + 2] * ends[i].x + first;
            sums[4 * i + 1] = sums[4 * i + 1] * ends[i].z + second;
            sums[4 * i + 3] = sums[4 * i + 3] * ends[i].z + second;
        }
        if (thread == 0) stamp(arguments, number, MULTIPLIED);
        delay(arguments, number, 1);
        const bool mixes = DEEP || pools;
        if (mixed || mixes) barrier_sync<1, CONSUMERS>();  // all have read what the last tile left in the scratch
        mixed = mixes;
        auto* out = static_cast<unsigned short*>(stage.out != nullptr ? stage.out : arguments.out);
        if constexpr (DEEP) {
            if (stage.parts > 1)
                end.store_part(stage, task, arguments.flags, out, sums, shared);
            else if (pools)
                pool_together<W>(stage, task, out, sums, shared, thread);
            else
                end.store(stage, out, sums, shared);
        } else if constexpr (W >= LEAST_POOLED) {
            if (pools)
                pool_apart<W>(stage, task, out, sums, shared, thread);
            else
                end.store(stage, out, sums, shared);
        } else {
            end.store(stage, out, sums, shared);
        }
    }
};
