// The device side: the functions that run inside the recorded kernels. Compiled with nvcc --compile-as-tools-patch,
// which allows no shared memory and few registers.
#include <sanitizer_patching.h>

#include "patches/accesses.cuh"
#include "patches/tensor_maps.cuh"

using namespace tileprof;

namespace {

// The last threads of a graph's node advance the header to the next node. BLOCK_EXIT is called by all threads of a
// grid, but not by all lanes of a warp at once if they leave at different times (seen with 13.4.92: reductions,
// cuBLAS products), so threads are counted. No count is lost: if some threads leave unseen, or nodes overlap,
// `exited` does not end at 0 or `generation` not at the number of nodes, and the reader does not tell the nodes
// apart.
__device__ void end_threads(Header* h, unsigned long long leaving) {
    uint64_t blocks = static_cast<uint64_t>(gridDim.x) * gridDim.y * gridDim.z;
    uint64_t all = blocks * (blockDim.x * blockDim.y * blockDim.z);
    if (atomicAdd(&h->exited, leaving) + leaving != all) return;
    atomicAdd(&h->exited, 0ull - all);
    if (load_relaxed_gpu(&h->generation) < kLastGeneration) atomicAdd(&h->generation, 1u);
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
    if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
        uint64_t now = globaltimer();
        uint32_t block = linear_block();
        uint64_t at = append_one(h);
        if (at != kFull) {
            uint64_t key = key_of(h, kBlock, pc >> 4 << kSmBits | sm_id());
            write_entry(h, at, key, block, static_cast<uint32_t>(now), static_cast<uint32_t>(now >> 32), 0, 0);
            store_relaxed_gpu(h->table + slot_of(h, key_of(h, kBlock, 0), block), slot_value(h, at));
        }
    }
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_block_exit(void* data, uint64_t) {
    Header* h = static_cast<Header*>(data);
    uint32_t leaving = __activemask();  // once: lanes may diverge from here on
    if (h == nullptr || h->launch == kKeepAll || lane_id() != __ffs(leaving) - 1u) return SANITIZER_PATCH_SUCCESS;
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
    if (h->in_graph) end_threads(h, __popc(leaving));
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_access(void* data, uint64_t, void* address, uint32_t bytes,
                                                             uint32_t flags, const void*) {
    Header* h = static_cast<Header*>(data);
    if (h == nullptr || (flags & SANITIZER_MEMORY_DEVICE_FLAG_PREFETCH) != 0) return SANITIZER_PATCH_SUCCESS;
    HotFields hot = hot_fields(h);
    if (hot.launch == kKeepAll) return SANITIZER_PATCH_SUCCESS;
    constexpr uint32_t kBoth = SANITIZER_MEMORY_DEVICE_FLAG_READ | SANITIZER_MEMORY_DEVICE_FLAG_WRITE;
    constexpr uint32_t kUpdate = SANITIZER_MEMORY_DEVICE_FLAG_ATOMSYS | SANITIZER_MEMORY_DEVICE_FLAG_ATOMIC_WRITE_ONLY;
    uint32_t mode = (flags & kBoth) == kBoth || (flags & kUpdate) != 0  ? kAtomic
                    : (flags & SANITIZER_MEMORY_DEVICE_FLAG_WRITE) != 0 ? kWrite
                                                                        : kRead;
    touch(h, hot, reinterpret_cast<uint64_t>(address), bytes, mode);
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_copy_async(void* data, uint64_t, void* from, uint32_t,
                                                                 uint32_t bytes) {
    Header* h = static_cast<Header*>(data);
    if (h == nullptr || from == nullptr) return SANITIZER_PATCH_SUCCESS;
    HotFields hot = hot_fields(h);
    if (hot.launch != kKeepAll) touch(h, hot, reinterpret_cast<uint64_t>(from), bytes, kRead);
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
    HotFields hot = hot_fields(h);
    if (hot.launch == kKeepAll) return SANITIZER_PATCH_SUCCESS;
    if (hot.filter_hashes != 0) fill_filter_of_reads(h);
    if (hot.filters_only) return SANITIZER_PATCH_SUCCESS;
    uint32_t block = linear_block();
    uint64_t at, generation = 0, name = map;
    if (hot.in_graph) {
        generation = load_relaxed_gpu(&h->generation);
        name = record_map(h, map);
        at = append(h, 2);
    } else {
        Fact* slot = hot.facts + fact_slot(hot.launch, 0, map >> kMapAlignBits);
        Fact map_fact = load_fact(slot);
        at = append_two(h, hot, block, threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
        if (!is_known_map(map_fact, map, hot.launch)) {
            name = record_map(h, map);
            if (name == map) store_fact(slot, known_map(map, hot.launch));
        }
    }
    if (at == kFull) return SANITIZER_PATCH_SUCCESS;
    uint32_t flags = (dims & kTensorDims) | load_mode << kTensorModeShift | (multicast ? kTensorMulticast : 0);
    write_entry(hot, at, key_of(kTensor, generation, map), block, c0, c1, c2, c3);
    write_entry(hot, at + 1, key_of(kTensorTail, generation, name), block, c4, mask_and_im2col, flags,
                static_cast<uint32_t>(globaltimer()));
    return SANITIZER_PATCH_SUCCESS;
}

}  // extern "C"
