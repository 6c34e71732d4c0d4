// Shared by the kernels of whole programs, whatever a block's roles are: rings of slots, waits at the barriers of the
// block's own rings, and the random sleeps of tests. The compiled-in header defines TIMEOUT_NS and DELAY_NS.
#pragma once

#include "ptx.cuh"

// A ring without progress for this long is an error of the kernel, not of the policy or the plan. It ends the kernel
// by a trap, which the host sees as CUDA_ERROR_LAUNCH_FAILED without a reason. A thread must not go on, as waits for
// other blocks do: copies that are under way would arrive in shared memory of the next block. The record cannot hold
// the reason, because a trap ends the context and its memory with it; and a message (`__assertfail`) is a call, for
// which ptxas gives the persistent kernel a stack frame of 24 bytes and spills 64 bytes (13.0, two products by two).
constexpr u64 STUCK_NS = 8ull * TIMEOUT_NS;

// Polls until done() is true, at most STUCK_NS.
template <class Try>
__device__ __forceinline__ void until(Try&& done) {
    u64 start = 0;
    for (u32 tries = 1; !done(); ++tries)
        if (tries % 1024 == 0) {  // the clock is slow to read
            if (start == 0) start = globaltimer();
            if (globaltimer() - start > STUCK_NS) __trap();
        }
}

__device__ __forceinline__ void wait_cta(u32 barrier, u32 parity) {
    until([=] { return mbarrier_try_wait_acquire_cta(barrier, parity); });
}

__device__ __forceinline__ void wait_cluster(u32 barrier, u32 parity) {
    until([=] { return mbarrier_try_wait_acquire_cluster(barrier, parity); });
}

constexpr u32 MOST_TRIES = 1u << 26;  // each try may sleep: seconds

// Like `wait_cta`, but counts tries instead of reading the clock.
__device__ __forceinline__ void wait_local(u32 barrier, u32 parity) {
    for (u32 tries = 0; !mbarrier_try_wait_acquire_cta(barrier, parity);)
        if (++tries == MOST_TRIES) __trap();
}

// For tests: sleeps up to DELAY_NS, for a time that depends on `mixed`. Callers mix numbers that differ wherever the
// sleeps should differ.
__device__ __forceinline__ void nap(u32 mixed) {
    mixed = (mixed ^ (mixed >> 7)) * 9973u;
    mixed = (mixed ^ (mixed >> 11)) & 1023u;
    const u64 length = static_cast<u64>(mixed) * DELAY_NS / 1024, start = globaltimer();
    while (globaltimer() - start < length) nanosleep(100);
}

// Initialises the barriers of a ring's slots: the full and the empty barriers.
template <int COUNT>
__device__ __forceinline__ void init_ring(u32 full, u32 free, u32 full_arrivals, u32 free_arrivals) {
    for (int slot = 0; slot < COUNT; ++slot) {
        mbarrier_init(full + 8 * slot, full_arrivals);
        mbarrier_init(free + 8 * slot, free_arrivals);
    }
}

// The position of a role in a ring of SIZE slots: the slot, and the parity of its barrier's phase.
template <int SIZE>
struct Ring {
    u32 slot = 0, turn = 0;

    __device__ void advance() {
        if (++slot == SIZE) slot = 0, turn ^= 1;
    }
};
