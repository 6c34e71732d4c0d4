// The instructions that the patches consist of, and the ids of a thread.
#pragma once

#include "records/facts.h"

namespace tileprof {

namespace {

__device__ __forceinline__ uint32_t lane_id() {
    uint32_t value;
    asm("mov.u32 %0, %%laneid;" : "=r"(value));
    return value;
}

__device__ __forceinline__ uint32_t sm_id() {
    uint32_t value;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(value));
    return value;
}

__device__ __forceinline__ uint64_t globaltimer() {
    uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

// L1 is not coherent: entries that other SMs append must be read from L2.
__device__ __forceinline__ uint4 load_relaxed_gpu_v4(const void* from) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint32_t load_relaxed_gpu(const uint32_t* from) {
    uint32_t value;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// A load through L1, which may return an older value: for data that is true whenever it was read.
__device__ __forceinline__ uint4 load_weak_v4(const void* from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint32_t load_weak(const uint32_t* from) {
    uint32_t value;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// The 16 bytes of a fact at once: the stores of two threads are never mixed.
__device__ __forceinline__ Fact load_fact(const Fact* from) {
    uint64_t low, high;
    asm volatile("{ .reg .b128 v; ld.relaxed.cta.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
                 : "=l"(low), "=l"(high)
                 : "l"(from)
                 : "memory");
    return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
            static_cast<uint32_t>(high >> 32)};
}

__device__ __forceinline__ void store_fact(Fact* to, const Fact& fact) {
    uint64_t low = fact.entry | static_cast<uint64_t>(fact.block) << 32;
    uint64_t high = fact.launch | static_cast<uint64_t>(fact.above) << 32;
    asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.cta.global.b128 [%0], v; }" ::"l"(to), "l"(low),
                 "l"(high)
                 : "memory");
}

__device__ __forceinline__ void store_v4(void* to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void store_relaxed_gpu(uint32_t* to, uint32_t value) {
    asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ void red_or(uint32_t* to, uint32_t bits) {
    asm volatile("red.global.or.b32 [%0], %1;" ::"l"(to), "r"(bits) : "memory");
}

__device__ __forceinline__ void red_max(uint32_t* to, uint64_t value) {
    asm volatile("red.global.max.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ __forceinline__ uint32_t linear_block() {
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

__device__ __forceinline__ uint32_t linear_cluster() {
#if __CUDA_ARCH__ >= 900
    uint32_t x, y, z, nx, ny;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(x));
    asm("mov.u32 %0, %%clusterid.y;" : "=r"(y));
    asm("mov.u32 %0, %%clusterid.z;" : "=r"(z));
    asm("mov.u32 %0, %%nclusterid.x;" : "=r"(nx));
    asm("mov.u32 %0, %%nclusterid.y;" : "=r"(ny));
    return x + nx * (y + ny * z);
#else
    return linear_block();
#endif
}

__device__ __forceinline__ bool elected() { return lane_id() == __ffs(__activemask()) - 1u; }

}  // namespace

}  // namespace tileprof
