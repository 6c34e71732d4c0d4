// The device side: the functions that run inside the recorded kernels. Compiled with nvcc --compile-as-tools-patch,
// which allows no shared memory and few registers.
#include <sanitizer_patching.h>

#include "patches/accesses.cuh"
#include "patches/blocks.cuh"
#include "patches/tensor_maps.cuh"

using namespace tileprof;

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

__device__ __noinline__ SanitizerPatchResult tileprof_block_exit(void* data, uint64_t pc) {
    Header* h = static_cast<Header*>(data);
    uint32_t leaving = __activemask();  // once: lanes may diverge from here on
    if (h == nullptr || h->launch == kKeepAll || lane_id() != __ffs(leaving) - 1u) return SANITIZER_PATCH_SUCCESS;
    exit_block(h, pc, __popc(leaving));
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
