// Eight channels of a pixel: sixteen bytes of memory, eight numbers in registers.
#pragma once

#include "common.cuh"

struct Eight {
    float values[8];

    __device__ void put(int pair, u32 two) {
        values[2 * pair] = unpack(two & 0xFFFF), values[2 * pair + 1] = unpack(two >> 16);
    }
};

// Eight channels of a pixel.
__device__ __forceinline__ Eight eight_of(const uint4& bits) {
    Eight eight;
    eight.put(0, bits.x), eight.put(1, bits.y), eight.put(2, bits.z), eight.put(3, bits.w);
    return eight;
}

__device__ __forceinline__ void store_eight(unsigned short* to, const Eight& eight) {
    const float (&v)[8] = eight.values;
    store_global_u32x4(to, uint4{pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7])});
}

// Each channel's larger value; NaN stays NaN.
__device__ __forceinline__ void keep_larger(Eight& most, const Eight& here) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float one = most.values[i], other = here.values[i];
        most.values[i] = other <= one || one != one ? one : other;
    }
}
