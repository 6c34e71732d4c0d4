// One function per warp-level PTX instruction that the transformer kernel uses in addition to those of the persistent
// kernel's ptx.cuh.
#pragma once

#include "ptx.cuh"

using s64 = long long;

// Loads of tables and of other memory that no block writes.
__device__ __forceinline__ uint4 load_table_u32x4(const void* address) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
}

// Strong accesses to memory that other blocks of this launch write: each word is either absent or complete.

__device__ __forceinline__ uint4 load_relaxed_gpu_u32x4(const void* address) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint2 load_relaxed_gpu_u32x2(const void* address) {
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(address) : "memory");
    return v;
}

__device__ __forceinline__ void store_relaxed_gpu_u32x4(void* address, const uint4& v) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

__device__ __forceinline__ void store_relaxed_gpu_u32x2(void* address, const uint2& v) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(v.x), "r"(v.y) : "memory");
}

// Loads that are repeated until the data have arrived.

__device__ __forceinline__ uint4 poll_matrix(u64 address, const uint4&) {
    return load_relaxed_gpu_u32x4(reinterpret_cast<const void*>(address));
}
__device__ __forceinline__ uint2 poll_matrix(u64 address, const uint2&) {
    return load_relaxed_gpu_u32x2(reinterpret_cast<const void*>(address));
}

// Two halves of a word.
__device__ __forceinline__ void unpack_two(u32 two, float& low, float& high) {
#if BFLOAT16
    low = __uint_as_float(two << 16);
    high = __uint_as_float(two & 0xFFFF0000u);
#else
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.f32.f16 %0, l;\n\tcvt.f32.f16 %1, h;\n\t}"
        : "=f"(low), "=f"(high)
        : "r"(two));
#endif
}

__device__ __forceinline__ void store_shared_f32x2(u32 address, float low, float high) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(low), "f"(high) : "memory");
}

__device__ __forceinline__ float load_shared_f32(u32 address) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ void store_shared_f32(u32 address, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ __forceinline__ u64 load_shared_u64(u32 address) {
    u64 value;
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ uint2 load_shared_u32x2(u32 address) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
    return v;
}
