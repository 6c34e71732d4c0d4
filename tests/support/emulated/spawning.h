// The parts of CUDA that spawn.cuh and its programs use, on one CPU thread: parents run block by block in a random
// order, and children at random moments after their launch.
#pragma once

#define SPAWN_CHILD(kernel, blocks, threads, ...) emulated::launch_later(blocks, threads, [=] { kernel(__VA_ARGS__); })
#define SPAWN_PARENT(kernel, blocks, threads, ...) emulated::run_grid(blocks, threads, [&] { kernel(__VA_ARGS__); })
#define __device__
#define __global__ static

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <utility>
#include <vector>

// Whole lines, so that a test can end the program after the first wrong one.
static const int line_by_line = setvbuf(stdout, nullptr, _IOLBF, 1 << 16);

enum cudaError_t { cudaSuccess, cudaErrorLaunchPendingCountExceeded };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum cudaLimit { cudaLimitDevRuntimePendingLaunchCount, cudaLimitStackSize };

struct Index {
    unsigned x;
};
inline Index threadIdx, blockIdx, blockDim;

namespace emulated {

struct Grid {
    int blocks, threads;
    std::function<void()> thread;
};

inline std::mt19937_64 dice(std::getenv("SPAWN_SEED") ? std::atoi(std::getenv("SPAWN_SEED")) : 0);
inline const char* const fault = std::getenv("SPAWN_FAULT") ? std::getenv("SPAWN_FAULT") : "";
inline int refuse_one_in = std::getenv("SPAWN_REFUSE") ? std::atoi(std::getenv("SPAWN_REFUSE")) : 0;
inline std::vector<Grid> pending;
inline unsigned long long now;
inline cudaError_t last;
inline bool host_waited = false;  // since this was last cleared, for what a kernel has written

// Returns whether a fault that a test has planted in the sources is active in this run.
inline bool planted(const char* name) { return std::strcmp(fault, name) == 0; }

inline bool one_in(int odds) { return odds > 0 && dice() % odds == 0; }

inline void run_block(const Grid& grid, int block) {
    for (int thread = grid.threads - 1; thread >= 0; --thread) {  // a block's first thread ends last
        threadIdx = {unsigned(thread)}, blockIdx = {unsigned(block)}, blockDim = {unsigned(grid.threads)};
        grid.thread();
        now += 40;
    }
}

inline void run_a_child() {
    const std::size_t at = dice() % pending.size();
    const Grid grid = std::move(pending[at]);
    pending[at] = std::move(pending.back());
    pending.pop_back();
    for (int block = grid.blocks - 1; block >= 0; --block) run_block(grid, block);
}

template <class Thread>
void run_grid(int blocks, int threads, Thread&& thread) {
    std::vector<int> order(blocks);
    for (int i = 0; i < blocks; ++i) std::swap(order[i] = i, order[dice() % (i + 1)]);
    for (const int block : order) {
        run_block({blocks, threads, thread}, block);
        while (!pending.empty() && one_in(2)) run_a_child();
    }
    while (!pending.empty()) run_a_child();
}

template <class Thread>
void launch_later(int blocks, int threads, Thread&& thread) {
    if (one_in(refuse_one_in)) {
        last = cudaErrorLaunchPendingCountExceeded;
        return;
    }
    pending.push_back({blocks, threads, thread});
}

}  // namespace emulated

inline cudaError_t cudaGetLastError() { return std::exchange(emulated::last, cudaSuccess); }
inline const char* cudaGetErrorString(cudaError_t) { return "an error"; }
inline cudaError_t cudaMalloc(void** to, std::size_t bytes) { return *to = std::malloc(bytes), cudaSuccess; }
inline cudaError_t cudaFree(void* at) { return std::free(at), cudaSuccess; }
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDeviceToHost) emulated::host_waited = true;
    return std::memcpy(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaMemset(void* at, int byte, std::size_t bytes) {
    return std::memset(at, byte, bytes), cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaDeviceSetLimit(cudaLimit, std::size_t) { return cudaSuccess; }

template <class T, class U>
T atomicAdd(T* at, U value) {
    return std::exchange(*at, T(*at + value));
}
template <class T, class U>
T atomicSub(T* at, U value) {
    return std::exchange(*at, T(*at - value));
}
template <class T, class U>
T atomicExch(T* at, U value) {
    return std::exchange(*at, T(value));
}
template <class T, class U>
T atomicOr(T* at, U value) {
    return std::exchange(*at, T(*at | value));
}
template <class T>
T atomicMin(T* at, T value) {
    return std::exchange(*at, value < *at ? value : *at);
}
template <class T>
T atomicMax(T* at, T value) {
    return std::exchange(*at, *at < value ? value : *at);
}
template <class T>
T atomicCAS(T* at, T expected, T value) {
    return std::exchange(*at, *at == expected ? value : *at);
}
inline void __syncwarp() {}

namespace spawn {
inline unsigned long long time_ns() { return ++emulated::now; }
template <class T>
T seen(const T& word) {
    return word;
}
inline int turn_in_warp() { return int(threadIdx.x % 32); }
struct Place;
inline unsigned threads_together() { return 1; }
template <class Launch>
bool launched_by(Launch&& launch) {
    return launch();
}
template <class Place = Place>
Place place_in_warp(unsigned, int) {  // a warp of one thread
    return {0, 0, true};
}
inline unsigned least_in_warp(unsigned, unsigned word) { return word; }
}  // namespace spawn
