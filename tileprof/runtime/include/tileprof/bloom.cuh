// Dependencies of thread blocks that are found while they run, by Bloom filters over the ranges that they declare
// (after Kuper, Pati and Sinclair's proposal for dynamic dependencies; filters after Bloom, 1970). Header-only;
// compiles for the host, too, where a block is a thread.
//
// Blocks are numbered in program order. Each inserts what it will read and write into filters of its own, then asks the
// filters of all earlier blocks that have not ended whether they may touch the same memory, and waits for those that
// may:
//
//     take a number -> insert ranges -> wait for each earlier block that runs and whose filters meet -> run -> end
//
// A block waits for earlier ones only, and those were all taken before: none deadlocks, however few blocks are
// resident. A filter may say yes wrongly and never no wrongly, so that a dependency may be false and none is missed.
// Which bits stand for a granule is what `tileprof simulate` computes for ``dataflow-bloom``.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TILEPROF_DEVICE __device__ __forceinline__
#define TILEPROF_BOTH __host__ __device__ __forceinline__
#else
#define TILEPROF_DEVICE inline
#define TILEPROF_BOTH inline
#endif

namespace tileprof::bloom {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

// Bytes that a block reads, or writes and perhaps reads.
struct Range {
    u64 begin;
    u32 bytes;
    u32 writes;
};

#ifdef __CUDACC__
TILEPROF_DEVICE int load_acquire(const int* at) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
TILEPROF_DEVICE void store_release(int* at, int value) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
TILEPROF_DEVICE u32 load_word(const u32* at) {
    u32 value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
TILEPROF_DEVICE void or_word(u32* at, u32 bits) {
    asm volatile("red.relaxed.gpu.global.or.b32 [%0], %1;" ::"l"(at), "r"(bits) : "memory");
}
TILEPROF_DEVICE void clear_word(u32* at) { asm volatile("st.relaxed.gpu.global.u32 [%0], 0;" ::"l"(at) : "memory"); }
TILEPROF_DEVICE int take_next(int* at) { return atomicAdd(at, 1); }
TILEPROF_DEVICE void add_count(u64* at, u64 value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
}
TILEPROF_DEVICE void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
TILEPROF_DEVICE void meet() { __syncthreads(); }
TILEPROF_DEVICE int lane() { return static_cast<int>(threadIdx.x); }
TILEPROF_DEVICE int lanes() { return static_cast<int>(blockDim.x); }
TILEPROF_DEVICE u64 time_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}
TILEPROF_DEVICE void pause() { __nanosleep(50); }
#endif

// The finaliser of splitmix64 (Steele, Lea and Flood, 2014).
TILEPROF_BOTH u64 mixed(u64 value, u64 seed) {
    u64 x = value + seed;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

// A filter of granules of GRANULE bytes; two hashes give all (Kirsch and Mitzenmacher, 2006).
template <int BITS, int HASHES, int GRANULE>
struct Filter {
    static_assert(BITS % 32 == 0 && (BITS & (BITS - 1)) == 0 && HASHES >= 1 && GRANULE >= 1);
    u32 words[BITS / 32];

    static TILEPROF_DEVICE u32 bit(u64 first, u64 second, int hash) {
        return static_cast<u32>((first + hash * (second | 1)) % BITS);
    }

    // By all threads of a block.
    TILEPROF_DEVICE void clear() {
        for (int i = lane(); i < BITS / 32; i += lanes()) clear_word(words + i);
    }

    // By all threads of a block.
    TILEPROF_DEVICE void insert(const Range& range) {
        const u64 begin = range.begin / GRANULE, end = (range.begin + range.bytes + GRANULE - 1) / GRANULE;
        for (u64 granule = begin + lane(); granule < end; granule += lanes()) {
            const u64 first = mixed(granule, 0x9E3779B97F4A7C15ull), second = mixed(granule, 0xD1B54A32D192ED03ull);
            for (int hash = 0; hash < HASHES; ++hash) {
                const u32 at = bit(first, second, hash);
                or_word(words + at / 32, 1u << at % 32);
            }
        }
    }

    // By one thread: whether some granule of the range may have been inserted.
    TILEPROF_DEVICE bool may_touch(const Range& range) const {
        const u64 begin = range.begin / GRANULE, end = (range.begin + range.bytes + GRANULE - 1) / GRANULE;
        for (u64 granule = begin; granule < end; ++granule) {
            const u64 first = mixed(granule, 0x9E3779B97F4A7C15ull), second = mixed(granule, 0xD1B54A32D192ED03ull);
            bool all = true;
            for (int hash = 0; hash < HASHES && all; ++hash) {
                const u32 at = bit(first, second, hash);
                all = load_word(words + at / 32) >> at % 32 & 1;
            }
            if (all) return true;
        }
        return false;
    }
};

// What a block reads and what it writes.
template <class F>
struct Footprint {
    F read, written;

    // By one thread: whether a later block with these ranges has to wait for the owner.
    TILEPROF_DEVICE bool meets(const Range* ranges, int count) const {
        for (int i = 0; i < count; ++i)
            if (written.may_touch(ranges[i]) || (ranges[i].writes && read.may_touch(ranges[i]))) return true;
        return false;
    }
};

// In global memory, all zeros at first. `inserted` and `ended` have a word for each block; a ring of `window`
// footprints serves them all, so that a block is taken once the one that had its place before has ended.
template <class F>
struct Scheduler {
    Footprint<F>* ring;
    int *inserted, *ended, *next;
    int window, blocks;
    u64* counts;  // asked, found
    int* late;  // a wait that lasted longer than limit_ns: 1 and the block
    u64 limit_ns;

    TILEPROF_DEVICE bool wait(const int* word, int block) {
        if (load_acquire(word) != 0) return true;
        const u64 begin = time_ns();
        while (load_acquire(word) == 0) {
            pause();
            if (load_acquire(late) != 0) return false;
            if (time_ns() - begin > limit_ns) {
                late[1] = block;
                store_release(late, 1);
                return false;
            }
        }
        return true;
    }

    // One thread: the next block in program order; -1 where there is none.
    TILEPROF_DEVICE int take() {
        const int block = take_next(next);
        if (block >= blocks || (block >= window && !wait(ended + block - window, block))) return -1;
        return block;
    }

    // By all threads of a block: returns when all that `ranges` depend on has ended.
    TILEPROF_DEVICE void begin(int block, const Range* ranges, int count) {
        Footprint<F>& own = ring[block % window];
        fence();  // who finds the filters cleared finds the block that had them before ended
        own.read.clear(), own.written.clear();
        meet();
        for (int i = 0; i < count; ++i) (ranges[i].writes ? own.written : own.read).insert(ranges[i]);
        meet();
        if (lane() == 0) store_release(inserted + block, 1);
        // A block a window or more away has no filters: the one that has their place was taken after it had ended, and
        // is in the window of this one, which acquires its `inserted` or `ended`.
        u64 asked = 0, found = 0;
        for (int other = (block > window ? block - window : 0) + lane(); other < block; other += lanes()) {
            if (load_acquire(ended + other) != 0 || !wait(inserted + other, block)) continue;
            ++asked;
            if (!ring[other % window].meets(ranges, count)) {
                // If `other` has ended meanwhile, a later block may have cleared its filters, and "no" means nothing:
                // what `other` wrote is ordered before this block by the acquiring load, whatever it returns.
                fence();
                load_acquire(ended + other);
                continue;
            }
            ++found;
            wait(ended + other, block);
        }
        if (asked > 0) add_count(counts, asked), add_count(counts + 1, found);
        meet();
    }

    // By all threads of a block, which have stored what they write.
    TILEPROF_DEVICE void end(int block) {
        meet();
        if (lane() == 0) store_release(ended + block, 1);
    }
};

}  // namespace tileprof::bloom
