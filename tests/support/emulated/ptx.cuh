// Replaces the kernel's own ptx.cuh: the same functions, on the machine of machine.h.
#pragma once

using u32 = unsigned int;
using u64 = unsigned long long;
using s32 = int;

struct alignas(64) TensorMap {
    u64 words[16];
};

enum : u64 { EVICT_NORMAL = 0x1000000000000000, EVICT_FIRST = 0x12F0000000000000 };

inline u32 shared_address(const void*) { return machine::SHARED_BEGIN; }
inline u64 globaltimer() { return machine::clock(); }
inline void nanosleep(u32) { machine::nap(); }
inline void prefetch_global_l1(const void*) {}
inline void prefetch_tensormap(const TensorMap*) {}
inline void grid_launch_dependents() { machine::trigger_launch(); }
inline void grid_wait() { machine::wait_for_launch(); }
inline void fence_mbarrier_init_release_cluster() {}
inline void wgmma_fence() {}
template <int>
void registers_give() {}
template <int>
void registers_take() {}

inline s32 load_acquire_gpu_s32(const s32* address) { return machine::load_acquire(address); }
inline s32 load_relaxed_gpu_s32(const s32* address) { return *address; }
inline void add_release_gpu_s32(s32* address, s32 value) { machine::add_release(address, value); }
inline s32 fetch_add_acq_rel_gpu_s32(s32* address, s32 value) { return machine::add_release(address, value); }
inline s32 fetch_add_relaxed_gpu_s32(s32* address, s32 value) { return machine::add_relaxed(address, value); }
inline void store_release_gpu_s32(s32* address, s32 value) { machine::store_release(address, value); }
inline u64 load_acquire_sys_u64(const u64* address) {
    return machine::load_acquire_outside(reinterpret_cast<const machine::u64*>(address));
}
inline void store_release_sys_u64(u64* address, u64 value) {
    machine::store_release_outside(reinterpret_cast<machine::u64*>(address), value);
}
inline void store_relaxed_sys_u64(u64* address, u64 value) {
    machine::store_relaxed_outside(reinterpret_cast<machine::u64*>(address), value);
}
inline s32 compare_and_swap_relaxed_gpu_s32(s32* address, s32 expected, s32 value) {
    const s32 before = *address;
    if (before == expected) *address = value;
    return before;
}
inline void fence_proxy_async_global() { machine::fence_proxy(); }
inline void fence_proxy_async_shared() {}  // the machine copies into slots at once, whichever thread wrote them before

inline u32 cluster_rank() { return machine::rank(); }
inline void cluster_barrier() { machine::sync_cluster(); }
inline u32 map_shared_rank(u32 address, u32 rank) { return machine::map_rank(address, rank); }

template <class To, class From>
To same_bits(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(static_cast<void*>(&to), &from, sizeof to);
    return to;
}

template <class T>
T load_shared(u32 address) {
    T value;
    memcpy(static_cast<void*>(&value), machine::shared(address, sizeof value), sizeof value);
    return value;
}

template <class T>
void store_shared(u32 address, const T& value) {
    memcpy(machine::shared(address, sizeof value), &value, sizeof value);
}

inline void store_async_cluster_f32x4(u32 address, const float4& v, u32 barrier) {
    machine::store_async(address, same_bits<machine::Chunk>(v), barrier);
}
inline void store_shared_f32x4(u32 address, const float4& v) { store_shared(address, v); }
inline float4 load_shared_f32x4(u32 address) { return load_shared<float4>(address); }
inline void store_shared_u32x4(u32 address, const uint4& v) { store_shared(address, v); }
inline uint4 load_shared_u32x4(u32 address) { return load_shared<uint4>(address); }
inline void store_shared_s32(u32 address, s32 value) { store_shared(address, value); }
inline s32 load_shared_s32(u32 address) {
    machine::learn_of_others();
    return load_shared<s32>(address);
}
inline float4 load_global_f32x4(const void* address) {
    float4 v;
    memcpy(&v, address, sizeof v);
    return v;
}
inline void store_global_f32x4(void* address, const float4& v) { machine::hold(address, &v, sizeof v); }
inline u32 load_global_u32(const void* address) {
    u32 value;
    memcpy(&value, address, sizeof value);
    return value;
}
inline uint4 load_global_u32x4(const void* address) {
    uint4 v;
    memcpy(static_cast<void*>(&v), address, sizeof v);
    return v;
}
inline void store_global_u32x2(void* address, u32 x, u32 y) {
    const u32 two[2] = {x, y};
    machine::hold(address, two, sizeof two);
}
inline void store_global_u32x4(void* address, const uint4& v) { machine::hold(address, &v, sizeof v); }
inline void store_shared_f32x2(u32 address, const float2& v) { store_shared(address, v); }
inline float2 load_shared_f32x2(u32 address) { return load_shared<float2>(address); }
inline void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier, u64) {
    machine::load_bulk(to, from, bytes, barrier, false);
}
inline void copy_bulk_written(u32 to, const void* from, u32 bytes, u32 barrier, u64) {
    machine::load_bulk(to, from, bytes, barrier, true);
}
inline void store_global_u32(void* address, u32 value) {
    machine::hold(address, &value, sizeof value);
}  // for assignments, see kernel_on_cpu.py
inline void store_matrices_shared(u32 address, const u32 (&squares)[4]) { machine::store_matrices(address, squares); }
inline void load_matrices_shared(u32 address, u32 (&squares)[4]) { machine::load_matrices(address, false, squares); }
inline void load_matrices_transposed_shared(u32 address, u32 (&squares)[4]) {
    machine::load_matrices(address, true, squares);
}
inline void multiply_m16n8k16(float (&sums)[4], const u32 (&a)[4], u32 b_low, u32 b_high) {
    machine::multiply_rows(sums, a, b_low, b_high);
}
inline float exchange_xor(float value, u32 mask) { return machine::exchange(value, mask); }
inline u32 load_acquire_cta_shared_u32(u32 address) { return machine::load_word(address); }
inline void store_release_cta_shared_u32(u32 address, u32 value) { machine::store_word(address, value); }

inline void mbarrier_init(u32 barrier, u32 arrivals) { machine::barrier_init(barrier, arrivals); }
inline void mbarrier_arrive_release_cta(u32 barrier) { machine::barrier_arrive(barrier, 0, true); }
inline void store_shared_cluster_s32(u32 address, s32 value) { store_shared(address, value); }
inline void mbarrier_arrive_release_cluster(u32 barrier) { machine::barrier_arrive(barrier, 0, true); }
inline void mbarrier_arrive_relaxed_cluster(u32 barrier) { machine::barrier_arrive(barrier, 0, false); }
inline void mbarrier_arrive_expect_release_cta(u32 barrier, u32 bytes) {
    machine::barrier_arrive(barrier, bytes, true);
}
inline bool mbarrier_try_wait_acquire_cta(u32 barrier, u32 parity) { return machine::barrier_wait(barrier, parity); }
inline bool mbarrier_try_wait_acquire_cluster(u32 barrier, u32 parity) {
    return machine::barrier_wait(barrier, parity);
}

// Only weights, which no thread writes, are loaded in three dimensions.
inline void copy_tensor_3d_multicast(u32 to, const TensorMap* map, u32 barrier, s32 x, s32 y, s32 z,
                                     unsigned short blocks, u64) {
    machine::load_tensor(to, same_bits<machine::Map>(*map), barrier, {x, y, z, 0}, blocks, false);
}
inline void copy_tensor_3d(u32 to, const TensorMap* map, u32 barrier, s32 x, s32 y, s32 z, u64 hint) {
    copy_tensor_3d_multicast(to, map, barrier, x, y, z, 1u << machine::rank(), hint);
}
inline void copy_tensor_4d(u32 to, const TensorMap* map, u32 barrier, s32 x, s32 y, s32 z, s32 w, u64) {
    machine::load_tensor(to, same_bits<machine::Map>(*map), barrier, {x, y, z, w}, 1u << machine::rank(), true);
}

inline void multiply_m64n64k16(float (&sums)[32], const u32 (&a)[4], u64 b) { machine::multiply_registers(sums, a, b); }
inline void wgmma_commit() { machine::commit(); }
template <int PENDING>
void wgmma_wait() {
    machine::wait_groups(PENDING);
}
template <int BARRIER, int THREADS>
void barrier_sync() {
    machine::sync_block(BARRIER, THREADS);
}

inline float power_of_two(float x) { return exp2f(x); }

#if BFLOAT16
inline u32 to_bits(float value) {
    u32 bits;
    memcpy(&bits, &value, sizeof bits);
    return value != value ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
inline float unpack(unsigned short half) { return __uint_as_float(static_cast<u32>(half) << 16); }
#else
inline u32 to_bits(float value) { return machine::to_half(value); }
inline float unpack(unsigned short half) { return machine::from_half(half); }
#endif
inline u32 pack(float low, float high) { return to_bits(low) | to_bits(high) << 16; }
