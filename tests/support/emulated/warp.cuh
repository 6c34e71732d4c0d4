// Replaces the transformer kernel's warp.cuh: the same functions, on the machine of machine.h.
#pragma once

#include <cstddef>

#include "ptx.cuh"

using s64 = long long;

inline void check_aligned(const void* address, u32 bytes) {
    if (reinterpret_cast<u64>(address) % bytes != 0)
        machine::fail("an access of global memory at an address that its size does not divide");
}

template <class T>
T load_global(const void* address) {
    check_aligned(address, sizeof(T));
    T v;
    memcpy(static_cast<void*>(&v), address, sizeof v);
    return v;
}
inline uint4 load_table_u32x4(const void* address) { return load_global<uint4>(address); }
inline uint4 load_relaxed_gpu_u32x4(const void* address) { return load_global<uint4>(address); }
inline uint2 load_relaxed_gpu_u32x2(const void* address) { return load_global<uint2>(address); }
inline void store_relaxed_gpu_u32x4(void* address, const uint4& v) {
    check_aligned(address, sizeof v);
    machine::hold(address, &v, sizeof v);
}
inline void store_relaxed_gpu_u32x2(void* address, const uint2& v) {
    check_aligned(address, sizeof v);
    machine::hold(address, &v, sizeof v);
}

// Waits for an event if a word is still absent.
template <class V>
V poll_matrix(u64 address, const V&) {
    for (u32 word = 0; word < sizeof(V) / 4; ++word) {
        const s32* at = reinterpret_cast<const s32*>(address) + word;
        if (*at == -1) {
            machine::load_acquire(at);
            machine::nap();
            machine::load_acquire(at);  // the second read of the same value sleeps
            break;
        }
    }
    return load_global<V>(reinterpret_cast<const void*>(address));
}

inline void unpack_two(u32 two, float& low, float& high) {
    low = unpack(static_cast<unsigned short>(two & 0xFFFF));
    high = unpack(static_cast<unsigned short>(two >> 16));
}
inline u32 __float_as_uint(float value) { return same_bits<u32>(value); }

struct Two {
    float low, high;
};
inline void store_shared_f32x2(u32 address, float low, float high) { store_shared(address, Two{low, high}); }
inline float load_shared_f32(u32 address) { return load_shared<float>(address); }
inline void store_shared_f32(u32 address, float value) { store_shared(address, value); }
inline u64 load_shared_u64(u32 address) { return load_shared<u64>(address); }
inline uint2 load_shared_u32x2(u32 address) { return load_shared<uint2>(address); }
