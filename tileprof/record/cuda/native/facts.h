// What a thread may believe without asking the index: "the entry of this window, block, launch and generation is number
// N". A fact is 16 bytes, written and read by one instruction each, and holds all of its key that its slot does not
// imply. So whatever a read gives back (another key's fact, an older one out of L1, which is not coherent, zeros) is
// either not this key's or true: entries never move, and launch ids are not given out again.
//
// Facts lie in front of the index because they may be read through L1, 30 cycles instead of 600 for slot and entry.
#pragma once

#include <stdint.h>

#include "records.h"

#ifdef __CUDACC__
#define TILEPROF_BOTH static __host__ __device__ __forceinline__
#else
#define TILEPROF_BOTH static inline
#endif

namespace tileprof {

constexpr uint32_t kFactBits = 20;  // 16 MiB, of which a block's part stays in L1
constexpr uint32_t kFactSlots = 1u << kFactBits;

struct alignas(16) Fact {
    uint32_t entry, block, launch;
    uint32_t above;  // the window's bits above kFactBits and the generation
};
static_assert(sizeof(Fact) == 16, "read and written by one instruction");

// Of a fact's slot. Adjacent windows of a block lie side by side: one sector serves a streaming warp.
TILEPROF_BOTH uint32_t fact_slot(uint32_t launch, uint32_t block, uint64_t window) {
    uint32_t salt = (launch * 0x9e3779b9u + block) * 0x85ebca6bu;
    return (static_cast<uint32_t>(window) + (salt ^ salt >> 15)) & (kFactSlots - 1);
}

// Generations, which graphs alone have, begin here; windows of a byte's granules may reach beyond.
constexpr uint32_t kAboveShift = 20;

TILEPROF_BOTH bool fact_holds(uint64_t window, uint32_t in_graph) {
    return window >> (in_graph ? kFactBits + kAboveShift : kFactBits + 32) == 0;
}

TILEPROF_BOTH uint32_t fact_above(uint64_t window, uint32_t generation) {
    return static_cast<uint32_t>(window >> kFactBits) | generation << kAboveShift;
}

}  // namespace tileprof
