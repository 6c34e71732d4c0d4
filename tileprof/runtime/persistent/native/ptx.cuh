// One function per PTX instruction that the persistent kernel uses, named operation_order_scope_type.
#pragma once

using u32 = unsigned int;
using u64 = unsigned long long;
using s32 = int;

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ u64 globaltimer() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

__device__ __forceinline__ void nanosleep(u32 duration_ns) {
    asm volatile("nanosleep.u32 %0;" ::"r"(duration_ns) : "memory");
}

__device__ __forceinline__ void prefetch_global_l1(const void* address) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
}

// Semaphores and the record of a wait that timed out.

__device__ __forceinline__ s32 load_acquire_gpu_s32(const s32* address) {
    s32 value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

__device__ __forceinline__ s32 load_relaxed_gpu_s32(const s32* address) {
    s32 value;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

__device__ __forceinline__ void add_release_gpu_s32(s32* address, s32 value) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ s32 fetch_add_acq_rel_gpu_s32(s32* address, s32 value) {
    s32 before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(address), "r"(value) : "memory");
    return before;
}

__device__ __forceinline__ s32 fetch_add_relaxed_gpu_s32(s32* address, s32 value) {
    s32 before;
    asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(address), "r"(value) : "memory");
    return before;
}

__device__ __forceinline__ void store_release_gpu_s32(s32* address, s32 value) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ s32 compare_and_swap_relaxed_gpu_s32(s32* address, s32 expected, s32 value) {
    s32 before;
    asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(before)
                 : "l"(address), "r"(expected), "r"(value)
                 : "memory");
    return before;
}

// Memory of the CPU, which one of its threads reads and writes at the same time.

__device__ __forceinline__ u64 load_acquire_sys_u64(const u64* address) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

__device__ __forceinline__ void store_release_sys_u64(u64* address, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed_sys_u64(u64* address, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

// Orders ordinary accesses to global memory and those of TMA, in the thread that made the former or makes the latter.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// The same for shared memory of the block.
__device__ __forceinline__ void fence_proxy_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The next kernel of the stream may start its blocks where blocks of this one have ended; it must not access memory
// before the wait, which lasts until this kernel has ended. Without a programmatic launch both have no effect.

__device__ __forceinline__ void grid_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Clusters. All threads of all blocks meet in cluster_barrier.

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ u32 map_shared_rank(u32 address, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

// Stores into the shared memory of another block, whose barrier then counts the bytes.
__device__ __forceinline__ void store_async_cluster_f32x4(u32 address, const float4& v, u32 barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            address),
        "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
        : "memory");
}

__device__ __forceinline__ void store_shared_f32x4(u32 address, const float4& v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

__device__ __forceinline__ float4 load_shared_f32x4(u32 address) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

// A load from L2, where other blocks have stored.
__device__ __forceinline__ float4 load_global_f32x4(const void* address) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
}

__device__ __forceinline__ void store_global_f32x4(void* address, const float4& v) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

__device__ __forceinline__ u32 load_global_u32(const void* address) {
    u32 value;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

__device__ __forceinline__ uint4 load_global_u32x4(const void* address) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
}

__device__ __forceinline__ void store_global_u32(void* address, u32 value) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_global_u32x2(void* address, u32 x, u32 y) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void store_global_u32x4(void* address, const uint4& v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

__device__ __forceinline__ void store_shared_f32x2(u32 address, const float2& v) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}

__device__ __forceinline__ float2 load_shared_f32x2(u32 address) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ void store_shared_u32x4(u32 address, const uint4& v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

__device__ __forceinline__ uint4 load_shared_u32x4(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

// Four squares of eight by eight halves, as wgmma leaves them; lane l gives the address of row l % 8 of square l / 8.
__device__ __forceinline__ void store_matrices_shared(u32 address, const u32 (&squares)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(squares[0]),
                 "r"(squares[1]), "r"(squares[2]), "r"(squares[3])
                 : "memory");
}

// Four squares of eight by eight halves: lane l addresses row l % 8 of square l / 8, and gets elements (2 * (l % 4),
// +1) of row l / 4 of each.
__device__ __forceinline__ void load_matrices_shared(u32 address, u32 (&squares)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(squares[0]), "=r"(squares[1]), "=r"(squares[2]), "=r"(squares[3])
                 : "r"(address)
                 : "memory");
}

// The same for the squares' transposes.
__device__ __forceinline__ void load_matrices_transposed_shared(u32 address, u32 (&squares)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(squares[0]), "=r"(squares[1]), "=r"(squares[2]), "=r"(squares[3])
                 : "r"(address)
                 : "memory");
}

// sums += a b: sixteen rows, eight columns, sixteen of k.
__device__ __forceinline__ void multiply_m16n8k16(float (&sums)[4], const u32 (&a)[4], u32 b_low, u32 b_high) {
#if BFLOAT16
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}

// The value of the lane whose number differs in the bits of `mask`.
__device__ __forceinline__ float exchange_xor(float value, u32 mask) {
    return __shfl_xor_sync(0xFFFFFFFF, value, mask);
}

// A word of shared memory that one thread increments and others read.

__device__ __forceinline__ u32 load_acquire_cta_shared_u32(u32 address) {
    u32 value;
    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ void store_release_cta_shared_u32(u32 address, u32 value) {
    asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_shared_s32(u32 address, s32 value) {
    asm volatile("st.volatile.shared.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ s32 load_shared_s32(u32 address) {
    s32 value;
    asm volatile("ld.volatile.shared.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

// A word of a block of the cluster, addressed by map_shared_rank, to be followed by a release on a barrier.
__device__ __forceinline__ void store_shared_cluster_s32(u32 address, s32 value) {
    asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// Barriers in shared memory.

__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void fence_mbarrier_init_release_cluster() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive_release_cta(u32 barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The barrier of any block of the cluster, addressed by map_shared_rank. The arrival orders no stores: it says that
// memory whose contents have been used may be overwritten. (A release for the cluster costs a microsecond, because it
// also waits for the thread's stores to global memory.)
__device__ __forceinline__ void mbarrier_arrive_relaxed_cluster(u32 barrier) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_release_cluster(u32 barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect_release_cta(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ bool mbarrier_try_wait_acquire_cta(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n\t.reg .pred done;\n\t"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, done;\n\t}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

__device__ __forceinline__ bool mbarrier_try_wait_acquire_cluster(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n\t.reg .pred done;\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, done;\n\t}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

// Tensor memory accelerator: copies a box of a tensor into shared memory, with zeros beyond its edges.

struct alignas(64) TensorMap {
    u64 words[16];
};

// Copies contiguous bytes, at least sixteen; both addresses are multiples of sixteen.
__device__ __forceinline__ void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier, u64 hint) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(hint)
        : "memory");
}

// The same for bytes that other blocks have written.
__device__ __forceinline__ void copy_bulk_written(u32 to, const void* from, u32 bytes, u32 barrier, u64 hint) {
    copy_bulk(to, from, bytes, barrier, hint);
}

enum : u64 { EVICT_NORMAL = 0x1000000000000000, EVICT_FIRST = 0x12F0000000000000 };

__device__ __forceinline__ void prefetch_tensormap(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void copy_tensor_3d(u32 to, const TensorMap* map, u32 barrier, s32 x, s32 y, s32 z,
                                               u64 hint) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(hint)
        : "memory");
}

// Copies to the same place of every block of the cluster whose bit is set, and signals the same barrier of each.
__device__ __forceinline__ void copy_tensor_3d_multicast(u32 to, const TensorMap* map, u32 barrier, s32 x, s32 y, s32 z,
                                                         unsigned short blocks, u64 hint) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks), "l"(hint)
        : "memory");
}

__device__ __forceinline__ void copy_tensor_4d(u32 to, const TensorMap* map, u32 barrier, s32 x, s32 y, s32 z, s32 w,
                                               u64 hint) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "l"(hint)
        : "memory");
}

// Warpgroups.

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// sums += a b: 64 rows of a warpgroup, sixteen in the registers of each warp as those of `multiply_m16n8k16`, 64
// columns, sixteen of k. The rows of b's memory run along its columns.
__device__ __forceinline__ void multiply_m64n64k16(float (&sums)[32], const u32 (&a)[4], u64 b) {
    asm volatile(
#if BFLOAT16
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
#else
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
#endif
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]),
          "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]),
          "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]),
          "+f"(sums[26]), "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <int REGISTERS>
__device__ __forceinline__ void registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int BARRIER, int THREADS>
__device__ __forceinline__ void barrier_sync() {
    asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(THREADS) : "memory");
}

// 2 to the power of x. Volatile keeps the order of a tile's values, which would otherwise all be computed at once and
// spilled.
__device__ __forceinline__ float power_of_two(float x) {
    float power;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// Halves.

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 two;
#if BFLOAT16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
#endif
    return two;
}

__device__ __forceinline__ float unpack(unsigned short half) {
#if BFLOAT16
    return __uint_as_float(static_cast<u32>(half) << 16);
#else
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
#endif
}
