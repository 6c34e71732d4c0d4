// Bloom filters of the granules that a thread block touches: which bits a granule has, and how a thread sets them.
// Kernels that are compiled with tileprof.cuh and the patches of the CUDA recorder share this code; the bits are
// those of bloom.cuh and of the simulator.
#pragma once

#if defined(__CUDACC__) && !defined(TILEPROF_HOST)
#define TILEPROF_FILTER static __device__ __forceinline__
#else
#define TILEPROF_FILTER static inline
#endif

namespace tileprof {

// The finaliser of splitmix64 (Steele, Lea and Flood, 2014).
TILEPROF_FILTER unsigned long long mixed(unsigned long long value, unsigned long long seed) {
    unsigned long long x = value + seed;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

// `bits` is a power of two, at least 32. `words.load` and `words.set` read a word and or bits into it. Most bits are
// already set, and no thread clears any, so each bit is read before it is updated. A stale read only sets a bit
// again.
template <typename Words>
TILEPROF_FILTER void insert_granule(unsigned* filter, unsigned bits, unsigned hashes, unsigned long long granule,
                                    Words words) {
    // Two hashes give all others (Kirsch and Mitzenmacher, 2006).
    const unsigned long long first = mixed(granule, 0x9E3779B97F4A7C15ull);
    const unsigned long long second = mixed(granule, 0xD1B54A32D192ED03ull) | 1;
    for (unsigned hash = 0; hash < hashes; ++hash) {
        const unsigned at = static_cast<unsigned>(first + hash * second) & (bits - 1);
        if ((words.load(filter + at / 32) >> at % 32 & 1) == 0) words.set(filter + at / 32, 1u << at % 32);
    }
}

// Sets all bits: the block may touch anything.
template <typename Words>
TILEPROF_FILTER void fill_filter(unsigned* filter, unsigned bits, Words words) {
    for (unsigned word = 0; word < bits / 32; ++word)
        if (words.load(filter + word) != ~0u) words.set(filter + word, ~0u);
}

// Inserts granules `first` to `last`. A range of as many granules as the filter has bits leaves few bits clear, so it
// sets all.
template <typename Words>
TILEPROF_FILTER void insert_granules(unsigned* filter, unsigned bits, unsigned hashes, unsigned long long first,
                                     unsigned long long last, Words words) {
    if (last - first >= bits) return fill_filter(filter, bits, words);
    for (; first <= last; ++first) insert_granule(filter, bits, hashes, first, words);
}

}  // namespace tileprof
