// Words that blocks pass to each other without a flag: a word is absent, all bits set, until its value is stored.
#pragma once

#include "ptx.cuh"

// Two halves that no conversion produces (a NaN is 0x7FFF), and a float that no operation produces.
constexpr u32 ABSENT = 0xFFFFFFFFu;

__device__ __forceinline__ bool absent(u32 v) { return v == ABSENT; }
__device__ __forceinline__ bool absent(const uint2& v) { return v.x == ABSENT || v.y == ABSENT; }
__device__ __forceinline__ bool absent(const uint4& v) {
    return v.x == ABSENT || v.y == ABSENT || v.z == ABSENT || v.w == ABSENT;
}
