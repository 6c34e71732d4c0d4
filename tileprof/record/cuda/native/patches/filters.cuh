// Bloom filters of the granules that the blocks of a launch touch, in global memory. An access is inserted whether or
// not there is room for an entry.
#pragma once

#include "patches/ptx.cuh"
#include "records/records.h"
#include "source/native/filter.h"

namespace tileprof {

namespace {

// The load goes through L1, which may hold fewer bits than are set by now.
struct FilterWords {
    __device__ __forceinline__ uint32_t load(const uint32_t* word) const { return load_weak(word); }
    __device__ __forceinline__ void set(uint32_t* word, uint32_t bits) const { red_or(word, bits); }
};

// The bit is not read before: where most bits are missing, a load costs more than an update, for which nothing waits.
struct UnseenWords : FilterWords {
    __device__ __forceinline__ uint32_t load(const uint32_t*) const { return 0; }
};

// 0: the block's filter of reads, 1: that of writes and updates.
__device__ __forceinline__ uint32_t side_of(uint32_t mode) { return mode == kRead ? 0 : 1; }

// Returns this block's filter of a side. Blocks of grids that the launch's kernel launched have no filters.
__device__ __forceinline__ uint32_t* filter_of(const Header* h, uint32_t side, uint32_t block) {
    return h->filters + ((static_cast<uint64_t>(side) * h->filter_blocks + block) << h->filter_bits_shift) / 32;
}

// Inserts [address, address + bytes); only called if the launch has filters. Most accesses touch a granule that a
// thread of the block has already inserted: a fact says so, with one load instead of hashes and loads of each bit.
__device__ __noinline__ void insert_into_filter(const Header* h, uint64_t address, uint64_t bytes, uint32_t mode) {
    uint32_t block = linear_block(), side = side_of(mode);
    if (block >= h->filter_blocks) return;
    uint64_t first = address >> h->filter_granule_shift, last = (address + bytes - 1) >> h->filter_granule_shift;
    bool one = first == last && fact_holds(first, 0);
    GranuleFact inserted = inserted_granule(first, side, block, h->launch);
    if (one && is_same(load_fact(h->facts + inserted.slot), inserted.fact)) return;
    insert_granules(filter_of(h, side, block), 1u << h->filter_bits_shift, h->filter_hashes, first, last,
                    FilterWords{});
    if (one) store_fact(h->facts + inserted.slot, inserted.fact);
}

// The block reads through a tensor map, whose addresses are not computed here: all bits are set. Once per block.
__device__ __noinline__ void fill_filter_of_reads(const Header* h) {
    uint32_t block = linear_block();
    if (block >= h->filter_blocks) return;
    GranuleFact full = full_filter(side_of(kRead), block, h->launch);
    if (is_same(load_fact(h->facts + full.slot), full.fact)) return;
    fill_filter(filter_of(h, side_of(kRead), block), 1u << h->filter_bits_shift, UnseenWords{});
    store_fact(h->facts + full.slot, full.fact);
}

}  // namespace

}  // namespace tileprof
