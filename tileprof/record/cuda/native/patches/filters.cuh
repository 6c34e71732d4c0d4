// Bloom filters of what the blocks of a launch touch, in global memory. An access is inserted whether it finds room for
// an entry or not.
#pragma once

#include "patches/ptx.cuh"
#include "records/records.h"
#include "source/native/filter.h"

namespace tileprof {

namespace {

// Through L1, which may hold fewer bits than there are by now.
struct FilterWords {
    __device__ __forceinline__ uint32_t load(const uint32_t* word) const { return load_weak(word); }
    __device__ __forceinline__ void set(uint32_t* word, uint32_t bits) const { red_or(word, bits); }
};

// This block's filter of a mode; nullptr in a grid that the launch's kernel launched.
__device__ __forceinline__ uint32_t* filter_of(const Header* h, uint32_t mode) {
    uint32_t block = linear_block();
    if (block >= h->filter_blocks) return nullptr;
    uint64_t number = mode == kRead ? block : static_cast<uint64_t>(h->filter_blocks) + block;
    return h->filters + (number << h->filter_bits_shift) / 32;
}

// This thread touches [address, address + bytes). Only where the launch has filters.
__device__ __noinline__ void insert_into_filter(const Header* h, uint64_t address, uint64_t bytes, uint32_t mode) {
    uint32_t* filter = filter_of(h, mode);
    uint32_t shift = h->filter_granule_shift;
    if (filter != nullptr)
        insert_granules(filter, 1u << h->filter_bits_shift, h->filter_hashes, address >> shift,
                        (address + bytes - 1) >> shift, FilterWords{});
}

// This block reads what a tensor map and coordinates say, which is not worked out here: anything.
__device__ __noinline__ void fill_filter_of_reads(const Header* h) {
    uint32_t* filter = filter_of(h, kRead);
    if (filter != nullptr) fill_filter(filter, 1u << h->filter_bits_shift, FilterWords{});
}

}  // namespace

}  // namespace tileprof
