// Accesses by address: the granules that a warp touches, and bulk copies.
#pragma once

#include "patches/filters.cuh"
#include "patches/index.cuh"
#include "patches/share.h"

namespace tileprof {

namespace {

// If this thread has a fact about the entry of a window of its block, it sets the bits there and returns true.
__device__ __forceinline__ bool touch_known(Header* h, uint64_t window, uint32_t bits, uint32_t mode) {
    uint32_t block = linear_block();
    uint32_t generation = h->in_graph ? load_relaxed_gpu(&h->generation) : 0;
    Fact fact = load_fact(h->facts + fact_slot(h->launch, block, window));
    if (fact.block != block || fact.launch != h->launch || fact.above != fact_above(window, generation) ||
        !fact_holds(window, h->in_graph))
        return false;
    red_or(&h->arena[fact.entry].payload[mode], bits);
    return true;
}

// The same outside of graphs, for a window of addresses that fit into keys.
__device__ __forceinline__ bool touch_known(Header* h, uint32_t launch, uint64_t window, uint32_t bits, uint32_t mode) {
    uint32_t block = linear_block();
    Fact fact = load_fact(h->facts + fact_slot(launch, block, window));
    if (fact.block != block || fact.launch != launch || fact.above != fact_above(window, 0)) return false;
    red_or(&h->arena[fact.entry].payload[mode], bits);
    return true;
}

// The same through the index, for the active lanes. Afterwards all threads may have the fact.
__device__ __noinline__ void touch_unknown(Header* h, uint64_t window, uint32_t bits, uint32_t mode) {
    uint32_t block = linear_block();
    uint32_t peers = __match_any_sync(__activemask(), window);
    uint64_t key = key_of(h, kAccess, window);
    uint32_t slot = slot_of(h, key, block);
    uint32_t leader = __ffs(peers) - 1;
    uint64_t at = 0;
    if (lane_id() == leader) {
        uint32_t slot_entry = load_relaxed_gpu(h->table + slot);
        at = find(h, slot_entry, key, block) ? entry_in(h, slot_entry) : insert(h, slot, slot_entry, key, block);
        if (at != kFull && fact_holds(window, h->in_graph)) {
            uint32_t generation = static_cast<uint32_t>(key >> kGenerationShift) & kLastGeneration;
            store_fact(h->facts + fact_slot(h->launch, block, window),
                       {static_cast<uint32_t>(at), block, h->launch, fact_above(window, generation)});
        }
    }
    at = __shfl_sync(peers, at, leader);
    if (at != kFull) return red_or(&h->arena[at].payload[mode], bits);
    spill(h, window << (h->granule_shift + 5), 1, mode);  // a window lies in one page
}

// Bits `first` to `last` of a window.
__device__ __forceinline__ uint32_t bits_of(uint32_t first, uint32_t last) {
    return (0xffffffffu >> (31 - (last - first))) << first;
}

// Granules `first` to `last`, of any windows.
__device__ __noinline__ void touch_granules(Header* h, uint64_t first, uint64_t last, uint32_t mode) {
    if (last >> (kGenerationShift - h->granule_shift) != 0)
        return spill_beyond(h, first << h->granule_shift, (last - first + 1) << h->granule_shift, mode);
    for (; first <= last; first = (first | 31) + 1) {
        uint64_t window = first >> 5;
        uint32_t bits = bits_of(first & 31, last >> 5 == window ? last & 31 : 31);
        if (!touch_known(h, window, bits, mode)) touch_unknown(h, window, bits, mode);
    }
}

// Any access, of lanes that have parted.
__device__ __noinline__ void touch_slowly(Header* h, uint64_t address, uint32_t bytes, uint32_t mode) {
    if (h->filter_hashes != 0) insert_into_filter(h, address, bytes, mode);
    if (h->filters_only) return;
    touch_granules(h, address >> h->granule_shift, (address + bytes - 1) >> h->granule_shift, mode);
}

// Record that this thread touches [address, address + bytes): accesses are naturally aligned and at most 16 bytes. Most
// are of one window, outside of graphs. That way has few values at once, for what has no register goes to memory for
// each of 32 lanes, and a call, which would need more, is the last thing that a lane does.
__device__ __forceinline__ void touch(Header* h, uint64_t address, uint32_t bytes, uint32_t mode) {
    EveryAccess fields = every_access(h);
    if (fields.launch == kKeepAll) return;
    uint32_t lanes = __activemask(), lane = lane_id();
    uint64_t before = __shfl_up_sync(lanes, address, 1);
    uint32_t on = __ballot_sync(lanes, goes_on(lanes, lane, address, before, bytes));
    bytes = share(lanes, lane, on, fields.granule_shift, address, before, bytes);
    if (bytes == 0) return;
    uint64_t end = address + bytes - 1;
    if (fields.slow || (address ^ end) >> (fields.granule_shift + 5) != 0 || address >> kGenerationShift != 0)
        return touch_slowly(h, address, bytes, mode);
    uint32_t first = static_cast<uint32_t>(address >> fields.granule_shift) & 31;
    uint32_t bits = bits_of(first, static_cast<uint32_t>(end >> fields.granule_shift) & 31);
    uint64_t window = address >> (fields.granule_shift + 5);
    if (!touch_known(h, fields.launch, window, bits, mode)) touch_unknown(h, window, bits, mode);
}

__device__ __forceinline__ void bulk(Header* h, uint64_t address, uint32_t bytes, uint32_t mode, uint32_t mask) {
    if (!elected() || bytes == 0) return;
    if (h->filter_hashes != 0) insert_into_filter(h, address, bytes, mode);
    if (h->filters_only) return;
    if (address >> kGenerationShift != 0) return spill_beyond(h, address, bytes, mode);
    uint64_t at = append_one(h);
    if (at == kFull) return spill(h, address, bytes, mode);
    write_entry(h, at, key_of(h, kRange, address), linear_block(), bytes, mode, mask,
                static_cast<uint32_t>(globaltimer()));
}

}  // namespace

}  // namespace tileprof
