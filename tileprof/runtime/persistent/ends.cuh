// The end of a tile: sums of all parts, what follows a product, stores.
#pragma once

#include "common.cuh"

// v times the normal distribution function. What is missing from v, or from 0, is |v| / 2 * erfc(|v| / sqrt(2)); the polynomial is log2 of erfc(x / sqrt(2)),
// fitted for x up to 6.5, where what is left is below 1e-9, and falls beyond: off by 6e-6 of the value, where erff takes three times as many instructions.
__device__ __forceinline__ float gelu(float v) {
    const float x = fminf(fabsf(v), 16.0f);
    float log = fmaf(x, -1.775018859e-6f, 6.039289656e-5f);
    log = fmaf(x, log, -9.209402488e-4f);
    log = fmaf(x, log, 8.469634689e-3f);
    log = fmaf(x, log, -5.387961864e-2f);
    log = fmaf(x, log, -4.585494399e-1f);
    log = fmaf(x, log, -1.1512126923f);
    const float limit = v <= 0.0f ? 0.0f : v;  // what is no number stays none
    return fmaf(-0.5f * x, power_of_two(x * log), limit);
}

__device__ __forceinline__ float activate(int epilogue, float v) {
    switch (epilogue) {
        case RELU: return fmaxf(v, 0.0f);
        case GELU: return gelu(v);
        case GELU_TANH: return 0.5f * v * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
        case SILU: return __fdividef(v, 1.0f + __expf(-v));
        default: return v;
    }
}

struct Eight {
    float v[8];
};

// The sum of all parts, in the order of ranks, so that it is the same every time; parts lie BYTES apart.
template <int BYTES>
__device__ __forceinline__ Eight summed(u32 address) {
    float4 part[PARTS][2];
#pragma unroll
    for (int rank = 0; rank < PARTS; ++rank)
#pragma unroll
        for (int half = 0; half < 2; ++half) part[rank][half] = load_shared_f32x4(address + rank * BYTES + 16 * half);
    Eight sum;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float4 total = part[0][half];
#pragma unroll
        for (int rank = 1; rank < PARTS; ++rank) {
            total.x += part[rank][half].x;
            total.y += part[rank][half].y;
            total.z += part[rank][half].z;
            total.w += part[rank][half].w;
        }
        sum.v[4 * half] = total.x;
        sum.v[4 * half + 1] = total.y;
        sum.v[4 * half + 2] = total.z;
        sum.v[4 * half + 3] = total.w;
    }
    return sum;
}

union Halves {
    uint4 all;
    unsigned short one[8];
};

__device__ __forceinline__ Halves load_halves(const void* base, long long at) {
    Halves halves;
    halves.all = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(base) + at);
    return halves;
}

// Two neighbours; the first is at an even place.
__device__ __forceinline__ u32 load_two(const void* base, long long at) {
    return *reinterpret_cast<const u32*>(static_cast<const unsigned short*>(base) + at);
}

__device__ __forceinline__ void add(Eight& to, const Halves& halves) {
#pragma unroll
    for (int i = 0; i < 8; ++i) to.v[i] += unpack(halves.one[i]);
}

// A tile's end. Each block owns some of its rows: the others send it their sums of those, into the part of its buffer that is theirs. As many columns
// at a time as a buffer holds are a pass; barriers count through all passes of all tiles. Warps that are ALONE, with no part and no half of a gate elsewhere, need
// none: their rows go through the buffer to be stored sixteen bytes a thread.
struct Sums {
    const Arguments& arguments;
    u32 shared;
    Rank rank;
    u32 thread;
    Ring<BUFFERS> writing, reading;

    __device__ u32 buffer(u32 slot) const { return shared + BUFFER_AT + slot * BUFFER_BYTES; }

    // Rows of the tile that this block finishes.
    template <class S>
    __device__ int owned(int rows) const {
        const int left = rows - static_cast<int>(rank.part) * S::OWN_ROWS;
        return left < 0 ? 0 : left < S::OWN_ROWS ? left : S::OWN_ROWS;
    }

    // Bytes from the beginning of a buffer, where rows of all parts lie PITCH floats apart.
    template <class S>
    static __device__ __forceinline__ u32 place(int row, int segment, int column) {
        return 4 * (row * S::PITCH + segment * S::PASS_COLUMNS + column);
    }

    // Where this thread's four columns of a row go: to the block that owns the row.
    struct Owner {
        u32 at, barrier;
        bool here, there;

        __device__ void put(int bytes, const float4& v) const {
            if (here) store_shared_f32x4(at + bytes, v);
            if (there) store_async_cluster_f32x4(at + bytes, v, barrier);
        }
    };

    template <class S>
    __device__ Owner owner(int row, int rows, int column) const {
        const u32 owner = row / S::OWN_ROWS, barrier = shared + SUMS_FULL + 8 * writing.slot;
        const u32 at = buffer(writing.slot) + place<S>(rank.part * S::OWN_ROWS + row % S::OWN_ROWS, 0, column);
        if (owner == rank.part || row >= rows) return {at, barrier, row < rows, false};
        return {map_shared_rank(at, rank.with_part(owner)), map_shared_rank(barrier, rank.with_part(owner)), false, true};
    }

    // This thread's accumulators of pass PASS, two by two, into a buffer.
    template <class S, int PASS>
    __device__ __forceinline__ void write(const float (&sums)[S::WIDTH / 2], int rows) {
        if constexpr (!ALONE) wait_cta(shared + SUMS_FREE + 8 * writing.slot, writing.turn ^ 1);
        const int group = thread / 128, lane = thread % 32;
        const int row = (ROWS == 128 ? 64 * group : 0) + thread / 32 % 4 * 16 + lane / 4;
        constexpr int FIRST = PASS * S::PASS_COLUMNS;
        constexpr int LAST = FIRST + S::PASS_COLUMNS < S::SEGMENT ? FIRST + S::PASS_COLUMNS : S::SEGMENT;
        const u32 full = shared + SUMS_FULL + 8 * writing.slot;
        if constexpr (PARTS == 1) {
            const u32 to = buffer(writing.slot) + place<S>(row, S::MINE < S::SEGMENTS ? group : 0, lane % 4 * 2);
#pragma unroll
            for (int mine = 0; mine < S::MINE; ++mine)
#pragma unroll
                for (int column = FIRST; column < LAST; column += 8) {
                    const int i = (mine * S::SEGMENT + column) / 2;
                    if (row < rows) store_shared_f32x2(to + place<S>(0, mine, column - FIRST), sums[i], sums[i + 1]);
                    if (row + 8 < rows) store_shared_f32x2(to + place<S>(8, mine, column - FIRST), sums[i + 2], sums[i + 3]);
                }
            __syncwarp();
            if (!ALONE && lane == 0) mbarrier_arrive_release_cta(full);
        } else {
            send<S, FIRST, LAST>(sums, rows, group, row, lane);
            __syncwarp();
            if (thread == 0)
                mbarrier_arrive_expect_release_cta(full, (PARTS - 1) * owned<S>(rows) * (LAST - FIRST) * S::SEGMENTS * 4);
            else if (lane == 0)
                mbarrier_arrive_release_cta(full);
        }
        if constexpr (!ALONE) writing.advance();
    }

    // Sixteen columns at a time through a scratch of the warp, where neighbouring lanes find neighbouring columns: another block takes sixteen bytes
    // of a lane no slower than eight. (A release to threads of other blocks, instead of stores that their barrier counts, waits for stores to global memory too.)
    template <class S, int FIRST, int LAST>
    __device__ __forceinline__ void send(const float (&sums)[S::WIDTH / 2], int rows, int group, int row, int lane) const {
        const u32 scratch = shared + SCRATCH_AT + thread / 32 * SCRATCH_BYTES;
        const u32 to = scratch + 4 * (lane / 4 * SCRATCH_PITCH + lane % 4 * 2), from = scratch + 4 * (lane / 4 * SCRATCH_PITCH + lane % 4 * 4);
        const int segment = S::MINE < S::SEGMENTS ? group : 0;
        const Owner upper = owner<S>(row, rows, lane % 4 * 4), lower = owner<S>(row + 8, rows, lane % 4 * 4);
#pragma unroll
        for (int mine = 0; mine < S::MINE; ++mine)
#pragma unroll
            for (int column = FIRST; column < LAST; column += 16) {
                const int i = (mine * S::SEGMENT + column) / 2;
#pragma unroll
                for (int eight = 0; eight < (LAST - column < 16 ? 1 : 2); ++eight) {
                    store_shared_f32x2(to + 32 * eight, sums[i + 4 * eight], sums[i + 4 * eight + 1]);
                    store_shared_f32x2(to + 32 * eight + 32 * SCRATCH_PITCH, sums[i + 4 * eight + 2], sums[i + 4 * eight + 3]);
                }
                __syncwarp();
                if (LAST - column >= 16 || lane % 4 < 2) {
                    const u32 bytes = place<S>(0, mine + segment, column - FIRST);
                    upper.put(bytes, load_shared_f32x4(from));
                    lower.put(bytes, load_shared_f32x4(from + 32 * SCRATCH_PITCH));
                }
                __syncwarp();
            }
    }

    // Sum, finish and store this thread's share of pass PASS.
    template <class S, int PASS>
    __device__ __forceinline__ void finish(const Task& task, int rows) {
        if constexpr (!ALONE) wait_cta(shared + SUMS_FULL + 8 * reading.slot, reading.turn);
        constexpr int FIRST = PASS * S::PASS_COLUMNS;
        constexpr int COUNT = FIRST + S::PASS_COLUMNS < S::SEGMENT ? S::PASS_COLUMNS : S::SEGMENT - FIRST;
        constexpr int GROUPS = COUNT / 8 * (S::GATED ? 1 : ALONE ? S::MINE : S::SEGMENTS), PART = 4 * S::PITCH * S::OWN_ROWS;
        // A warp that is alone finishes what it wrote: sixteen rows, and with 64 rows one of the two segments.
        const int lane = thread % 32, top = ALONE ? (ROWS == 128 ? thread / 32 : thread / 32 % 4) * 16 : 0;
        const int mine = ALONE ? (rows - top < 16 ? rows - top : 16) : owned<S>(rows);
        const int first = first_row<S>(task, rank), before = rank.part * S::OWN_ROWS;
        for (int item = ALONE ? lane : thread; item < mine * GROUPS; item += ALONE ? 32 : CONSUMERS) {
            const int row = top + item / GROUPS, group = item % GROUPS;
            const int segment = ALONE && S::MINE < S::SEGMENTS ? thread / 128 : group / (COUNT / 8), column = group % (COUNT / 8) * 8;
            const int across = task.column * S::TILE_COLUMNS + segment * S::SEGMENT + FIRST + column;
            const int result = result_row<S>(before + row);
            if (across >= S::N || result < 0) continue;
            const u32 at = buffer(reading.slot) + place<S>(row, segment, column);
            store<S>(summed<PART>(at), S::GATED ? summed<PART>(at + place<S>(0, 1, 0)) : Eight(), first + result, across);
        }
        __syncwarp();
        if constexpr (ALONE) return;
        const u32 free = shared + SUMS_FREE + 8 * reading.slot;
        if (PARTS == 1 && lane == 0) mbarrier_arrive_release_cta(free);
        if (PARTS > 1 && lane < PARTS) mbarrier_arrive_relaxed_cluster(map_shared_rank(free, rank.with_part(lane)));
        reading.advance();
    }

    template <class S>
    __device__ __forceinline__ Halves bias(int column) const {
        if constexpr (BIAS_BYTES == 0) return load_halves(arguments.stage[S::INDEX].bias, column);
        Halves halves;
        halves.all = load_shared_u32x4(shared + BIAS_SHARED + S::BIAS_AT + 2 * column);
        return halves;
    }

    template <class S>
    __device__ __forceinline__ void store(Eight value, Eight factor, long long row, int column) const {
        const StageTensors& tensors = arguments.stage[S::INDEX];
        if constexpr (S::BIAS) {
            add(value, bias<S>(column));
            if constexpr (S::GATED) add(factor, bias<S>(S::N + column));
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) value.v[i] = activate(S::GATED ? SILU : S::EPILOGUE, value.v[i]) * (S::GATED ? factor.v[i] : 1.0f);
        if constexpr (S::RESIDUAL) add(value, load_halves(tensors.residual, row * S::RESIDUAL_ROW + column));
        uint4 out;
        out.x = pack(value.v[0], value.v[1]);
        out.y = pack(value.v[2], value.v[3]);
        out.z = pack(value.v[4], value.v[5]);
        out.w = pack(value.v[6], value.v[7]);
        *reinterpret_cast<uint4*>(static_cast<unsigned short*>(tensors.out) + row * S::OUT_ROW + column) = out;
    }

    template <class S, int PASS = 0>
    __device__ __forceinline__ void passes(const float (&sums)[S::WIDTH / 2], const Task& task, int rows) {
        if constexpr (PASS < S::PASSES) {
            if constexpr (BUFFERS == 1 || PASS == 0) write<S, PASS>(sums, rows);
            if constexpr (BUFFERS > 1 && PASS + 1 < S::PASSES) write<S, PASS + 1>(sums, rows);
            finish<S, PASS>(task, rows);
            passes<S, PASS + 1>(sums, task, rows);
        }
    }

    // No block ends while another may still read its buffers or arrive at its barriers.
    __device__ void drain() {
        for (int i = 0; i < (ALONE ? 0 : BUFFERS); ++i, writing.advance())
            wait_cta(shared + SUMS_FREE + 8 * writing.slot, writing.turn ^ 1);
    }
};
