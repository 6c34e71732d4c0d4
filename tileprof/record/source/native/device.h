// Recording, from the inside of a kernel. Included by tileprof.cuh where TILEPROF_RECORD is defined.
#pragma once

#include "filter.h"
#include "log.h"

#ifdef TILEPROF_HOST
inline tileprof::Log tileprof_log;
#else
// Set by the launcher before each launch, by this name.
extern "C" {
__constant__ tileprof::Log tileprof_log;
}
#endif

namespace tileprof {

TILEPROF_FUNCTION u32 linear_block() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }

#ifndef TILEPROF_HOST

TILEPROF_FUNCTION u32 lane_id() {
    u32 value;
    asm("mov.u32 %0, %%laneid;" : "=r"(value));
    return value;
}

TILEPROF_FUNCTION u32 sm_id() {
    u32 value;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(value));
    return value;
}

TILEPROF_FUNCTION u64 clock_cycles() {
    u64 value;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(value)::"memory");
    return value;
}

TILEPROF_FUNCTION u64 globaltimer_ns() {
    u64 value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
    return value;
}

// Addresses in shared, local and constant memory are private to a block: no dependency involves them.
TILEPROF_FUNCTION bool is_global(const void* pointer, u64) { return __isGlobal(pointer); }

#endif

TILEPROF_FUNCTION u32 lanes_below(u32 lane) { return lane >= 32 ? ~0u : (1u << lane) - 1; }
TILEPROF_FUNCTION u32 lowest_lane(u32 lanes) { return __ffs(static_cast<int>(lanes)) - 1; }
TILEPROF_FUNCTION u32 highest_lane(u32 lanes) { return 31 - __clz(static_cast<int>(lanes)); }

// Allocates n entries and returns the index of the first. Entries beyond the capacity are counted and dropped; no
// thread waits.
TILEPROF_FUNCTION u64 reserve(u32 n) {
    return tileprof_log.entries == nullptr ? tileprof_log.capacity : atomicAdd(tileprof_log.count, static_cast<u64>(n));
}

struct FilterWords {
    TILEPROF_FUNCTION u32 load(const u32* word) const { return *const_cast<const volatile u32*>(word); }
    TILEPROF_FUNCTION void set(u32* word, u32 bits) const { atomicOr(word, bits); }
};

// All granules of an entry, by one thread.
TILEPROF_FUNCTION void insert_entry(const Entry& entry) {
    const u64 side = 2 * static_cast<u64>(entry.block) + (entry.mode != kRead);
    u32* filter = tileprof_log.filters + side * (tileprof_log.filter_bits / 32);
    u64 last = ~0ull;
    for (u32 j = 0; j < entry.count_1; ++j)
        for (u32 i = 0; i < entry.count_0; ++i) {
            const u64 begin = entry.address + i * entry.stride_0 + j * entry.stride_1;
            const u64 end = (begin + entry.length - 1) / tileprof_log.granule;
            for (u64 granule = begin / tileprof_log.granule; granule <= end; ++granule)
                if (granule != last)
                    insert_granule(filter, tileprof_log.filter_bits, tileprof_log.hashes, last = granule,
                                   FilterWords{});
        }
}

TILEPROF_FUNCTION void write_entry(u64 at, const Entry& entry) {
    if (at < tileprof_log.capacity) tileprof_log.entries[at] = entry;
    if (tileprof_log.filters != nullptr) insert_entry(entry);
}

TILEPROF_FUNCTION bool records() { return tileprof_log.entries != nullptr || tileprof_log.filters != nullptr; }

TILEPROF_FUNCTION Entry entry_of(Mode mode, u64 address, u64 length, u32 count_0, i64 stride_0) {
    return Entry{address, stride_0, 0, length, count_0, 1, linear_block(), mode, static_cast<u32>(clock_cycles()), 0};
}

// Records the accesses of the lanes in `lanes`, `bytes` each, in few entries: contiguous lanes become a run, and runs
// of one length at a constant distance become one strided entry. All lanes call this together, with equal `mode` and
// `bytes`.
TILEPROF_FUNCTION void record_lanes(u32 lanes, Mode mode, u64 address, u32 bytes) {
    const u32 lane = lane_id(), below = lanes & lanes_below(lane);
    const u64 before = __shfl_sync(lanes, address, below != 0 ? highest_lane(below) : lane);
    const bool head = below == 0 || address < before || address > before + bytes;

    const u32 heads = __ballot_sync(lanes, head), heads_below = heads & lanes_below(lane);
    const u32 heads_above = heads & ~lanes_below(lane + 1);
    const u32 next = heads_above != 0 ? lowest_lane(heads_above) : 32;
    const u64 end = __shfl_sync(lanes, address, highest_lane(lanes & lanes_below(next))) + bytes;
    const u64 length = end - address;

    const u32 first = lowest_lane(heads), others = heads & (heads - 1);
    const u64 head_before = __shfl_sync(lanes, address, heads_below != 0 ? highest_lane(heads_below) : lane);
    const u64 step = address - head_before;
    const u64 stride = __shfl_sync(lanes, step, others != 0 ? lowest_lane(others) : first);
    const u64 first_length = __shfl_sync(lanes, length, first);
    const bool regular = !head || lane == first || (step == stride && length == first_length);
    const bool strided = __all_sync(lanes, regular);

    u64 at = 0;
    if (lane == first) at = reserve(strided ? 1 : __popc(heads));
    at = __shfl_sync(lanes, at, first);
    if (strided) {
        const u32 count = __popc(heads);
        if (lane == first)
            write_entry(at, entry_of(mode, address, length, count, count > 1 ? static_cast<i64>(stride) : 0));
    } else if (head) {
        write_entry(at + __popc(heads_below), entry_of(mode, address, length, 1, 0));
    }
}

// Records one thread's access. Threads of a warp that arrive here together share entries.
TILEPROF_FUNCTION void record_access(Mode mode, const volatile void* pointer, u32 bytes) {
    if (!records()) return;
    const void* plain = const_cast<const void*>(pointer);
    // The compiler may merge the tails of different accesses: lanes with another mode or size are handled separately.
    const u32 kind = is_global(plain, bytes) ? bytes << 2 | mode : ~0u;
    const u32 lanes = __match_any_sync(__activemask(), kind);
    if (kind != ~0u) record_lanes(lanes, mode, reinterpret_cast<u64>(plain), bytes);
}

// Records a whole strided box, for all threads that touch it: one thread calls.
TILEPROF_FUNCTION void record_box(Mode mode, const volatile void* pointer, i64 length, i64 count_0, i64 stride_0,
                                  i64 count_1, i64 stride_1) {
    const void* plain = const_cast<const void*>(pointer);
    if (!records() || length <= 0 || count_0 <= 0 || count_1 <= 0) return;
    const i64 span = (count_0 - 1) * stride_0 + (count_1 - 1) * stride_1 + length;
    if (!is_global(plain, stride_0 >= 0 && stride_1 >= 0 ? span : length)) return;
    Entry entry = entry_of(mode, reinterpret_cast<u64>(plain), length, static_cast<u32>(count_0), stride_0);
    entry.count_1 = static_cast<u32>(count_1);
    entry.stride_1 = stride_1;
    write_entry(reserve(1), entry);
}

TILEPROF_FUNCTION void enter_block() {
    if (tileprof_log.blocks == nullptr || lane_id() != lowest_lane(__activemask())) return;
    Block* block = tileprof_log.blocks + linear_block();
    atomicMin(&block->begin_ns, globaltimer_ns());
    atomicMin(&block->begin_clock, clock_cycles());
    block->sm = sm_id();
}

TILEPROF_FUNCTION void leave_block() {
    if (tileprof_log.blocks == nullptr || lane_id() != lowest_lane(__activemask())) return;
    Block* block = tileprof_log.blocks + linear_block();
    atomicMax(&block->end_clock, clock_cycles());
    atomicMax(&block->end_ns, globaltimer_ns());
}

}  // namespace tileprof
