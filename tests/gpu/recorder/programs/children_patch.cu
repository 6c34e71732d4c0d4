// Reports, for each thread block that enters and for threads that exit, their grid and whose callback data they got.
#include <sanitizer_patching.h>

#include "children_probe.h"

static __device__ void note(Buffer* buffer, uint64_t pc, uint32_t left) {
    uint64_t grid;
    asm volatile("mov.u64 %0, %%gridid;" : "=l"(grid));
    unsigned long long at = atomicAdd(buffer->count, 1ull);
    if (at < buffer->capacity) buffer->seen[at] = {grid, pc, buffer->source, blockIdx.x, gridDim.x, left, 0};
}

extern "C" __device__ __noinline__ SanitizerPatchResult probe_enter(void* data, uint64_t pc) {
    if (data != nullptr && threadIdx.x == 0) note(static_cast<Buffer*>(data), pc, 0);
    return SANITIZER_PATCH_SUCCESS;
}

extern "C" __device__ __noinline__ SanitizerPatchResult probe_exit(void* data, uint64_t pc) {
    uint32_t leaving = __activemask(), lane = threadIdx.x % 32;
    if (data != nullptr && lane == __ffs(leaving) - 1u) note(static_cast<Buffer*>(data), pc, __popc(leaving));
    return SANITIZER_PATCH_SUCCESS;
}
