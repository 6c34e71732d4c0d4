// Replaces the decoder's decoder_ptx.cuh, on the machine of machine.h: words that other threads write are polled, and
// stores to them arrive late.
#pragma once

#include "ptx.cuh"

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    uint4 v;
    v.x = x, v.y = y, v.z = z, v.w = w;
    return v;
}
inline float __int_as_float(int bits) { return same_bits<float>(bits); }
inline int __float_as_int(float value) { return same_bits<int>(value); }
inline unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }
inline void __syncthreads() { machine::sync_block(0, 288); }

// Values that the lanes of a warp exchange between two barriers.
inline float shown[64][12][32];

inline float from_lane(float mine, u32 lane) {
    float* const lanes = shown[blockIdx.x][threadIdx.x / 32];
    lanes[threadIdx.x % 32] = mine;
    machine::sync_warp();
    const float value = lanes[lane];
    machine::sync_warp();
    return value;
}

inline float __shfl_xor_sync(unsigned, float mine, int other) { return machine::exchange(mine, other); }
inline int __shfl_sync(unsigned, int mine, int) {
    return static_cast<int>(machine::from_lane(static_cast<unsigned>(mine), 0));
}
inline float __shfl_sync(unsigned, float mine, int lane) { return from_lane(mine, lane); }

inline const int UNCHANGED = 0;

// A thread that finds a word absent sleeps until nothing else can run: it waits for several words at a time, and the
// machine watches one.
template <int WORDS>
void load_relaxed_words(void* value, const void* address, bool when) {
    if (!when) return;
    memcpy(value, address, 4 * WORDS);
    for (int word = 0; word < WORDS; ++word)
        if (static_cast<const s32*>(address)[word] == -1) {
            machine::nap();
            machine::load_acquire(&UNCHANGED);
            break;
        }
}

inline void load_relaxed_gpu_u32x4(uint4& value, const void* address, bool when) {
    load_relaxed_words<4>(&value, address, when);
}
inline void load_relaxed_gpu_u32x2(uint2& value, const void* address, bool when) {
    load_relaxed_words<2>(&value, address, when);
}
inline void load_relaxed_gpu_u32(u32& value, const void* address, bool when) {
    load_relaxed_words<1>(&value, address, when);
}
inline void store_relaxed_gpu_u32(u32* address, u32 value) { machine::hold(address, &value, sizeof value); }

inline void multiply_add_16x8x16(float (&sums)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    const u32 a[4] = {a0, a1, a2, a3};
    machine::multiply_rows(sums, a, b0, b1);
}

// Barriers at which some threads only arrive.
struct Meeting {
    u32 arrived = 0, phase = 0;
};
inline Meeting meetings[64][16];

inline void barrier_arrive(u32 barrier, u32 threads) {
    Meeting& meeting = meetings[blockIdx.x][barrier];
    if (++meeting.arrived == threads) meeting.arrived = 0, ++meeting.phase;
}

inline void barrier_wait(u32 barrier, u32 threads) {
    Meeting& meeting = meetings[blockIdx.x][barrier];
    const u32 phase = meeting.phase;
    barrier_arrive(barrier, threads);
    while (meeting.phase == phase) {
        machine::nap();
        machine::load_acquire(reinterpret_cast<const int*>(&meeting.phase));
    }
}
