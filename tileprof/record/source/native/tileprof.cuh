// Loads, stores, atomics and tile copies that say which bytes of global memory they touch.
//
//     #include <tileprof.cuh>
//
//     extern "C" __global__ void scale(const float* x, float* y, int n) {
//         tileprof::BlockLife life;                    // first line of the kernel: when and where the block ran
//         int i = blockIdx.x * blockDim.x + threadIdx.x;
//         if (i < n) tileprof::store(y + i, 2.0f * tileprof::load(x + i));
//     }
//
// Compiled as it is, this is the kernel without tileprof, instruction for instruction. With -DTILEPROF_RECORD each
// wrapper also appends what it touches to a log that the launcher attaches (tileprof.record.source does, or see
// README.md beside this). With -DTILEPROF_HOST a plain C++17 compiler builds it, and the CPU runs it.
//
// What a kernel touches without a wrapper is not seen. Instructions that no wrapper issues are recorded with `touch`.
// sm_70 and newer; needs no header but those of the compiler.
#pragma once

#ifdef TILEPROF_HOST
#include "host.h"
#define TILEPROF_FUNCTION inline
#else
#define TILEPROF_FUNCTION __device__ __forceinline__
// A block's dynamic shared memory, as `type name[]`; a CPU has no `extern __shared__`.
#define TILEPROF_DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif

#include "log.h"
#ifdef TILEPROF_RECORD
#include "device.h"
#endif

namespace tileprof {

// ---- What the compiler sees without TILEPROF_RECORD: nothing.

// Records that the calling thread touches `count_1` times `count_0` runs of `length` bytes.
TILEPROF_FUNCTION void touch(Mode mode, const volatile void* pointer, i64 length, i64 count_0 = 1, i64 stride_0 = 0,
                             i64 count_1 = 1, i64 stride_1 = 0) {
#ifdef TILEPROF_RECORD
    record_box(mode, pointer, length, count_0, stride_0, count_1, stride_1);
#endif
}

TILEPROF_FUNCTION void touch_element(Mode mode, const volatile void* pointer, u32 bytes) {
#ifdef TILEPROF_RECORD
    record_access(mode, pointer, bytes);
#endif
}

#ifdef TILEPROF_RECORD
// The lifetime of the block, from here to the kernel's return.
struct BlockLife {
    TILEPROF_FUNCTION BlockLife() { enter_block(); }
    TILEPROF_FUNCTION ~BlockLife() { leave_block(); }
    BlockLife(const BlockLife&) = delete;
    BlockLife& operator=(const BlockLife&) = delete;
};
#else
struct BlockLife {
    TILEPROF_FUNCTION BlockLife() {}
};
#endif

// ---- Elements: any type that the compiler can load, ideally aligned and of 1, 2, 4, 8 or 16 bytes.

template <typename T>
TILEPROF_FUNCTION T load(const T* from) {
    touch_element(kRead, from, sizeof(T));
    return *from;
}

// Through the read-only path (ld.global.nc): these bytes must not change while the kernel runs.
template <typename T>
TILEPROF_FUNCTION T load_readonly(const T* from) {
    touch_element(kRead, from, sizeof(T));
    return __ldg(from);
}

// Volatile accesses, for flags and for data that other blocks write.
template <typename T>
TILEPROF_FUNCTION T load_volatile(const volatile T* from) {
    touch_element(kRead, from, sizeof(T));
    return *from;
}

template <typename T, typename V>
TILEPROF_FUNCTION void store(T* to, V value) {
    touch_element(kWrite, to, sizeof(T));
    *to = value;
}

template <typename T, typename V>
TILEPROF_FUNCTION void store_volatile(volatile T* to, V value) {
    touch_element(kWrite, to, sizeof(T));
    *to = value;
}

// ---- Atomic updates of global memory; each returns the value before, like CUDA's own functions.

#define TILEPROF_ATOMIC(name, builtin)             \
    template <typename T, typename V>              \
    TILEPROF_FUNCTION T name(T* at, V value) {     \
        touch_element(kAtomic, at, sizeof(T));     \
        return builtin(at, static_cast<T>(value)); \
    }
TILEPROF_ATOMIC(atomic_add, atomicAdd)
TILEPROF_ATOMIC(atomic_min, atomicMin)
TILEPROF_ATOMIC(atomic_max, atomicMax)
TILEPROF_ATOMIC(atomic_and, atomicAnd)
TILEPROF_ATOMIC(atomic_or, atomicOr)
TILEPROF_ATOMIC(atomic_xor, atomicXor)
TILEPROF_ATOMIC(atomic_exchange, atomicExch)
#undef TILEPROF_ATOMIC

template <typename T>
TILEPROF_FUNCTION T atomic_compare_and_swap(T* at, T expected, T value) {
    touch_element(kAtomic, at, sizeof(T));
    return atomicCAS(at, expected, value);
}

// ---- Tiles. All threads of a team call these together. The calls do not wait: synchronise the team before using
// copied data.

// The team that copies: the whole block, unless another one is given.
struct Team {
    int rank;
    int threads;
};

TILEPROF_FUNCTION Team block_team() {
    return {static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)),
            static_cast<int>(blockDim.x * blockDim.y * blockDim.z)};
}

TILEPROF_FUNCTION Team warp_team() { return {block_team().rank % 32, 32}; }

// A box of `columns` x `rows` x `planes` elements. Clip it at the edges of the matrix: elements outside are not
// touched.
struct Box {
    int columns;
    int rows;
    int planes = 1;
};

// Elements from one row to the next, and from one plane to the next.
struct Pitch {
    i64 row;
    i64 plane = 0;
};

template <typename T>
TILEPROF_FUNCTION void touch_box(Mode mode, const T* pointer, Pitch pitch, Box box) {
    const i64 size = sizeof(T);
    touch(mode, pointer, box.columns * size, box.rows, pitch.row * size, box.planes, pitch.plane * size);
}

// Calls each(to, from) for every element of the box, spread over the team.
template <typename T, typename Each>
TILEPROF_FUNCTION void for_each_element(T* to, Pitch to_pitch, const T* from, Pitch from_pitch, Box box, Team team,
                                        Each each) {
    for (int i = team.rank; i < box.columns * box.rows * box.planes; i += team.threads) {
        const int line = i / box.columns, column = i % box.columns;
        const int plane = box.planes == 1 ? 0 : line / box.rows, row = line - plane * box.rows;
        each(to + (plane * to_pitch.plane + row * to_pitch.row + column),
             from + (plane * from_pitch.plane + row * from_pitch.row + column));
    }
}

// Global to shared memory; only `from` is recorded.
template <typename T>
TILEPROF_FUNCTION void load_tile(T* to, Pitch to_pitch, const T* from, Pitch from_pitch, Box box,
                                 Team team = block_team()) {
    if (team.rank == 0) touch_box(kRead, from, from_pitch, box);
    for_each_element(to, to_pitch, from, from_pitch, box, team, [](T* t, const T* f) { *t = *f; });
}

// Shared to global memory; only `to` is recorded.
template <typename T>
TILEPROF_FUNCTION void store_tile(T* to, Pitch to_pitch, const T* from, Pitch from_pitch, Box box,
                                  Team team = block_team()) {
    if (team.rank == 0) touch_box(kWrite, to, to_pitch, box);
    for_each_element(to, to_pitch, from, from_pitch, box, team, [](T* t, const T* f) { *t = *f; });
}

// Global to global memory; both are recorded.
template <typename T>
TILEPROF_FUNCTION void copy_tile(T* to, Pitch to_pitch, const T* from, Pitch from_pitch, Box box,
                                 Team team = block_team()) {
    if (team.rank == 0) touch_box(kRead, from, from_pitch, box);
    store_tile(to, to_pitch, from, from_pitch, box, team);
}

// ---- Asynchronous copies to shared memory: cp.async on sm_80 and newer, plain copies before and on the CPU.

template <u32 bytes>
TILEPROF_FUNCTION void cp_async_shared_global(void* to, const void* from) {
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp.async copies 4, 8 or 16 bytes");
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const u32 shared = static_cast<u32>(__cvta_generic_to_shared(to));
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(bytes) : "memory");
#else
    for (u32 i = 0; i < bytes / 4; ++i) static_cast<u32*>(to)[i] = static_cast<const u32*>(from)[i];
#endif
}

TILEPROF_FUNCTION void cp_async_commit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `pending` of this thread's committed groups are under way.
template <int pending>
TILEPROF_FUNCTION void cp_async_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

// One element by cp.async.
template <typename T>
TILEPROF_FUNCTION void load_async(T* to, const T* from) {
    touch_element(kRead, from, sizeof(T));
    cp_async_shared_global<sizeof(T)>(to, from);
}

template <typename T>
TILEPROF_FUNCTION void load_tile_async(T* to, Pitch to_pitch, const T* from, Pitch from_pitch, Box box,
                                       Team team = block_team()) {
    if (team.rank == 0) touch_box(kRead, from, from_pitch, box);
    for_each_element(to, to_pitch, from, from_pitch, box, team,
                     [](T* t, const T* f) { cp_async_shared_global<sizeof(T)>(t, f); });
}

// ---- Bulk copies (sm_90 and newer), called by one thread; sizes and addresses are multiples of 16 bytes.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

TILEPROF_FUNCTION u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// Completes `bytes` on the mbarrier, on which the caller has announced them.
TILEPROF_FUNCTION void load_bulk(void* to, const void* from, u32 bytes, u64* barrier) {
    touch(kRead, from, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// Part of the thread's bulk group: commit and wait as for any other.
TILEPROF_FUNCTION void store_bulk(void* to, const void* from, u32 bytes) {
    touch(kWrite, to, bytes);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes)
                 : "memory");
}

TILEPROF_FUNCTION void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

TILEPROF_FUNCTION void bulk_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

#endif

}  // namespace tileprof
