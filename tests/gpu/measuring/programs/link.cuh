// Shared by the programs that measure the link between GPU and CPU: words in the memory of both, and durations of
// rounds.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

using u64 = unsigned long long;

#define CHECK(call)                                                                                   \
    do {                                                                                              \
        const cudaError_t error = call;                                                               \
        if (error != cudaSuccess) std::printf("%s: %s\n", #call, cudaGetErrorString(error)), exit(1); \
    } while (false)

constexpr u64 LIMIT_NS = 20'000'000;  // for one answer

__device__ u64 now_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}
__device__ u64 load(const u64* from) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
__device__ void store(u64* to, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

// Returns the sorted cycles of the answered rounds, without the first `warm` of each block; `times` is in the GPU's
// memory.
inline std::vector<u64> sorted_rounds(const u64* times, int blocks, int rounds, int warm) {
    std::vector<u64> all(size_t(blocks) * rounds), answered;
    CHECK(cudaMemcpy(all.data(), times, all.size() * 8, cudaMemcpyDeviceToHost));
    for (int block = 0; block < blocks; ++block)
        for (int round = warm; round < rounds; ++round)
            if (const u64 cycles = all[size_t(block) * rounds + round]) answered.push_back(cycles);
    std::sort(answered.begin(), answered.end());
    return answered;
}
