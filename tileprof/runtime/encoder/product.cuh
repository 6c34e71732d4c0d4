// A tile of a product: 32 rows, all of the task's k, 8 * EIGHTS columns (of two widths for a program: code that is small stays in the instruction cache).
//
// Activations are loaded and kept in shared memory; weights come through the ring. Of the eight warps, four groups take every fourth block of k, and in each
// group a warp half of the columns. Their sums meet where the activations were, and each group finishes eight rows.
#pragma once

#include "halves.cuh"

constexpr int VECTORS = (ACTIVATION_COLUMNS + 255) / 256;  // of eight halves, of a row, that a lane holds
constexpr int ROWS_AT_ONCE = VECTORS <= 4 ? 4 : 2;

// Rows that the warp loads: four, of `columns` columns from `from` on, zeros behind the last row and, up to a whole block of k, the last column.
__device__ __forceinline__ void load_rows(const Arguments& arguments, u32 shared, u32 record, int from, int columns, bool& gave_up) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int rows = STAGE_S32(record, rows), pitch = STAGE_S32(record, activation_pitch), row = TASK_S32(record, row) + warp * 4;
    const Place activations = STAGE_PLACE(record, activations);
    const int columns_stored = (columns + K_CHUNK - 1) / K_CHUNK * K_CHUNK;
#pragma unroll
    for (int batch = 0; batch < 4; batch += ROWS_AT_ONCE) {
        uint4 loaded[ROWS_AT_ONCE * VECTORS];
        const u64 begin = activations.address + 2 * (static_cast<u64>(row + batch) * pitch + from + 8 * lane);
        const auto where = [&](int i) { return begin + static_cast<u32>(2 * pitch * (i / VECTORS)) + 512 * (i % VECTORS); };
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE * VECTORS; ++i) {
            loaded[i].x = loaded[i].y = loaded[i].z = loaded[i].w = 0;
            if (row + batch + i / VECTORS < rows && 8 * (32 * (i % VECTORS) + lane) < columns) loaded[i] = load_matrix<uint4>(where(i));
        }
        if (activations.other != 0) complete(arguments, record, loaded, gave_up, where);
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE * VECTORS; ++i) {
            const int column = 8 * (32 * (i % VECTORS) + lane);
            if (column < columns_stored) store_shared_u32x4(shared + AREA_AT + (warp * 4 + batch + i / VECTORS) * AREA_PITCH + 2 * column, loaded[i]);
        }
    }
}

// Where a warp's lanes find their lines of a slot of weights: K-major with 128-byte swizzle, or in blocks of 32 columns, each rows of k with 64-byte swizzle.
template <int HALF>
struct Lines {
    static constexpr int PAIRS = (HALF + 1) / 2;
    u32 at[K_MAJOR ? 1 : PAIRS], turn = 0;

    __device__ __forceinline__ Lines(int side, int lane) {
        const int square = lane / 8, line = lane % 8;
        if constexpr (K_MAJOR) {
            at[0] = (side * HALF * 8 + (square >> 1) * 8 + line) * 128;
            turn = ((square & 1) ^ line) << 4;
        } else {
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair) {
                const int eight = side * HALF + 2 * pair + (square >> 1);
                at[pair] = eight / 4 * (K_CHUNK * 64) + ((square & 1) * 8 + line) * 64 + ((eight % 4 ^ line >> 1) << 4);
            }
        }
    }

    __device__ __forceinline__ void load(u32 (&b)[PAIRS][4], u32 slot, int step) const {
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            if constexpr (K_MAJOR)
                load_matrices_shared(slot + at[0] + pair * 2048 + (turn ^ step * 32), b[pair]);
            else
                load_matrices_transposed_shared(slot + at[pair] + step * (16 * 64), b[pair]);
        }
    }
};

// sums += the warp's half of a block of k; what a step multiplies is loaded while the step before is multiplied.
template <int HALF>
__device__ __forceinline__ void multiply_chunk(float (&sums)[2][HALF][4], u32 activations, u32 slot, const Lines<HALF>& lines) {
    constexpr int STEPS = K_CHUNK / 16, PAIRS = Lines<HALF>::PAIRS;
    u32 a[2][2][4], b[2][PAIRS][4];
    load_matrices_shared(activations, a[0][0]);
    load_matrices_shared(activations + 16 * AREA_PITCH, a[0][1]);
    lines.load(b[0], slot, 0);
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int now = step % 2;
        if (step + 1 < STEPS) {
            load_matrices_shared(activations + (step + 1) * 32, a[1 - now][0]);
            load_matrices_shared(activations + 16 * AREA_PITCH + (step + 1) * 32, a[1 - now][1]);
            lines.load(b[1 - now], slot, step + 1);
        }
#pragma unroll
        for (int eight = 0; eight < HALF; ++eight)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                multiply_m16n8k16(sums[i][eight], a[now][i], b[now][eight / 2][eight % 2 * 2], b[now][eight / 2][eight % 2 * 2 + 1]);
    }
}

// Sums of the groups of k meet: group g is left with rows 8 g to 8 g + 7, a lane with two columns of each eight.
template <int HALF>
__device__ __forceinline__ void meet_groups(float (&mine)[HALF][2], const float (&sums)[2][HALF][4], u32 area, int group, int side) {
    constexpr u32 LINE = 8 * 32, OTHERS = K_GROUPS - 1;
    const u32 from = area + 8 * (threadIdx.x % 32);
#pragma unroll
    for (int to = 0; to < K_GROUPS; ++to) {
        const u32 at = from + ((2 * to + side) * OTHERS + ((group - to - 1) & 3)) * (HALF * LINE);
#pragma unroll
        for (int eight = 0; eight < HALF; ++eight) {
            const float low = sums[to / 2][eight][to % 2 * 2], high = sums[to / 2][eight][to % 2 * 2 + 1];
            if (to == group)
                mine[eight][0] = low, mine[eight][1] = high;
            else
                store_shared_f32x2(at + eight * LINE, low, high);
        }
    }
    meet_consumers();
#pragma unroll
    for (int other = 0; other < static_cast<int>(OTHERS); ++other)
#pragma unroll
        for (int eight = 0; eight < HALF; ++eight) {
            const float2 v = load_shared_f32x2(from + (((2 * group + side) * OTHERS + other) * HALF + eight) * LINE);
            mine[eight][0] += v.x, mine[eight][1] += v.y;
        }
}

// `chunk`: blocks of k that have come through the ring before.
template <int EIGHTS>
__device__ __forceinline__ void product(const Arguments& arguments, u32 shared, u32 record, int number, u32 chunk, bool& gave_up) {
    constexpr int HALF = EIGHTS / 2;
    static_assert(EIGHTS % 2 == 0 && (K_MAJOR || HALF % 2 == 0) && K_CHUNK * EIGHTS * 16 <= SLOT_BYTES);
    static_assert(K_GROUPS * (K_GROUPS - 1) * EIGHTS * 256 <= AREA_BYTES);
    const int lane = threadIdx.x % 32, group = threadIdx.x / 32 % K_GROUPS, side = threadIdx.x / 32 / K_GROUPS;
    const int depth = STAGE_S32(record, depth), begin = TASK_S32(record, part);
    const Lines<HALF> lines(side, lane);
    const u32 activations = shared + AREA_AT + (lane % 16) * AREA_PITCH + (lane / 16) * 16;

    delay(arguments, number, 0);
    float sums[2][HALF][4] = {};
#pragma unroll 1
    for (int from = 0; from < depth; from += ACTIVATION_COLUMNS) {
        const int left = depth - from < ACTIVATION_COLUMNS ? depth - from : ACTIVATION_COLUMNS;
        if (from > 0) meet_consumers();
        load_rows(arguments, shared, record, begin + from, left, gave_up);
        meet_consumers();
        if (from == 0) stamp(arguments, number, 1);
        const int chunks = (left + K_CHUNK - 1) / K_CHUNK;
#pragma unroll 1
        for (int c = group; c < chunks; c += K_GROUPS) {
            const u32 place = chunk + c, slot = place % SLOTS;
            wait_cta(shared + WEIGHTS_FULL + 8 * slot, place / SLOTS & 1);
            multiply_chunk(sums, activations + c * (2 * K_CHUNK), shared + slot * SLOT_BYTES, lines);
            __syncwarp();
            if (lane == 0) mbarrier_arrive_release_cta(shared + WEIGHTS_FREE + 8 * slot);
        }
        chunk += chunks;
    }
    const int rows = STAGE_S32(record, rows), columns = STAGE_S32(record, columns), column = TASK_S32(record, column);
    const int row = TASK_S32(record, row) + 8 * group;
    const Place out = STAGE_PLACE(record, out), partials = STAGE_PLACE(record, partials);
    const bool bias = STAGE_POINTER(record, bias) != 0;
    const int out_pitch = STAGE_S32(record, out_pitch), epilogue = STAGE_S32(record, epilogue);
    stamp(arguments, number, 2);
    meet_consumers();  // nobody reads activations any more
    float mine[HALF][2];
    meet_groups(mine, sums, shared + AREA_AT, group, side);
    // A warp's eight rows go through memory that it alone has read, so that its stores are of neighbours: each line that one touches costs time.
    const u32 stage = shared + AREA_AT + (2 * group + side) * (K_GROUPS - 1) * HALF * 256;
    __syncwarp();
    if (partials.address != 0) {
        constexpr u32 PITCH = 32 * HALF + 32;
#pragma unroll
        for (int eight = 0; eight < HALF; ++eight) store_shared_f32x2(stage + lane / 4 * PITCH + eight * 32 + lane % 4 * 8, mine[eight][0], mine[eight][1]);
        __syncwarp();
        const u64 first = static_cast<u64>(begin / depth) * rows + row;
#pragma unroll
        for (int piece = lane; piece < 16 * HALF; piece += 32) {
            const int down = piece / (2 * HALF), four = piece % (2 * HALF) * 4, c = column + side * HALF * 8 + four;
            if (row + down < rows && c < columns) store_matrix(partials, 4 * ((first + down) * columns + c), load_shared_u32x4(stage + down * PITCH + four * 4));
        }
        return;
    }
    constexpr u32 PITCH = 16 * HALF + 16;
#pragma unroll
    for (int eight = 0; eight < HALF; ++eight) {
        const int two = (side * HALF + eight) * 8 + lane % 4 * 2;
        float low = mine[eight][0], high = mine[eight][1];
        if (bias && column + two < columns) {
            float bias_low, bias_high;
            unpack_two(load_shared_u32(record + RECORD_BIAS + 2 * two), bias_low, bias_high);
            low += bias_low, high += bias_high;
        }
        if (epilogue) low = activated<EPILOGUE>(low), high = activated<EPILOGUE>(high);
        store_shared_u32(stage + lane / 4 * PITCH + eight * 16 + lane % 4 * 4, pack(low, high));
    }
    __syncwarp();
#pragma unroll
    for (int pass = 0; pass < 2; ++pass)  // what others wait for goes first
#pragma unroll
        for (int piece = lane; piece < 8 * HALF; piece += 32) {
            const int down = piece / HALF, eight = piece % HALF, c = column + (side * HALF + eight) * 8;
            const u64 at = 2 * (static_cast<u64>(row + down) * out_pitch + c);
            if (row + down >= rows || c >= columns) continue;
            if (pass == 0)
                store_value(out, at, load_shared_u32x4(stage + down * PITCH + eight * 16));
            else
                make_absent(out, at, uint4{});
        }
}
