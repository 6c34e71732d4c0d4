// Entries of the arena: allocation, keys, and the page bits that are used when the arena is full.
#pragma once

#include "patches/ptx.cuh"
#include "records/pieces.h"
#include "records/records.h"

namespace tileprof {

namespace {

// The fields of a header that every access needs, in two independent loads.
struct HotFields {
    Entry* arena;
    Fact* facts;
    uint32_t launch, granule_shift, filter_hashes, in_graph, filters_only, table_mask;
};

__device__ __forceinline__ HotFields hot_fields(const Header* h) {
    uint4 a = load_weak_v4(h), b = load_weak_v4(reinterpret_cast<const char*>(h) + 16);
    return {reinterpret_cast<Entry*>(a.x | static_cast<uint64_t>(a.y) << 32),
            reinterpret_cast<Fact*>(a.z | static_cast<uint64_t>(a.w) << 32),
            b.x,
            b.y & 0xff,
            b.y >> 24,
            b.z & 0xffff,
            b.z >> 16 & 0xff,
            b.w};
}

// What an access asks first, in one load.
struct EveryAccess {
    uint32_t launch, granule_shift;
    bool slow;  // in a graph, or with filters
};

__device__ __forceinline__ EveryAccess every_access(const Header* h) {
    uint4 v = load_weak_v4(reinterpret_cast<const char*>(h) + 16);
    return {v.x, v.y & 0xff, ((v.z & 0xffff) | v.y >> 24) != 0};
}

constexpr uint64_t kFull = ~0ull;

// Allocates n adjacent entries; kFull if there is no room.
__device__ __forceinline__ uint64_t append(Header* h, uint32_t n) {
    uint64_t at = atomicAdd(h->count, static_cast<unsigned long long>(n));
    if (at + n <= h->capacity) return at;
    atomicAdd(&h->spilled, 1u);
    return kFull;
}

// Allocates one entry from the SM's piece.
__device__ uint64_t append_one(Header* h) {
    unsigned long long* counter = h->count + kCounterWords * (1 + sm_id() % kCounters);
    uint64_t was = atomicAdd(counter, 1ull);
    if (piece_serves(was)) return piece_entry(was);
    uint64_t at = append(h, piece_refills(was) ? kPiece : 1);
    if (at == kFull)
        atomicExch(counter, static_cast<unsigned long long>(kSpent));
    else if (piece_refills(was))
        atomicExch(counter, static_cast<unsigned long long>(piece_at(at)));
    return at;
}

__device__ __forceinline__ void write_entry(const HotFields& hot, uint64_t at, uint64_t key, uint32_t block, uint32_t a,
                                            uint32_t b, uint32_t c, uint32_t d) {
    Entry* e = hot.arena + at;
    store_v4(e->payload, a, b, c, d);
    store_v4(e, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), block, hot.launch);
}

__device__ __forceinline__ void write_entry(Header* h, uint64_t at, uint64_t key, uint32_t block, uint32_t a,
                                            uint32_t b, uint32_t c, uint32_t d) {
    Entry* e = h->arena + at;
    store_v4(e->payload, a, b, c, d);
    store_v4(e, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), block, h->launch);
}

// The kernel nodes of a graph share a header. A running thread's node has not ended, so the number of ended nodes is
// the index of the running one, as long as nodes do not overlap; the reader notices if they do.
__device__ __forceinline__ uint64_t key_of(Kind kind, uint64_t generation, uint64_t low) {
    return static_cast<uint64_t>(kind) << kKindShift | generation << kGenerationShift | (low & kLowMask);
}

__device__ __forceinline__ uint64_t key_of(const Header* h, Kind kind, uint64_t low) {
    return key_of(kind, h->in_graph ? load_relaxed_gpu(&h->generation) : 0, low);
}

// Allocates two adjacent entries for a thread that appends many: it takes room for several at once and stores the
// remaining count in its slot among the facts. Only this thread writes that fact, so it never reads an older count
// than it wrote; if another key overwrites the slot, the rest of the room is lost. Unused room is zero, which the
// reader skips.
__device__ __forceinline__ uint64_t append_two(Header* h, const HotFields& hot, uint32_t block, uint32_t thread) {
    Fact* slot = hot.facts + fact_slot(hot.launch, block, room_window(thread));
    Fact room = load_fact(slot);
    uint32_t left = room_left(room, block, hot.launch, thread);
    if (left >= 2) {
        store_fact(slot, room_of(room.entry + 2, block, hot.launch, thread, left - 2));
        return room.entry;
    }
    uint64_t at = append(h, kRoom);
    if (at != kFull) store_fact(slot, room_of(static_cast<uint32_t>(at) + 2, block, hot.launch, thread, kRoom - 2));
    return at;
}

__device__ void spill(Header* h, uint64_t address, uint64_t bytes, uint32_t mode) {
    for (uint64_t page = address >> kPageShift; page <= (address + bytes - 1) >> kPageShift; ++page) {
        uint32_t folded = static_cast<uint32_t>(page) & (kPages - 1);
        if (mode != kWrite) red_or(h->spill->read + folded / 32, 1u << (folded & 31));
        if (mode != kRead) red_or(h->spill->written + folded / 32, 1u << (folded & 31));
    }
}

// Addresses of the lower half have 47 bits. Others are host memory that the GPU reaches through its page tables, or
// an error of the program.
__device__ __noinline__ void spill_beyond(Header* h, uint64_t address, uint64_t bytes, uint32_t mode) {
    atomicAdd(&h->beyond, 1u);
    atomicAdd(h->count + 1, 1ull);
    spill(h, address, bytes, mode);
}

}  // namespace

}  // namespace tileprof
