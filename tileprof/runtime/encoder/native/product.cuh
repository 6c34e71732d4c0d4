// A tile of a product: 32 rows, all of the task's k, 8 * EIGHTS columns (stages.h says how many, for all products of a
// program: code that is small stays in the instruction cache).
//
// Activations are loaded and kept in shared memory; weights come through the ring. Of the eight warps, four groups take
// every fourth block of k, and in each group a warp half of the columns. Their sums meet where the activations were,
// and all threads finish the tile.
#pragma once

#include "halves.cuh"

constexpr int VECTORS = (ACTIVATION_COLUMNS + 255) / 256;  // units of eight halves of a row that a lane holds
constexpr int ROWS_AT_ONCE = VECTORS <= 4 ? 4 : 2;

// The rows that the warp loads: four, of `columns` columns from `from` on, with zeros behind the last row and, up to
// a whole block of k, behind the last column.
__device__ __forceinline__ void load_rows(const Arguments& arguments, u32 shared, u32 record, int from, int columns,
                                          bool& gave_up) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int rows = STAGE_S32(record, rows), pitch = STAGE_S32(record, activation_pitch),
              row = TASK_S32(record, row) + warp * 4;
    const Place activations = STAGE_PLACE(record, activations);
    const int columns_stored = (columns + K_CHUNK - 1) / K_CHUNK * K_CHUNK;
#pragma unroll
    for (int batch = 0; batch < 4; batch += ROWS_AT_ONCE) {
        uint4 loaded[ROWS_AT_ONCE * VECTORS];
        const u64 begin = activations.address + 2 * (static_cast<u64>(row + batch) * pitch + from + 8 * lane);
        const auto where = [&](int i) {
            return begin + static_cast<u32>(2 * pitch * (i / VECTORS)) + 512 * (i % VECTORS);
        };
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE * VECTORS; ++i) {
            loaded[i].x = loaded[i].y = loaded[i].z = loaded[i].w = 0;
            if (row + batch + i / VECTORS < rows && 8 * (32 * (i % VECTORS) + lane) < columns)
                loaded[i] = load_matrix<uint4>(where(i));
        }
        if (activations.between) complete(arguments, record, loaded, gave_up, where);
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE * VECTORS; ++i) {
            const int column = 8 * (32 * (i % VECTORS) + lane);
            if (column < columns_stored)
                store_shared_u32x4(shared + AREA_AT + (warp * 4 + batch + i / VECTORS) * AREA_PITCH + 2 * column,
                                   loaded[i]);
        }
    }
}

// sums += the warp's half of a block of k. `slot`: weights, K-major with 128-byte swizzle, or in blocks of 32 columns,
// each rows of k with 64-byte swizzle.
__device__ __forceinline__ void multiply_chunk(float (&sums)[2][EIGHTS / 2][4], u32 activations, u32 slot) {
    constexpr int HALF = EIGHTS / 2;
    static_assert(K_MAJOR || HALF % 2 == 0);
    const int lane = threadIdx.x % 32, square = lane / 8, line = lane % 8, side = threadIdx.x / 32 / K_GROUPS;
    const u32 a_address = activations + (lane % 16) * AREA_PITCH + (lane / 16) * 16;
    u32 b_address[K_MAJOR ? 1 : HALF / 2];
    if constexpr (K_MAJOR) {
        b_address[0] = slot + (side * HALF * 8 + (square >> 1) * 8 + line) * 128;
    } else {
#pragma unroll
        for (int pair = 0; pair < HALF / 2; ++pair) {
            const int eight = side * HALF + 2 * pair + (square >> 1);
            b_address[pair] =
                slot + eight / 4 * (K_CHUNK * 64) + ((square & 1) * 8 + line) * 64 + ((eight % 4 ^ line >> 1) << 4);
        }
    }
#pragma unroll 2
    for (int step = 0; step < K_CHUNK / 16; ++step) {
        u32 a[2][4];
        load_matrices_shared(a_address + step * 32, a[0]);
        load_matrices_shared(a_address + 16 * AREA_PITCH + step * 32, a[1]);
#pragma unroll
        for (int pair = 0; pair < (HALF + 1) / 2; ++pair) {
            u32 b[4];
            if constexpr (K_MAJOR) {
                load_matrices_shared(b_address[0] + pair * 2048 + (((step * 2 + (square & 1)) ^ line) << 4), b);
            } else {
                load_matrices_transposed_shared(b_address[pair] + step * (16 * 64), b);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                multiply_m16n8k16(sums[i][2 * pair], a[i], b[0], b[1]);
                if (2 * pair + 1 < HALF)
                    multiply_m16n8k16(sums[i][2 * pair + 1 < HALF ? 2 * pair + 1 : 0], a[i], b[2], b[3]);
            }
        }
    }
}

// `chunk`: number of blocks of k that have come through the ring before.
__device__ __forceinline__ void product(const Arguments& arguments, u32 shared, u32 record, int number, u32 chunk,
                                        bool& gave_up) {
    constexpr int COLUMNS = 8 * EIGHTS, HALF = EIGHTS / 2, FOURS = COLUMNS / 4,
                  GROUPS = (ROWS * FOURS + CONSUMERS - 1) / CONSUMERS;
    constexpr int PITCH = COLUMNS + 8;  // floats of a row of sums
    static_assert(EIGHTS % 2 == 0 && K_GROUPS * ROWS * PITCH * 4 <= AREA_BYTES && K_CHUNK * COLUMNS * 2 <= SLOT_BYTES);
    const int lane = threadIdx.x % 32, group = threadIdx.x / 32 % K_GROUPS, side = threadIdx.x / 32 / K_GROUPS;
    const int depth = STAGE_S32(record, depth), begin = TASK_S32(record, part);
    const int rows = STAGE_S32(record, rows), columns = STAGE_S32(record, columns), row = TASK_S32(record, row),
              column = TASK_S32(record, column);

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
            multiply_chunk(sums, shared + AREA_AT + c * (2 * K_CHUNK), shared + slot * SLOT_BYTES);
            __syncwarp();
            if (lane == 0) mbarrier_arrive_release_cta(shared + WEIGHTS_FREE + 8 * slot);
        }
        chunk += chunks;
    }
    stamp(arguments, number, 2);
    meet_consumers();  // no warp reads activations any more
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int eight = 0; eight < HALF; ++eight) {
            const u32 to = shared + AREA_AT +
                           4 * ((group * ROWS + i * 16 + lane / 4) * PITCH + (side * HALF + eight) * 8 + lane % 4 * 2);
            store_shared_f32x2(to, sums[i][eight][0], sums[i][eight][1]);
            store_shared_f32x2(to + 4 * 8 * PITCH, sums[i][eight][2], sums[i][eight][3]);
        }
    meet_consumers();
    const u64 out = STAGE_POINTER(record, out), wiped = STAGE_POINTER(record, out_wiped),
              partials = STAGE_POINTER(record, partials);
    const bool bias = STAGE_POINTER(record, bias) != 0;
    const int out_pitch = STAGE_S32(record, out_pitch), epilogue = STAGE_S32(record, epilogue);
#pragma unroll 1
    for (int j = 0; j < GROUPS; ++j) {
        const int place = threadIdx.x + CONSUMERS * j, tile_row = place / FOURS, four = place % FOURS * 4,
                  r = row + tile_row, c = column + four;
        if (place >= ROWS * FOURS || r >= rows || c >= columns) continue;
        float4 v = load_shared_f32x4(shared + AREA_AT + 4 * (tile_row * PITCH + four));
#pragma unroll
        for (int k = 1; k < K_GROUPS; ++k)
            v = sum(v, load_shared_f32x4(shared + AREA_AT + 4 * ((k * ROWS + tile_row) * PITCH + four)));
        if (partials != 0) {  // the readers make them absent
            store_words(partials + 4 * ((static_cast<u64>(begin / depth) * rows + r) * columns + c), words(v));
            continue;
        }
        if (bias) v = sum(v, unpacked(load_shared_u32x2(record + RECORD_BIAS + 2 * four)));
        if (epilogue) v = activated<EPILOGUE>(v);
        store_matrix(out, wiped, 2 * (static_cast<u64>(r) * out_pitch + c), packed(v));
    }
}
