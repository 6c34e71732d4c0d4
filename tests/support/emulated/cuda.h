// CUDA's built-in names for a host compiler. Included before everything else.
#pragma once

// The headers of C: those of C++ are most of what the compiler would load for each kernel.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#include <string.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS

#include "machine.h"

#define __device__
#define __global__
#define __shared__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__
#define __cluster_dims__(...)
#define __launch_bounds__(...)
#define threadIdx machine::thread_index
#define blockIdx machine::block_index
#define gridDim machine::grid_size

struct float2 {
    float x, y;
};

struct int2 {
    int x, y;
};

struct float4 {
    float x, y, z, w;
};

// Stores to global memory through this type are held back, as on a GPU.
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;

    uint4() = default;
    uint4(const uint4&) = default;
    uint4& operator=(const uint4& from) {
        if (machine::is_global(this))
            machine::hold(this, &from, sizeof from);
        else
            memcpy(static_cast<void*>(this), &from, sizeof from);
        return *this;
    }
};

inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline unsigned __shfl_sync(unsigned, unsigned mine, int lane) { return machine::from_lane(mine, lane); }
inline void __syncwarp() { machine::sync_warp(); }
inline bool __any_sync(unsigned, bool mine) { return machine::any(mine); }
inline int __reduce_min_sync(unsigned, int mine) { return machine::least(mine); }
inline void __trap() { machine::fail("__trap"); }

inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
inline float __expf(float x) { return expf(x); }
inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <int W>
struct Multiply {
    static void add(float (&sums)[W / 2], unsigned long long a, unsigned long long b) {
        machine::multiply(sums, W, a, b);
    }
};
