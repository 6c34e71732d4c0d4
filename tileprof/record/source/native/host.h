// CUDA on one CPU thread, as far as kernels of global loads and stores need it: a grid runs block after block, and
// the threads of a block are fibers that yield at barriers and warp collectives. It is slow and deterministic, for
// tests and for machines without a GPU. Included by tileprof.cuh if TILEPROF_HOST is defined.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "log.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __restrict__ __restrict
// One block runs at a time, so that all blocks can use the same shared variables.
#define __shared__ static
#define TILEPROF_DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(tileprof::host::dynamic_shared())

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

#define TILEPROF_VECTORS(type, name)                                 \
    struct alignas(2 * sizeof(type)) name##2 { type x, y; };         \
    struct alignas(4 * sizeof(type)) name##4 { type x, y, z, w; };   \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
TILEPROF_VECTORS(float, float)
TILEPROF_VECTORS(int, int)
TILEPROF_VECTORS(unsigned, uint)
#undef TILEPROF_VECTORS

struct alignas(16) double2 {
    double x, y;
};

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace tileprof::host {

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kWarp = 32;

// Memory that the kernel may touch: an access outside of it is an error with a message.
struct Span {
    u64 begin;
    u64 end;
};

struct Grid {
    unsigned grid[3];
    unsigned block[3];
    u64 shared_bytes;
    const Span* spans;
    u64 span_count;
};

enum class Waits { kNothing, kBlock, kWarp };

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    uint3 thread;
    Waits waits;
    u32 lanes;  // lanes of its warp that it waits for
    u64 clock;  // number of accesses so far: threads are assumed to run in step
    bool done;
};

struct Block {
    std::vector<Fiber> fibers;
    std::vector<u64> exchange;  // a warp collective's values, one per thread
    std::vector<char> shared;
    ucontext_t scheduler;
    unsigned running = 0;
    void (*body)(void*) = nullptr;
    void* argument = nullptr;
    std::string failure;
    const Grid* grid = nullptr;
};

inline Block* current = nullptr;

inline Fiber& self() { return current->fibers[current->running]; }
inline void* dynamic_shared() { return current->shared.data(); }

inline std::string place() {
    char text[160];
    snprintf(text, sizeof text, "block (%u, %u, %u), thread (%u, %u, %u)", blockIdx.x, blockIdx.y, blockIdx.z,
             threadIdx.x, threadIdx.y, threadIdx.z);
    return text;
}

inline void give_way(Waits waits, u32 lanes) {
    Fiber& fiber = self();
    fiber.waits = waits;
    fiber.lanes = lanes;
    swapcontext(&fiber.context, &current->scheduler);
    threadIdx = fiber.thread;
}

inline void run_fiber() {
    try {
        current->body(current->argument);
    } catch (const std::exception& error) {
        current->failure = error.what();
    }
    self().done = true;
    swapcontext(&self().context, &current->scheduler);
}

inline bool lane_of_warp_waits(const Block& block, unsigned warp, u32 lanes) {
    for (unsigned lane = 0; lane < kWarp; ++lane) {
        unsigned thread = warp * kWarp + lane;
        if ((lanes >> lane & 1) == 0 || thread >= block.fibers.size() || block.fibers[thread].done) continue;
        if (block.fibers[thread].waits != Waits::kWarp) return false;
    }
    return true;
}

// Releases the fibers whose barrier is complete; returns false if there are none.
inline bool release(Block& block) {
    bool released = false, all_at_barrier = true;
    std::vector<unsigned> go;
    for (unsigned i = 0; i < block.fibers.size(); ++i) {
        Fiber& fiber = block.fibers[i];
        if (fiber.done) continue;
        all_at_barrier &= fiber.waits == Waits::kBlock;
        if (fiber.waits == Waits::kWarp && lane_of_warp_waits(block, i / kWarp, fiber.lanes)) go.push_back(i);
    }
    for (unsigned i : go) block.fibers[i].waits = Waits::kNothing;
    released = !go.empty();
    if (!released && all_at_barrier) {
        u64 latest = 0;
        for (Fiber& fiber : block.fibers) latest = fiber.clock > latest ? fiber.clock : latest;
        for (Fiber& fiber : block.fibers) {
            if (fiber.done) continue;
            fiber.waits = Waits::kNothing;
            fiber.clock = latest;
            released = true;
        }
    }
    return released;
}

inline void run_block(Block& block) {
    for (unsigned i = 0; i < block.fibers.size(); ++i) {
        Fiber& fiber = block.fibers[i];
        fiber.thread = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
        fiber.waits = Waits::kNothing;
        fiber.clock = 0;
        fiber.done = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = kStackBytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, run_fiber, 0);
    }
    for (;;) {
        unsigned alive = 0;
        for (unsigned i = 0; i < block.fibers.size() && block.failure.empty(); ++i) {
            Fiber& fiber = block.fibers[i];
            if (!fiber.done && fiber.waits == Waits::kNothing) {
                block.running = i;
                threadIdx = fiber.thread;
                swapcontext(&block.scheduler, &fiber.context);
            }
            alive += !fiber.done;
        }
        if (alive == 0 || !block.failure.empty()) return;
        if (!release(block)) block.failure = "threads of a block wait for each other at different barriers";
    }
}

// Runs body(argument) for every thread of the grid. Returns "" or an error, which ends the grid.
inline std::string run_grid(const Grid& grid, void (*body)(void*), void* argument) {
    Block block;
    block.grid = &grid;
    block.body = body;
    block.argument = argument;
    block.shared.resize(grid.shared_bytes + 16);
    gridDim = {grid.grid[0], grid.grid[1], grid.grid[2]};
    blockDim = {grid.block[0], grid.block[1], grid.block[2]};
    block.fibers.resize(static_cast<size_t>(blockDim.x) * blockDim.y * blockDim.z);
    block.exchange.resize(block.fibers.size());
    for (Fiber& fiber : block.fibers) fiber.stack.reset(new char[kStackBytes]);
    current = &block;
    for (unsigned z = 0; z < gridDim.z; ++z)
        for (unsigned y = 0; y < gridDim.y; ++y)
            for (unsigned x = 0; x < gridDim.x && block.failure.empty(); ++x) {
                blockIdx = {x, y, z};
                run_block(block);
            }
    current = nullptr;
    return block.failure;
}

template <typename... A, size_t... I>
void call(void (*kernel)(A...), void** values, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A>*>(values[I])...);
}

// Runs a kernel; `values` point at its arguments, as for cuLaunchKernel. Copies at most `room` bytes of an error
// message.
template <typename... A>
void launch(const Grid* grid, void (*kernel)(A...), void** values, char* failure, u64 room) {
    struct Call {
        void (*kernel)(A...);
        void** values;
    } all{kernel, values};
    auto body = [](void* p) {
        call(static_cast<Call*>(p)->kernel, static_cast<Call*>(p)->values, std::index_sequence_for<A...>());
    };
    snprintf(failure, room, "%s", run_grid(*grid, body, &all).c_str());
}

// Stores the size of each parameter in bytes; returns their number.
template <typename... A>
u64 sizes(void (*)(A...), u64* bytes) {
    u64 count = 0;
    ((bytes[count++] = sizeof(A)), ...);
    return count;
}

inline u32 lane() { return current->running % kWarp; }

// Every lane of `lanes` passes a value and sees all of them; `values` is indexed by lane.
inline void exchange(u32 lanes, u64 mine, u64 (&values)[kWarp]) {
    unsigned first = current->running - lane();
    current->exchange[current->running] = mine;
    if (lanes != 1u << lane()) give_way(Waits::kWarp, lanes);
    for (unsigned i = 0; i < kWarp; ++i)
        values[i] = first + i < current->exchange.size() ? current->exchange[first + i] : 0;
    if (lanes != 1u << lane()) give_way(Waits::kWarp, lanes);
}

}  // namespace tileprof::host

inline void __syncthreads() { tileprof::host::give_way(tileprof::host::Waits::kBlock, 0); }
inline void __syncwarp(unsigned lanes = ~0u) { tileprof::host::give_way(tileprof::host::Waits::kWarp, lanes); }
inline void __threadfence() {}

template <typename T>
T __shfl_sync(unsigned lanes, T value, int from, int width = 32) {
    static_assert(sizeof(T) <= 8, "at most 8 bytes");
    tileprof::u64 word = 0, values[32];
    memcpy(&word, &value, sizeof value);
    tileprof::host::exchange(lanes, word, values);
    int group = static_cast<int>(tileprof::host::lane()) / width * width;
    memcpy(&value, &values[group + (from & (width - 1))], sizeof value);
    return value;
}

template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, int mask, int width = 32) {
    return __shfl_sync(lanes, value, static_cast<int>(tileprof::host::lane()) ^ mask, width);
}

template <typename T>
T __shfl_down_sync(unsigned lanes, T value, unsigned by, int width = 32) {
    int lane = static_cast<int>(tileprof::host::lane()), from = lane + static_cast<int>(by);
    return __shfl_sync(lanes, value, lane / width == from / width ? from : lane, width);
}

inline unsigned __ballot_sync(unsigned lanes, int predicate) {
    tileprof::u64 values[32];
    tileprof::host::exchange(lanes, predicate != 0, values);
    unsigned found = 0;
    for (unsigned i = 0; i < 32; ++i) found |= static_cast<unsigned>((lanes >> i & 1) & values[i]) << i;
    return found;
}

// Lanes that are alone in their mask, as __activemask returns it, match only themselves.
inline unsigned __match_any_sync(unsigned lanes, unsigned value) {
    tileprof::u64 values[32];
    tileprof::host::exchange(lanes, value, values);
    unsigned found = 0;
    for (unsigned i = 0; i < 32; ++i) found |= ((lanes >> i & 1) != 0 && values[i] == value ? 1u : 0u) << i;
    return found;
}

inline int __all_sync(unsigned lanes, int predicate) { return __ballot_sync(lanes, predicate) == lanes; }
inline int __any_sync(unsigned lanes, int predicate) { return __ballot_sync(lanes, predicate) != 0; }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value)); }
inline int __popc(unsigned value) { return __builtin_popcount(value); }
// Which lanes run in step depends on the hardware: here each lane runs and records alone.
inline unsigned __activemask() { return 1u << tileprof::host::lane(); }

template <typename T>
T __ldg(const T* from) {
    return *from;
}

// One thread runs at a time: a plain update is atomic.
#define TILEPROF_HOST_ATOMIC(name, expression)         \
    template <typename T, typename V>                  \
    T name(T* at, V value) {                           \
        T before = *at, given = static_cast<T>(value); \
        *at = expression;                              \
        return before;                                 \
    }
TILEPROF_HOST_ATOMIC(atomicAdd, before + given)
TILEPROF_HOST_ATOMIC(atomicMin, given < before ? given : before)
TILEPROF_HOST_ATOMIC(atomicMax, given > before ? given : before)
TILEPROF_HOST_ATOMIC(atomicAnd, before& given)
TILEPROF_HOST_ATOMIC(atomicOr, before | given)
TILEPROF_HOST_ATOMIC(atomicXor, before ^ given)
TILEPROF_HOST_ATOMIC(atomicExch, given)
#undef TILEPROF_HOST_ATOMIC

template <typename T>
T atomicCAS(T* at, T expected, T value) {
    T before = *at;
    if (before == expected) *at = value;
    return before;
}

namespace tileprof {

inline u32 lane_id() { return host::lane(); }
inline u32 sm_id() { return 0; }
inline u64 globaltimer_ns() { return 0; }
inline u64 clock_cycles() { return ++host::self().clock; }

// An access outside of the launch's arrays ends the grid: a GPU might fault, or, worse, might not.
inline bool is_global(const void* pointer, u64 bytes) {
    const host::Grid& grid = *host::current->grid;
    const u64 begin = reinterpret_cast<u64>(pointer);
    for (u64 i = 0; i < grid.span_count; ++i)
        if (begin >= grid.spans[i].begin && begin + bytes <= grid.spans[i].end) return true;
    char text[320];
    snprintf(text, sizeof text, "%s touches %llu bytes at 0x%llx, which lie in none of the arrays given",
             host::place().c_str(), bytes, begin);
    throw std::runtime_error(text);
}

}  // namespace tileprof
