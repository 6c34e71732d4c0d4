// Words that blocks hand each other without a flag: a word is absent, all bits set, until its value is stored.
#pragma once

#include "ptx.cuh"

// Two halves that no conversion makes (a NaN is 0x7FFF), and a float that no operation makes.
constexpr u32 ABSENT = 0xFFFFFFFFu;

__device__ __forceinline__ bool absent(u32 v) { return v == ABSENT; }
__device__ __forceinline__ bool absent(const uint2& v) { return v.x == ABSENT || v.y == ABSENT; }
__device__ __forceinline__ bool absent(const uint4& v) {
    return v.x == ABSENT || v.y == ABSENT || v.z == ABSENT || v.w == ABSENT;
}
