// The index of the arena: the entry of each key.
#pragma once

#include "patches/entries.cuh"

namespace tileprof {

namespace {

// Adjacent windows of a block are adjacent in the index, so that one sector serves a streaming warp.
__device__ __forceinline__ uint32_t slot_of(const Header* h, uint64_t key, uint32_t block) {
    uint64_t salt = (static_cast<uint64_t>(h->launch) << 32 | block) * 0x9e3779b97f4a7c15ull;
    return (static_cast<uint32_t>(key) + static_cast<uint32_t>(salt >> 32)) & h->table_mask;
}

// The contents of a slot of the index. Most slots that a new key meets belong to an earlier launch, which their tag
// shows without a load of the entry.
__device__ __forceinline__ uint32_t slot_value(const Header* h, uint64_t at) {
    return static_cast<uint32_t>(at | static_cast<uint64_t>(h->launch) << h->tag_shift);
}

__device__ __forceinline__ uint32_t entry_in(const Header* h, uint32_t slot) {
    return slot & static_cast<uint32_t>((1ull << h->tag_shift) - 1);
}

__device__ __forceinline__ bool may_be_of(const Header* h, uint32_t slot) {
    return static_cast<uint64_t>(slot ^ slot_value(h, 0)) >> h->tag_shift == 0;
}

// Returns whether a slot of the index refers to the entry of this key.
__device__ __forceinline__ bool find(const Header* h, uint32_t slot, uint64_t key, uint32_t block) {
    if (slot == kClaimed || !may_be_of(h, slot)) return false;
    uint4 is = load_relaxed_gpu_v4(h->arena + entry_in(h, slot));
    return is.x == static_cast<uint32_t>(key) && is.y == static_cast<uint32_t>(key >> 32) && is.z == block &&
           is.w == h->launch;
}

// Returns the entry of a key that is not the one in `slot`, which held `old`: that of another warp, or a new one. The
// warps of a block often arrive together; a warp that finds the slot claimed waits briefly for the one that claimed
// it.
__device__ uint64_t insert(Header* h, uint32_t slot, uint32_t old, uint64_t key, uint32_t block) {
    constexpr int kPatience = 16;  // number of reads of the slot, about 10 us; after that a second entry is harmless
    uint32_t seen = old == kClaimed ? kClaimed : atomicCAS(h->table + slot, old, kClaimed);
    if (seen != old || old == kClaimed) {
        for (int i = 0; i < kPatience && seen == kClaimed; ++i) seen = load_relaxed_gpu(h->table + slot);
        if (find(h, seen, key, block)) return entry_in(h, seen);
    }
    uint64_t at = append_one(h);
    if (at != kFull) {
        // The bits are zero in a fresh arena and are only ever set: a thread that finds the key early cannot take
        // stale bits for its own.
        h->arena[at].payload[3] = static_cast<uint32_t>(globaltimer());
        store_v4(h->arena + at, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), block, h->launch);
    }
    store_relaxed_gpu(h->table + slot, at == kFull ? 0 : slot_value(h, at));
    return at;
}

}  // namespace

}  // namespace tileprof
