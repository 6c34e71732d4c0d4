// Facts: statements that a thread may use without a look at the index, such as "the entry of this window, block,
// launch and generation is number N". A fact has 16 bytes, is written and read by one instruction each, and contains
// all of its key that its slot does not imply. Whatever a read returns (the fact of another key, an older one from
// L1, which is not coherent, or zeros) is therefore either recognised as another key's or true: entries never move,
// and launch ids are not reused.
//
// Facts are checked before the index because they may be read through L1, in 30 cycles instead of 600 for slot and
// entry.
#pragma once

#include <stdint.h>

#include "records/records.h"

#ifdef __CUDACC__
#define TILEPROF_HOST_DEVICE static __host__ __device__ __forceinline__
#else
#define TILEPROF_HOST_DEVICE static inline
#endif

namespace tileprof {

constexpr uint32_t kFactBits = 20;  // 16 MiB; the part of one block stays in L1
constexpr uint32_t kFactSlots = 1u << kFactBits;

struct alignas(16) Fact {
    uint32_t entry, block, launch;
    uint32_t above;  // the window's bits above kFactBits and the generation
};
static_assert(sizeof(Fact) == 16, "read and written by one instruction");

// Returns the slot of a fact. Adjacent windows of a block are adjacent, so that one sector serves a streaming warp.
TILEPROF_HOST_DEVICE uint32_t fact_slot(uint32_t launch, uint32_t block, uint64_t window) {
    uint32_t salt = (launch * 0x9e3779b9u + block) * 0x85ebca6bu;
    return (static_cast<uint32_t>(window) + (salt ^ salt >> 15)) & (kFactSlots - 1);
}

// Generations, which only graphs have, begin here; windows of granules of one byte may reach beyond.
constexpr uint32_t kAboveShift = 20;

TILEPROF_HOST_DEVICE bool fact_holds(uint64_t window, uint32_t in_graph) {
    return window >> (in_graph ? kFactBits + kAboveShift : kFactBits + 32) == 0;
}

TILEPROF_HOST_DEVICE uint32_t fact_above(uint64_t window, uint32_t generation) {
    return static_cast<uint32_t>(window >> kFactBits) | generation << kAboveShift;
}

// Further kinds of facts, for launches outside of graphs, where `above` of no window reaches these bits.
constexpr uint32_t kRoomBit = 1u << 31, kMapBit = 1u << 30, kGranuleBit = 1u << 29, kFullBit = 1u << 28,
                   kBlockBit = 1u << 27;

// "Thread `thread` of the block may append `left` entries from number `entry` on."
constexpr uint32_t kRoom = 32, kLeftBits = 8, kLeftMask = (1u << kLeftBits) - 1;

TILEPROF_HOST_DEVICE uint64_t room_window(uint32_t thread) { return 0x5a5a5 ^ static_cast<uint64_t>(thread) << 5; }

TILEPROF_HOST_DEVICE Fact room_of(uint32_t entry, uint32_t block, uint32_t launch, uint32_t thread, uint32_t left) {
    return {entry, block, launch, kRoomBit | thread << kLeftBits | left};
}

// Returns 0 if the fact belongs to another thread or kind.
TILEPROF_HOST_DEVICE uint32_t room_left(const Fact& fact, uint32_t block, uint32_t launch, uint32_t thread) {
    bool own =
        fact.block == block && fact.launch == launch && (fact.above & ~kLeftMask) == (kRoomBit | thread << kLeftBits);
    return own ? fact.above & kLeftMask : 0;
}

// "This tensor map lies among the launch's parameters and was copied." Maps are aligned to 64 bytes.
constexpr uint32_t kMapAlignBits = 6;

TILEPROF_HOST_DEVICE Fact known_map(uint64_t map, uint32_t launch) {
    return {static_cast<uint32_t>(map), static_cast<uint32_t>(map >> 32), launch, kMapBit};
}

TILEPROF_HOST_DEVICE bool is_known_map(const Fact& fact, uint64_t map, uint32_t launch) {
    return fact.entry == static_cast<uint32_t>(map) && fact.block == static_cast<uint32_t>(map >> 32) &&
           fact.launch == launch && fact.above == kMapBit;
}

// "A filter of the block has this granule", or all bits: bits of filters are only ever set. `side` is 0 for reads and
// 1 for writes.
struct GranuleFact {
    uint32_t slot;
    Fact fact;
};

TILEPROF_HOST_DEVICE GranuleFact inserted_granule(uint64_t granule, uint32_t side, uint32_t block, uint32_t launch) {
    constexpr uint32_t kApart = 0x2c9277b5;  // separates the sides of a block, and windows of the same number
    return {fact_slot(launch, block, granule + (side + 1) * kApart),
            {static_cast<uint32_t>(granule >> kFactBits), block, launch, kGranuleBit | side}};
}

TILEPROF_HOST_DEVICE GranuleFact full_filter(uint32_t side, uint32_t block, uint32_t launch) {
    GranuleFact full = inserted_granule(0, side, block, launch);
    full.fact.above = kFullBit | side;
    return full;
}

// "The entry of the block itself is number `entry`."
constexpr uint64_t kBlockWindow = 0x37a51;

TILEPROF_HOST_DEVICE Fact known_block(uint64_t entry, uint32_t block, uint32_t launch) {
    return {static_cast<uint32_t>(entry), block, launch, kBlockBit};
}

TILEPROF_HOST_DEVICE bool is_same(const Fact& a, const Fact& b) {
    return a.entry == b.entry && a.block == b.block && a.launch == b.launch && a.above == b.above;
}

}  // namespace tileprof
