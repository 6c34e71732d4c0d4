// The end of rows: sums of parts of k are added up in order, with bias and residual, and normalised. A thread has
// four columns.
#pragma once

#include "halves.cuh"

// The sum over all consumers. `scratch`: one float of shared memory per warp, which may be reused after two more
// barriers.
__device__ __forceinline__ float sum_over_block(float value, u32 scratch) {
#pragma unroll
    for (u32 mask = 16; mask > 0; mask /= 2) value += exchange_xor(value, mask);
    if (threadIdx.x % 32 == 0) store_shared_f32(scratch + threadIdx.x / 32 * 4, value);
    meet_consumers();
    const float4 low = load_shared_f32x4(scratch), high = load_shared_f32x4(scratch + 16);
    return ((low.x + low.y) + (low.z + low.w)) + ((high.x + high.y) + (high.z + high.w));
}

__device__ __forceinline__ void finish(const Arguments& arguments, u32 shared, u32 record, int number, bool& gave_up) {
    const int rows = STAGE_S32(record, rows), columns = STAGE_S32(record, columns), splits = STAGE_S32(record, splits),
              column = 4 * threadIdx.x;
    const int row = TASK_S32(record, row), end = row + TASK_S32(record, part);
    const u64 partials = STAGE_POINTER(record, partials), out = STAGE_POINTER(record, out),
              out_wiped = STAGE_POINTER(record, out_wiped);
    const u64 normalised = STAGE_POINTER(record, normalised),
              normalised_wiped = STAGE_POINTER(record, normalised_wiped);
    const Place residual = STAGE_PLACE(record, residual);
    const bool bias = STAGE_POINTER(record, bias) != 0;
    const int residual_pitch = STAGE_S32(record, residual_pitch), out_pitch = STAGE_S32(record, out_pitch),
              epilogue = STAGE_S32(record, epilogue);
    const float epsilon = STAGE_F32(record, epsilon), inverse = 1.0f / columns;
    delay(arguments, number, 0);
#pragma unroll 1
    for (int r = row; r < end; ++r) {
        const auto part_at = [&](int split) {
            return partials + 4 * ((static_cast<u64>(split) * rows + r) * columns + column);
        };
        const auto residual_at = [&](int) {
            return residual.address + 2 * (static_cast<u64>(r) * residual_pitch + column);
        };
        const bool mine = column < columns;
        uint2 added[1];
        added[0].x = added[0].y = 0;
        if (mine && residual.address != 0) added[0] = load_matrix<uint2>(residual_at(0));
        uint4 parts[MOST_SPLITS];
#pragma unroll
        for (int split = 0; split < MOST_SPLITS; ++split) {
            parts[split].x = parts[split].y = parts[split].z = parts[split].w = 0;
            if (mine && split < splits) parts[split] = load_matrix<uint4>(part_at(split));
        }
        complete(arguments, record, parts, gave_up, part_at);
        if (residual.between) complete(arguments, record, added, gave_up, residual_at);
        stamp(arguments, number, 1);
        float4 v = floats(parts[0]);
#pragma unroll
        for (int split = 1; split < MOST_SPLITS; ++split) v = sum(v, floats(parts[split]));  // zeros if there are fewer
        if (mine && bias) v = sum(v, unpacked(load_shared_u32x2(record + RECORD_BIAS + 2 * column)));
        if (epilogue) v = activated<EPILOGUE>(v);
        const uint2 halves = packed(sum(v, unpacked(added[0])));
        if (mine && out != 0) store_matrix(out, out_wiped, 2 * (static_cast<u64>(r) * out_pitch + column), halves);
        if (normalised != 0) {
            v = unpacked(halves);
            if (!mine) v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            const float mean = sum_over_block((v.x + v.y) + (v.z + v.w), shared + AREA_AT) * inverse;
            v = make_float4(v.x - mean, v.y - mean, v.z - mean, v.w - mean);
            const float squares = mine ? (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w) : 0.0f;
            const float scale = rsqrtf(fmaf(sum_over_block(squares, shared + AREA_AT + 32), inverse, epsilon));
            if (mine) {
                const float4 gamma = unpacked(load_shared_u32x2(record + RECORD_GAMMA + 2 * column)),
                             beta = unpacked(load_shared_u32x2(record + RECORD_BETA + 2 * column));
                v = make_float4(fmaf(v.x * scale, gamma.x, beta.x), fmaf(v.y * scale, gamma.y, beta.y),
                                fmaf(v.z * scale, gamma.z, beta.z), fmaf(v.w * scale, gamma.w, beta.w));
                store_matrix(normalised, normalised_wiped, 2 * (static_cast<u64>(r) * columns + column), packed(v));
            }
        }
        if (mine)  // last: no task waits for it
#pragma unroll
            for (int split = 0; split < MOST_SPLITS; ++split)
                if (split < splits) store_words(part_at(split), nothing<uint4>());
    }
    stamp(arguments, number, 2);
}
