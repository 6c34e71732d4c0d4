// What a recorded kernel leaves behind. tileprof/record/source/layout.py is the same in Python; a test compares them.
//
//     tileprof_log (constant memory) ──▶ entries [capacity]     one per run of bytes, or per strided box
//                                   ├──▶ blocks [grid]          one per thread block that holds a BlockLife
//                                   ├──▶ count                  entries asked for, also those beyond the capacity
//                                   └──▶ filters [grid, 2]      of a block's reads, and of its writes and updates
#pragma once

namespace tileprof {

// NVRTC has no <cstdint>.
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

enum Mode : u32 { kRead, kWrite, kAtomic };

// The bytes { address + i*stride_0 + j*stride_1 + [0, length) }, i < count_0, j < count_1, of one thread block.
struct Entry {
    u64 address;
    i64 stride_0;
    i64 stride_1;
    u64 length;
    u32 count_0;
    u32 count_1;
    u32 block;  // linear: x + gridDim.x * (y + gridDim.y * z)
    u32 mode;
    u32 clock;  // low word of the SM's clock
    u32 unused;
};

// Begins are minima and ends are maxima over the warps of a block: the host initialises them to ~0 and to 0.
struct Block {
    u64 begin_ns;
    u64 end_ns;
    u64 begin_clock;
    u64 end_clock;
    u32 sm;
    u32 unused;
};

struct Log {
    Entry* entries;  // null: record nothing
    Block* blocks;
    u64* count;
    u64 capacity;
    u32* filters;  // null: none
    u32 filter_bits;  // a power of two, at least 32
    u32 hashes;
    u32 granule;  // bytes that count as one address
    u32 unused;
};

static_assert(sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void*) == 8, "");
static_assert(sizeof(Entry) == 56 && sizeof(Block) == 40 && sizeof(Log) == 56, "");

}  // namespace tileprof
