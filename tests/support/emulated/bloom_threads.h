// The parts of CUDA that bloom.cuh and its program use, with a CPU thread per block: real threads, real atomics, random
// delays.
#pragma once

#define __global__ static
#define BLOOM_SHARED
#define BLOOM_THREADS 1
#define BLOOM_LAUNCH(kernel, blocks, threads, ...) emulated::launch(blocks, [&] { kernel(__VA_ARGS__); })
#define BLOOM_BLOCK emulated::block
#define BLOOM_GRID emulated::grid

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

enum cudaError_t { cudaSuccess };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };

namespace emulated {

inline const int fault = std::getenv("BLOOM_FAULT") ? std::atoi(std::getenv("BLOOM_FAULT")) : -1;

// Returns whether a fault that a test has planted in the header is active in this run.
inline bool planted(int number) { return fault == number; }

inline thread_local int block, grid;
inline thread_local std::uint64_t dice;

inline void lag() {
    dice = dice * 6364136223846793005ull + 1442695040888963407ull;
    const auto drawn = dice >> 40;
    if (drawn % 16 == 0) std::this_thread::yield();
    if (drawn % 256 == 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn >> 8 & 127));
    if (drawn % 1024 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(3));  // others overtake by a window
}

template <class Block>
void launch(int blocks, Block&& work) {
    std::vector<std::thread> threads;
    for (int b = 0; b < blocks; ++b)
        threads.emplace_back([&, b] {
            block = b, grid = blocks, dice = b + 1 + 977 * std::atoi(std::getenv("BLOOM_SEED"));
            work();
        });
    for (std::thread& thread : threads) thread.join();
}

}  // namespace emulated

inline const char* cudaGetErrorString(cudaError_t) { return "an error"; }
inline cudaError_t cudaMalloc(void** to, std::size_t bytes) { return *to = std::malloc(bytes), cudaSuccess; }
inline cudaError_t cudaFree(void* at) { return std::free(at), cudaSuccess; }
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
    return std::memcpy(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* to, cudaDeviceAttr, int) { return *to = 4, cudaSuccess; }

namespace tileprof::bloom {

inline int load_acquire(const int* at) { return emulated::lag(), __atomic_load_n(at, __ATOMIC_ACQUIRE); }
inline void store_release(int* at, int value) { emulated::lag(), __atomic_store_n(at, value, __ATOMIC_RELEASE); }
inline std::uint32_t load_word(const std::uint32_t* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
inline void or_word(std::uint32_t* at, std::uint32_t bits) {
    emulated::lag(), __atomic_fetch_or(at, bits, __ATOMIC_RELAXED);
}
inline void clear_word(std::uint32_t* at) { emulated::lag(), __atomic_store_n(at, 0u, __ATOMIC_RELAXED); }
inline int take_next(int* at) { return emulated::lag(), __atomic_fetch_add(at, 1, __ATOMIC_RELAXED); }
inline void add_count(std::uint64_t* at, std::uint64_t value) { __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
inline void fence() {}  // x86 keeps the order of loads, and that of stores
inline void meet() {}
inline int lane() { return 0; }
inline int lanes() { return 1; }
inline std::uint64_t time_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
inline void pause() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }  // hundreds of threads wait

}  // namespace tileprof::bloom
