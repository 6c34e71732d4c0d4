// The device side: what runs inside the recorded kernels. Compiled with nvcc --compile-as-tools-patch, which
// allows neither shared memory nor many registers.
#include <sanitizer_patching.h>

#include "patches/accesses.cuh"
#include "patches/tensor_maps.cuh"

using namespace tileprof;

namespace {

// The last threads of a graph's node make place for the next node. BLOCK_EXIT is called by all threads of a grid, but
// not by all lanes of a warp at once where they leave in turns (seen with 13.4.92: reductions, cuBLAS products), so
// threads are counted. No count is ever lost: should some leave unseen, or nodes overlap, then `exited` does not end at
// 0 or `generation` not at the number of nodes, and the reader tells no node from another.
__device__ void end_threads(Header* h, unsigned long long leaving) {
    uint64_t blocks = static_cast<uint64_t>(gridDim.x) * gridDim.y * gridDim.z;
    uint64_t all = blocks * (blockDim.x * blockDim.y * blockDim.z);
    if (atomicAdd(&h->exited, leaving) + leaving != all) return;
    atomicAdd(&h->exited, 0ull - all);
    if (load_relaxed_gpu(&h->generation) < kLastGeneration) atomicAdd(&h->generation, 1u);
}

// What one lane of a warp does is a function of its own: a function puts the registers that it needs to memory as it
// begins, for all lanes that are there.
__device__ __noinline__ void enter_block(Header* h, uint64_t pc) {
    uint64_t now = globaltimer();
    uint32_t block = linear_block();
    uint64_t at = append_one(h);
    if (at == kFull) return;
    uint64_t key = key_of(h, kBlock, pc >> 4 << kSmBits | sm_id());
    write_entry(h, at, key, block, static_cast<uint32_t>(now), static_cast<uint32_t>(now >> 32), 0, 0);
    store_relaxed_gpu(h->table + slot_of(h, key_of(h, kBlock, 0), block), slot_value(h, at));
}

// The first of `leaving` threads of a warp.
__device__ __noinline__ void exit_block(Header* h, uint32_t leaving) {
    uint64_t now = globaltimer();
    uint32_t block = linear_block();
    uint64_t key = key_of(h, kBlock, 0);
    const uint32_t* slot = h->table + slot_of(h, key, block);
    auto entered = [&](const uint4& is) {
        constexpr uint32_t kAbove = kGenerationShift - 32;  // kind and generation; the low bits differ
        return is.y >> kAbove == static_cast<uint32_t>(key >> kGenerationShift) && is.z == block && is.w == h->launch;
    };
    uint32_t slot_entry = load_weak(slot);
    bool has_entry = slot_entry != kClaimed && entered(load_weak_v4(h->arena + entry_in(h, slot_entry)));
    if (!has_entry) {
        slot_entry = load_relaxed_gpu(slot);
        has_entry = slot_entry != kClaimed && entered(load_relaxed_gpu_v4(h->arena + entry_in(h, slot_entry)));
    }
    if (has_entry) {
        atomicMax(reinterpret_cast<unsigned long long*>(&h->arena[entry_in(h, slot_entry)].payload[2]),
                  static_cast<unsigned long long>(now));
    } else {
        uint64_t to = append_one(h);
        if (to != kFull)
            write_entry(h, to, key_of(h, kExit, sm_id()), block, 0, 0, static_cast<uint32_t>(now),
                        static_cast<uint32_t>(now >> 32));
    }
    if (h->in_graph) end_threads(h, leaving);
}

// A load through a tensor map, by one lane.
struct TensorLoad {
    int32_t c0, c1, c2, c3, c4;
    uint32_t mask_and_im2col, flags;
};

__device__ __forceinline__ void write_head(Header* h, uint64_t at, uint64_t generation, uint64_t map,
                                           const TensorLoad& load) {
    write_entry(h, at, key_of(kTensor, generation, map), linear_block(), load.c0, load.c1, load.c2, load.c3);
}

__device__ __forceinline__ void write_tail(Header* h, uint64_t at, uint64_t generation, uint64_t name,
                                           const TensorLoad& load) {
    write_entry(h, at + 1, key_of(kTensorTail, generation, name), linear_block(), load.c4, load.mask_and_im2col,
                load.flags, static_cast<uint32_t>(globaltimer()));
}

__device__ __noinline__ void load_in_graph(Header* h, uint64_t map, TensorLoad load) {
    uint64_t generation = load_relaxed_gpu(&h->generation), name = record_map(h, map), at = append(h, 2);
    if (at == kFull) return;
    write_head(h, at, generation, map, load);
    write_tail(h, at, generation, name, load);
}

__device__ __noinline__ uint64_t record_unknown_map(Header* h, uint64_t map, Fact* slot) {
    uint64_t name = record_map(h, map);
    if (name == map) store_fact(slot, known_map(map, h->launch));
    return name;
}

// The head is written before it is known what the tail says: it needs the most registers.
__device__ __forceinline__ void load_through_map(Header* h, uint64_t map, TensorLoad load) {
    uint64_t at = append_two(h, threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
    if (at == kFull) return;
    write_head(h, at, 0, map, load);
    Fact* slot = h->facts + fact_slot(h->launch, 0, map >> kMapAlignBits);
    bool known = is_known_map(load_fact(slot), map, h->launch);
    write_tail(h, at, 0, known ? map : record_unknown_map(h, map, slot), load);
}

}  // namespace

extern "C" {

__device__ __noinline__ SanitizerPatchResult tileprof_nothing(void*, uint64_t) { return SANITIZER_PATCH_SUCCESS; }

__device__ __noinline__ SanitizerPatchResult tileprof_nothing_access(void*, uint64_t, void*, uint32_t, uint32_t,
                                                                     const void*) {
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_nothing_copy(void*, uint64_t, void*, uint32_t, uint32_t) {
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_nothing_tensor(void*, uint64_t, uint64_t, uint32_t, uint32_t,
                                                                     int32_t, int32_t, int32_t, int32_t, int32_t,
                                                                     uint32_t, uint32_t, uint32_t, uint32_t) {
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_block_enter(void* data, uint64_t pc) {
    Header* h = static_cast<Header*>(data);
    if (h == nullptr) return SANITIZER_PATCH_SUCCESS;
    if (h->end_bit != kKeepAll && ((linear_cluster() >> h->end_bit) & 1u) == h->end_value) return SANITIZER_PATCH_ERROR;
    if (h->launch == kKeepAll) return SANITIZER_PATCH_SUCCESS;
    if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) enter_block(h, pc);
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_block_exit(void* data, uint64_t) {
    Header* h = static_cast<Header*>(data);
    uint32_t leaving = __activemask();  // once: from here on lanes may part
    if (h != nullptr && h->launch != kKeepAll && lane_id() == __ffs(leaving) - 1u) exit_block(h, __popc(leaving));
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_access(void* data, uint64_t, void* address, uint32_t bytes,
                                                             uint32_t flags, const void*) {
    Header* h = static_cast<Header*>(data);
    if (h == nullptr || (flags & SANITIZER_MEMORY_DEVICE_FLAG_PREFETCH) != 0) return SANITIZER_PATCH_SUCCESS;
    constexpr uint32_t kBoth = SANITIZER_MEMORY_DEVICE_FLAG_READ | SANITIZER_MEMORY_DEVICE_FLAG_WRITE;
    constexpr uint32_t kUpdate = SANITIZER_MEMORY_DEVICE_FLAG_ATOMSYS | SANITIZER_MEMORY_DEVICE_FLAG_ATOMIC_WRITE_ONLY;
    uint32_t mode = (flags & kBoth) == kBoth || (flags & kUpdate) != 0  ? kAtomic
                    : (flags & SANITIZER_MEMORY_DEVICE_FLAG_WRITE) != 0 ? kWrite
                                                                        : kRead;
    touch(h, reinterpret_cast<uint64_t>(address), bytes, mode);
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_copy_async(void* data, uint64_t, void* from, uint32_t,
                                                                 uint32_t bytes) {
    Header* h = static_cast<Header*>(data);
    if (h != nullptr && from != nullptr) touch(h, reinterpret_cast<uint64_t>(from), bytes, kRead);
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_bulk_load(void* data, uint64_t, uint64_t from, uint32_t, uint32_t,
                                                                uint32_t mask_and_size, uint32_t) {
    Header* h = static_cast<Header*>(data);
    if (h != nullptr && h->launch != kKeepAll) bulk(h, from, (mask_and_size & 0xffff) * 16, kRead, 0);
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_bulk_store(void* data, uint64_t, uint64_t to, uint32_t,
                                                                 uint32_t mask_and_size, uint32_t has_mask) {
    Header* h = static_cast<Header*>(data);
    if (h != nullptr && h->launch != kKeepAll)
        bulk(h, to, (mask_and_size & 0xffff) * 16, kWrite, has_mask ? mask_and_size >> 16 : 0);
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_bulk_reduce(void* data, uint64_t, uint64_t to, uint32_t,
                                                                  uint32_t blocks) {
    Header* h = static_cast<Header*>(data);
    if (h != nullptr && h->launch != kKeepAll) bulk(h, to, (blocks & 0xffff) * 16, kAtomic, 0);
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_tensor_load(void* data, uint64_t, uint64_t map, uint32_t,
                                                                  uint32_t, int32_t c0, int32_t c1, int32_t c2,
                                                                  int32_t c3, int32_t c4, uint32_t dims,
                                                                  uint32_t multicast, uint32_t mask_and_im2col,
                                                                  uint32_t load_mode) {
    Header* h = static_cast<Header*>(data);
    // All lanes are called with the same arguments.
    if (h == nullptr || !elected()) return SANITIZER_PATCH_SUCCESS;
    EveryAccess fields = every_access(h);
    if (fields.launch == kKeepAll) return SANITIZER_PATCH_SUCCESS;
    TensorLoad load{c0,
                    c1,
                    c2,
                    c3,
                    c4,
                    mask_and_im2col,
                    (dims & kTensorDims) | load_mode << kTensorModeShift | (multicast ? kTensorMulticast : 0)};
    if (fields.slow) {
        if (h->filter_hashes != 0) fill_filter_of_reads(h);
        if (h->filters_only) return SANITIZER_PATCH_SUCCESS;
        if (h->in_graph) {
            load_in_graph(h, map, load);
            return SANITIZER_PATCH_SUCCESS;
        }
    }
    load_through_map(h, map, load);
    return SANITIZER_PATCH_SUCCESS;
}

}  // extern "C"
