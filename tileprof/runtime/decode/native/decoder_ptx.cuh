// PTX instructions that only the decoder uses, named operation_order_scope_type like those of ptx.cuh.
#pragma once

#include "ptx.cuh"

// Loads sixteen bytes that other blocks may be writing: each of the four words is read as a whole. If `when` is
// false, `value` does not change and nothing is read.
__device__ __forceinline__ void load_relaxed_gpu_u32x4(uint4& value, const void* address, bool when) {
    asm volatile(
        "{\n\t.reg .pred when;\n\t"
        "setp.ne.u32 when, %5, 0;\n\t"
        "@when ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
        : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
        : "l"(address), "r"(static_cast<u32>(when))
        : "memory");
}

__device__ __forceinline__ void load_relaxed_gpu_u32x2(uint2& value, const void* address, bool when) {
    asm volatile(
        "{\n\t.reg .pred when;\n\t"
        "setp.ne.u32 when, %3, 0;\n\t"
        "@when ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];\n\t}"
        : "+r"(value.x), "+r"(value.y)
        : "l"(address), "r"(static_cast<u32>(when))
        : "memory");
}

__device__ __forceinline__ void load_relaxed_gpu_u32(u32& value, const void* address, bool when) {
    asm volatile(
        "{\n\t.reg .pred when;\n\t"
        "setp.ne.u32 when, %2, 0;\n\t"
        "@when ld.relaxed.gpu.global.u32 %0, [%1];\n\t}"
        : "+r"(value)
        : "l"(address), "r"(static_cast<u32>(when))
        : "memory");
}

__device__ __forceinline__ void store_relaxed_gpu_u32(u32* address, u32 value) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// sums[16 x 8] += a[16 x 16] b[16 x 8]. Lane l holds rows l / 4 and l / 4 + 8 of a and the sums, column l / 4 of b.
__device__ __forceinline__ void multiply_add_16x8x16(float (&sums)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if BFLOAT16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A barrier at which some threads wait and others only arrive.
__device__ __forceinline__ void barrier_arrive(u32 barrier, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
