// The epilogue of a tile: sums of all parts, what follows a product, stores.
#pragma once

#include "common.cuh"

// v times the normal distribution function. The difference to v, or to 0, is |v| / 2 * erfc(|v| / sqrt(2)). The
// polynomial is log2 of erfc(x / sqrt(2)), fitted for x up to 6.5, where the rest is below 1e-9, and decreases
// beyond. The result is off by 6e-6 of the value; erff takes three times as many instructions.
__device__ __forceinline__ float gelu(float v) {
    const float x = fminf(fabsf(v), 16.0f);
    float log = fmaf(x, -1.775018859e-6f, 6.039289656e-5f);
    log = fmaf(x, log, -9.209402488e-4f);
    log = fmaf(x, log, 8.469634689e-3f);
    log = fmaf(x, log, -5.387961864e-2f);
    log = fmaf(x, log, -4.585494399e-1f);
    log = fmaf(x, log, -1.1512126923f);
    const float limit = v <= 0.0f ? 0.0f : v;  // NaN stays NaN
    return fmaf(-0.5f * x, power_of_two(x * log), limit);
}

__device__ __forceinline__ float activate(int epilogue, float v) {
    switch (epilogue) {
        case RELU:
            return fmaxf(v, 0.0f);
        case GELU:
            return gelu(v);
        case GELU_TANH:
            return 0.5f * v * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
        case SILU:
            return __fdividef(v, 1.0f + __expf(-v));
        default:
            return v;
    }
}

__device__ __forceinline__ void add(float4& to, const float4& more) {
    to.x += more.x;
    to.y += more.y;
    to.z += more.z;
    to.w += more.w;
}

// Two neighbours; the first has an even index.
__device__ __forceinline__ u32 load_two(const void* base, long long at) {
    return *reinterpret_cast<const u32*>(static_cast<const unsigned short*>(base) + at);
}

struct Two {
    float x, y;

    // Two halves.
    __device__ void add(u32 more) { x += unpack(more), y += unpack(more >> 16); }

    __device__ void multiply(u32 more) { x *= unpack(more), y *= unpack(more >> 16); }
};

// A batch norm by running averages, for two neighbouring columns.
template <class S>
__device__ __forceinline__ void normalise(const StageTensors& tensors, Two& value, int column) {
    const u32 mean = load_two(tensors.mean, column), var = load_two(tensors.var, column);
    const u32 scale = load_two(tensors.scale, column), shift = load_two(tensors.shift, column);
    value.x = (value.x - unpack(mean)) * rsqrtf(unpack(var) + S::EPSILON) * unpack(scale) + unpack(shift);
    value.y = (value.y - unpack(mean >> 16)) * rsqrtf(unpack(var >> 16) + S::EPSILON) * unpack(scale >> 16) +
              unpack(shift >> 16);
}

// A stage's bias for two neighbouring columns.
template <class S>
__device__ __forceinline__ u32 bias_of_two(const StageTensors& tensors, u32 shared, u32 column) {
    if constexpr (BIAS_BYTES == 0) return load_two(tensors.bias, column);
    return load_shared_s32(shared + BIAS_SHARED + S::BIAS_AT + 2 * column);
}

// The operations after a product and its bias, for two neighbouring columns of a row; factors with a gate. All
// threads compute both: branches would serialise them.
template <class S>
__device__ __forceinline__ u32 activated(const StageTensors& tensors, Two value, Two factor, long long row, int column,
                                         bool stored) {
    constexpr int EPILOGUE = S::GATED ? SILU : S::EPILOGUE;
    if constexpr (S::NORM) normalise<S>(tensors, value, column < S::N ? column : 0);
    value.x = activate(EPILOGUE, value.x) * (S::GATED ? factor.x : 1.0f),
    value.y = activate(EPILOGUE, value.y) * (S::GATED ? factor.y : 1.0f);
    if constexpr (S::RESIDUAL) {
        const u32 more = stored && column < S::N ? load_two(tensors.residual, row * S::RESIDUAL_ROW + column) : 0;
        if constexpr (S::MULTIPLIES)
            value.multiply(more);
        else
            value.add(more);
    }
    return pack(value.x, value.y);
}

// The same with the bias.
template <class S>
__device__ __forceinline__ u32 finished(const StageTensors& tensors, u32 shared, Two value, Two factor, long long row,
                                        int column, bool stored) {
    if constexpr (S::BIAS) {
        const u32 at = column < S::N ? column : 0;
        value.add(bias_of_two<S>(tensors, shared, at));
        if constexpr (S::GATED) factor.add(bias_of_two<S>(tensors, shared, S::N + at));
    }
    return activated<S>(tensors, value, factor, row, column, stored);
}

// The epilogue of a tile if several blocks have parts of its sums. Each block finishes some of the columns, OWN
// groups of eight of every segment. Threads with the same number have the same places of the tile in all blocks, so
// that each sends the groups that others finish from its registers, sixteen bytes at a time, to where the thread with
// its number reads them: nothing is rearranged. A pass has as many groups as a buffer holds; barriers count through
// all passes of all tiles. (A release to threads of other blocks, instead of stores that their barrier counts, would
// also wait for stores to global memory.)
struct Sums {
    const Arguments& arguments;
    u32 shared;
    Rank rank;
    u32 thread;
    Ring<BUFFERS> writing, reading;

    // With a gate and 64 rows, one warpgroup has the gate and the other what it gates.
    template <class S>
    static constexpr bool HANDS_OVER = S::GATED && S::MINE < S::SEGMENTS;

    // The index among the warps that have rows of a tile; those of the second warpgroup follow those of the first.
    __device__ u32 warp() const { return thread / 32; }

    template <class S>
    __device__ bool has_rows() const {
        return ROWS == 128 ? warp() < S::WARPS : warp() % 4 < S::WARPS / 2;
    }

    // Where this thread finds its sixteen bytes of a group, from the block at this distance among the others.
    template <class S>
    __device__ u32 place(u32 slot, u32 other, int group, int mine) const {
        const u32 number = ROWS == 128 ? warp() : warp() / 4 * (S::WARPS / 2) + warp() % 4;
        return shared + BUFFER_AT + slot * BUFFER_BYTES +
               (((other * S::PASS_GROUPS + group) * S::MINE + mine) * S::WARPS + number) * 512 + thread % 32 * 16;
    }

    // Groups of a pass that this block finishes.
    template <class S, int PASS>
    __device__ int owned() const {
        const int left = S::GROUPS - static_cast<int>(rank.part) * S::OWN, most = S::OWN < left ? S::OWN : left;
        const int count = most - PASS * S::PASS_GROUPS;
        return count < 0 ? 0 : count < S::PASS_GROUPS ? count : S::PASS_GROUPS;
    }

    // Calls work(group of the pass, segment of mine, first of four sums) for the groups that block PART finishes.
    template <class S, int PASS, int PART, class Work>
    static __device__ __forceinline__ void for_groups(Work&& work) {
#pragma unroll
        for (int group = 0; group < S::PASS_GROUPS; ++group)
#pragma unroll
            for (int mine = 0; mine < S::MINE; ++mine) {
                const int own = PASS * S::PASS_GROUPS + group;
                if (own < S::OWN && PART * S::OWN + own < S::GROUPS)
                    work(group, mine, (mine * S::GROUPS + PART * S::OWN + own) * 4);
            }
    }

    template <class S, int PASS, int PART = 0>
    __device__ __forceinline__ void send(const float (&sums)[S::WIDTH / 2]) {
        if constexpr (PART < PARTS) {
            if (PART != rank.part) {
                const u32 to = map_shared_rank(
                    place<S>(writing.slot, static_cast<int>(rank.part) < PART ? rank.part : rank.part - 1, 0, 0),
                    rank.with_part(PART));
                const u32 full = map_shared_rank(shared + SUMS_FULL + 8 * writing.slot, rank.with_part(PART));
                for_groups<S, PASS, PART>([&](int group, int mine, int i) {
                    const float4 four = {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
                    store_async_cluster_f32x4(to + (group * S::MINE + mine) * S::WARPS * 512, four, full);
                });
            }
            send<S, PASS, PART + 1>(sums);
        }
    }

    template <class S, int PASS, int PART = 0>
    __device__ __forceinline__ void keep(float4 (&kept)[S::PASS_GROUPS][S::MINE],
                                         const float (&sums)[S::WIDTH / 2]) const {
        if constexpr (PART < PARTS) {
            if (PART == rank.part)
                for_groups<S, PASS, PART>([&](int group, int mine, int i) {
                    kept[group][mine] = {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
                });
            keep<S, PASS, PART + 1>(kept, sums);
        }
    }

    // Adds up, finishes and stores this thread's share of a pass.
    template <class S, int PASS>
    __device__ __forceinline__ void finish(const float (&sums)[S::WIDTH / 2], const Task& task, int rows) {
        float4 kept[S::PASS_GROUPS][S::MINE] = {};
        keep<S, PASS>(kept, sums);
        if (PARTS > 1) wait_cta(shared + SUMS_FULL + 8 * reading.slot, reading.turn);
        if (has_rows<S>()) {
#pragma unroll
            for (int group = 0; group < S::PASS_GROUPS; ++group)
#pragma unroll
                for (int mine = 0; mine < S::MINE; ++mine)
#pragma unroll
                    for (int other = 0; other < PARTS - 1; ++other)
                        add(kept[group][mine], load_shared_f32x4(place<S>(reading.slot, other, group, mine)));
        }
        if constexpr (HANDS_OVER<S>) {
            if (thread < 128)
                give<S, 0>(kept);
            else
                give<S, 1>(kept);
            barrier_sync<2, CONSUMERS>();  // one instruction for both warpgroups: synccheck reports two as divergence
            if (thread < 128)
                take<S, PASS, 0>(kept, task, rows);
            else
                take<S, PASS, 1>(kept, task, rows);
        } else if (has_rows<S>()) {
#pragma unroll
            for (int group = 0; group < S::PASS_GROUPS; ++group)
                store<S>(kept[group][0], kept[group][S::MINE - 1], task, rows, PASS * S::PASS_GROUPS + group);
        }
        __syncwarp();
        const u32 free = shared + SUMS_FREE + 8 * reading.slot, lane = thread % 32;
        if (PARTS == 1 && lane == 0) mbarrier_arrive_release_cta(free);
        if (PARTS > 1 && lane < PARTS) mbarrier_arrive_relaxed_cluster(map_shared_rank(free, rank.with_part(lane)));
        reading.advance();
    }

    // The first warpgroup has gates and finishes even groups, the second has what they gate and finishes the odd
    // ones: each sends the other what it needs, through the places from which it has read its own sums.
    template <class S, int MINE>
    __device__ __forceinline__ void give(const float4 (&kept)[S::PASS_GROUPS][S::MINE]) {
        if (!has_rows<S>()) return;
#pragma unroll
        for (int group = 1 - MINE; group < S::PASS_GROUPS; group += 2)
            store_shared_f32x4(place<S>(reading.slot, 0, group, 0), kept[group][0]);
    }

    template <class S, int PASS, int MINE>
    __device__ __forceinline__ void take(const float4 (&kept)[S::PASS_GROUPS][S::MINE], const Task& task, int rows) {
        constexpr int BEHIND = S::WARPS / 2 * 512;
        if (!has_rows<S>()) return;
#pragma unroll
        for (int group = MINE; group < S::PASS_GROUPS; group += 2) {
            const float4 other =
                load_shared_f32x4(place<S>(reading.slot, 0, group, 0) + static_cast<u32>(MINE == 0 ? BEHIND : -BEHIND));
            store<S>(MINE == 0 ? kept[group][0] : other, MINE == 0 ? other : kept[group][0], task, rows,
                     PASS * S::PASS_GROUPS + group);
        }
    }

    // Two rows, eight apart, of two columns each.
    template <class S>
    __device__ __forceinline__ void store(const float4& value, const float4& factor, const Task& task, int rows,
                                          int own) const {
        const StageTensors& tensors = arguments.stage[S::INDEX];
        const int segment = (S::GATED && !S::INTERLEAVED) || S::MINE == S::SEGMENTS ? 0 : thread / 128,
                  lane = thread % 32;
        const int group = part_of<S>(rank) * S::OWN + own,
                  column = first_column<S>(task, rank) + segment * S::SEGMENT + group * 8 + lane % 4 * 2;
        const int row = (ROWS == 128 ? warp() : warp() % 4) * 16 + lane / 4;
        const int above = result_row<S>(row), below = result_row<S>(row + 8);
        const bool here = group < S::GROUPS && own < S::OWN && column < S::N;
        const bool upper = here && row < rows && above >= 0, lower = here && row + 8 < rows && below >= 0;
        const long long first = first_row<S>(task, rank);
        const u32 one =
            finished<S>(tensors, shared, {value.x, value.y}, {factor.x, factor.y}, first + above, column, upper);
        const u32 two =
            finished<S>(tensors, shared, {value.z, value.w}, {factor.z, factor.w}, first + below, column, lower);
        unsigned short* out = static_cast<unsigned short*>(tensors.out) + first * S::OUT_ROW + column;
        if (upper) *reinterpret_cast<u32*>(out + above * S::OUT_ROW) = one;
        if (lower) *reinterpret_cast<u32*>(out + below * S::OUT_ROW) = two;
    }

    template <class S, int PASS>
    __device__ __forceinline__ void write(const float (&sums)[S::WIDTH / 2]) {
        wait_cta(shared + SUMS_FREE + 8 * writing.slot, writing.turn ^ 1);
        if (PARTS > 1 && thread == 0)
            mbarrier_arrive_expect_release_cta(shared + SUMS_FULL + 8 * writing.slot,
                                               (PARTS - 1) * owned<S, PASS>() * S::MINE * S::WARPS * 512);
        if (PARTS > 1 && has_rows<S>()) send<S, PASS>(sums);
        writing.advance();
    }

    // Finishes and stores a tile whose sums no other thread has.
    template <class S>
    __device__ __forceinline__ void store_all(const float (&sums)[S::WIDTH / 2], const Task& task, int rows) const {
        if (!has_rows<S>()) return;
#pragma unroll
        for (int group = 0; group < S::GROUPS; ++group) {
            const float *value = sums + 4 * group, *factor = sums + ((S::MINE - 1) * S::GROUPS + group) * 4;
            store<S>({value[0], value[1], value[2], value[3]}, {factor[0], factor[1], factor[2], factor[3]}, task, rows,
                     group);
        }
        __syncwarp();
    }

    template <class S, int PASS = 0>
    __device__ __forceinline__ void passes(const float (&sums)[S::WIDTH / 2], const Task& task, int rows) {
        if constexpr (S::ABREAST > 1) {
            store_all<S>(sums, task, rows);
        } else if constexpr (PASS < S::PASSES) {
            if constexpr (BUFFERS == 1 || PASS == 0) write<S, PASS>(sums);
            if constexpr (BUFFERS > 1 && PASS + 1 < S::PASSES) write<S, PASS + 1>(sums);
            finish<S, PASS>(sums, task, rows);
            passes<S, PASS + 1>(sums, task, rows);
        }
    }

    // No block ends while another may still read its buffers or arrive at its barriers.
    __device__ void drain() {
        for (int i = 0; i < BUFFERS; ++i, writing.advance())
            wait_cta(shared + SUMS_FREE + 8 * writing.slot, writing.turn ^ 1);
    }
};

union Halves {
    uint4 all;
    unsigned short one[8];
};

__device__ __forceinline__ Halves load_halves(const void* base, long long at) {
    Halves halves;
    halves.all = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(base) + at);
    return halves;
}

constexpr int ALONE_COLUMNS = 64;  // of a warp's buffer, whose 16 rows of 128 bytes are swizzled as TMA would: chunk c
                                   // of row r lies at c ^ (r % 8)
constexpr u32 ALONE_BYTES = 16 * 2 * ALONE_COLUMNS;

// The epilogue of a tile if every warp has the complete sums of its rows. It finishes them in its registers and
// transposes them in its own buffer, as many columns at a time as fit, to store sixteen bytes per lane. No warp waits
// for another.
struct Alone {
    const Arguments& arguments;
    u32 shared;
    Rank rank;
    u32 thread;

    // The first of a warp's sixteen rows of a tile.
    __device__ int top() const { return (ROWS == 128 ? thread / 32 : thread / 32 % 4) * 16; }

    __device__ u32 buffer() const { return shared + BUFFER_AT + thread / 32 * ALONE_BYTES; }

    // Whether a column is one of the result's.
    template <class S>
    static __device__ bool within(int column) {
        return S::N % S::TILE_COLUMNS == 0 || column < S::N;
    }

    template <class S>
    __device__ __forceinline__ void passes(const float (&sums)[S::WIDTH / 2], const Task& task, int rows) const {
        const int lane = thread % 32,
                  column = task.column * S::TILE_COLUMNS + (ROWS == 128 ? 0 : thread / 128 * S::SEGMENT);
        // Warps without rows do not leave early: ptxas would treat the following code, including the next tile's
        // loop, as divergent (1 to 12% slower).
        int results[4];  // rows of the result that this lane stores, relative to the tile's first one
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = top() + 4 * i + lane / 8;
            results[i] = row < rows ? result_row<S>(row) : -1;
        }
        pass<S>(sums, results, first_row<S>(task, rank), column, rows);
    }

    template <class S, int FIRST = 0>
    __device__ __forceinline__ void pass(const float (&sums)[S::WIDTH / 2], const int (&results)[4], long long first,
                                         int column, int rows) const {
        if constexpr (FIRST < S::SEGMENT) {
            constexpr int LAST = FIRST + ALONE_COLUMNS < S::SEGMENT ? FIRST + ALONE_COLUMNS : S::SEGMENT;
            turn<S, FIRST, LAST>(sums, first, column, rows);
            __syncwarp();
            store<S, LAST - FIRST>(results, first, column + FIRST);
            __syncwarp();
            pass<S, LAST>(sums, results, first, column, rows);
        }
    }

    // Columns FIRST to LAST, finished, into the buffer.
    template <class S, int FIRST, int LAST>
    __device__ __forceinline__ void turn(const float (&sums)[S::WIDTH / 2], long long first, int column,
                                         int rows) const {
        const StageTensors& tensors = arguments.stage[S::INDEX];
        const int lane = thread % 32;
        // The address that stmatrix expects for this lane's row of the four squares of eight: two of rows, twice two
        // chunks.
        const u32 own = buffer() + lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4);
#pragma unroll
        for (int sixteen = FIRST; sixteen < LAST; sixteen += 16) {
            u32 squares[4] = {};
#pragma unroll
            for (int eight = sixteen; eight < sixteen + 16 && eight < LAST; eight += 8) {
                const int across = column + eight + lane % 4 * 2, at = within<S>(across) ? across : 0;
                const u32 bias = S::BIAS ? bias_of_two<S>(tensors, shared, at) : 0,
                          bias_of_factor = S::BIAS && S::GATED ? bias_of_two<S>(tensors, shared, S::N + at) : 0;
#pragma unroll
                for (int down = 0; down < 2; ++down) {  // eight rows
                    const int row = top() + lane / 4 + down * 8, result = S::RESIDUAL ? result_row<S>(row) : 0;
                    const float* two = sums + eight / 2 + down * 2;
                    Two value = {two[0], two[1]}, factor = {1.0f, 1.0f};
                    if constexpr (S::GATED) factor = {two[S::SEGMENT / 2], two[S::SEGMENT / 2 + 1]};
                    if constexpr (S::BIAS) value.add(bias);
                    if constexpr (S::BIAS && S::GATED) factor.add(bias_of_factor);
                    squares[(eight - sixteen) / 4 + down] =
                        activated<S>(tensors, value, factor, first + result, across, row < rows && result >= 0);
                }
            }
            store_matrices_shared(own ^ (sixteen - FIRST) * 2, squares);
        }
    }

    // Stores columns of the buffer, four rows at a time; each lane has a chunk.
    template <class S, int COLUMNS>
    __device__ __forceinline__ void store(const int (&results)[4], long long first, int column) const {
        const int lane = thread % 32, chunk = lane % 8, row = lane / 8;
        const bool mine = chunk * 8 < COLUMNS && within<S>(column + chunk * 8);
        unsigned short* const out =
            static_cast<unsigned short*>(arguments.stage[S::INDEX].out) + first * S::OUT_ROW + column + chunk * 8;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float4 eight = load_shared_f32x4(buffer() + (4 * i + row) * 128 + ((chunk ^ (4 * i + row) % 8) << 4));
            if (mine && results[i] >= 0)
                store_global_f32x4(out + static_cast<long long>(results[i]) * S::OUT_ROW, eight);
        }
    }

    __device__ void drain() const {}
};

template <bool>
struct EndsOf {
    using Type = Sums;
};

template <>
struct EndsOf<true> {
    using Type = Alone;
};

using Ends = EndsOf<ALONE != 0>::Type;
