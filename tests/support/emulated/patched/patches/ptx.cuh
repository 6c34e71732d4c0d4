// Replaces the patches' ptx.cuh: one warp on one CPU thread, lane after lane.
//
// Where lanes exchange values, each lane runs up to that point, its value is kept, and it runs again with all values
// known. This works as long as a lane writes nothing before, since its second run then does the same as its first.
// Behind the exchanges of an access, the lanes count as diverged, as on a GPU.
#pragma once

#include <stdint.h>

#include <vector>

#include "records/facts.h"

#define __device__
#define __forceinline__ inline
#define __noinline__

struct Index {
    unsigned x = 0, y = 0, z = 0;
};
inline Index threadIdx, blockIdx, blockDim{32, 1, 1}, gridDim{1, 1, 1};

struct uint4 {
    unsigned x, y, z, w;
};

namespace warp {

struct Stopped {};

inline uint32_t lanes = ~0u, lane = 0;  // lanes that take part; the current one
inline bool together = false;
inline size_t exchanges = 0;
inline std::vector<std::vector<uint64_t>> known;  // by exchange and lane
inline std::vector<uint64_t> fresh;

// Returns the values of all lanes in the exchange that the current lane has reached.
inline const std::vector<uint64_t>& exchanged(uint64_t mine) {
    if (exchanges == known.size()) {
        fresh[lane] = mine;
        throw Stopped{};
    }
    return known[exchanges++];
}

template <typename Body>
void run(uint32_t all, const Body& body) {
    lanes = all;
    known.clear();
    for (bool stopped = true; stopped;) {
        stopped = false;
        fresh.assign(32, 0);
        for (lane = 0; lane < 32; ++lane) {
            if (!(all >> lane & 1)) continue;
            threadIdx.x = lane;
            together = true;
            exchanges = 0;
            try {
                body(lane);
            } catch (const Stopped&) {
                stopped = true;
            }
        }
        if (stopped) known.push_back(fresh);
    }
}

}  // namespace warp

inline uint32_t __activemask() {
    uint32_t mask = warp::together ? warp::lanes : 1u << warp::lane;
    warp::together = false;
    return mask;
}
inline uint64_t __shfl_up_sync(uint32_t, uint64_t mine, unsigned delta) {
    const auto& all = warp::exchanged(mine);
    return warp::lane < delta ? mine : all[warp::lane - delta];
}
inline uint32_t __ballot_sync(uint32_t lanes, bool mine) {
    const auto& all = warp::exchanged(mine);
    uint32_t bits = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) bits |= static_cast<uint32_t>(lanes >> lane & 1 & all[lane]) << lane;
    return bits;
}
inline uint32_t __match_any_sync(uint32_t mask, uint64_t) { return mask; }  // of one lane
inline uint64_t __shfl_sync(uint32_t, uint64_t mine, int) { return mine; }
inline int __ffs(unsigned bits) { return __builtin_ffs(static_cast<int>(bits)); }

template <typename T>
T atomicAdd(T* at, T value) {
    T before = *at;
    *at += value;
    return before;
}
template <typename T>
T atomicExch(T* at, T value) {
    T before = *at;
    *at = value;
    return before;
}
inline uint32_t atomicCAS(uint32_t* at, uint32_t expected, uint32_t value) {
    uint32_t before = *at;
    if (before == expected) *at = value;
    return before;
}

namespace tileprof {

inline uint32_t lane_id() { return warp::lane; }
inline uint32_t sm_id() { return 3; }
inline uint64_t globaltimer() { return 5; }
inline uint32_t linear_block() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }
inline bool elected() { return lane_id() == __ffs(__activemask()) - 1u; }

inline uint4 load_relaxed_gpu_v4(const void* from) { return *static_cast<const uint4*>(from); }
inline uint32_t load_relaxed_gpu(const uint32_t* from) { return *from; }
inline uint4 load_weak_v4(const void* from) { return *static_cast<const uint4*>(from); }
inline uint32_t load_weak(const uint32_t* from) { return *from; }
inline Fact load_fact(const Fact* from) { return *from; }
inline void store_fact(Fact* to, const Fact& fact) { *to = fact; }
inline void store_v4(void* to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    *static_cast<uint4*>(to) = {a, b, c, d};
}
inline void store_relaxed_gpu(uint32_t* to, uint32_t value) { *to = value; }
inline void red_or(uint32_t* to, uint32_t bits) { *to |= bits; }
inline void red_max(uint32_t* to, uint64_t value) {
    auto* at = reinterpret_cast<uint64_t*>(to);
    if (value > *at) *at = value;
}

}  // namespace tileprof
