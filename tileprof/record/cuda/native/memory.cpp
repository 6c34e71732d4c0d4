// A program that runs out of device memory, of which the recorder itself holds some.
#include <algorithm>
#include <array>

#include "log.h"
#include "recorder.h"

namespace tileprof {

namespace {

constexpr std::array kAllocations = {
    SANITIZER_CBID_DRIVER_API_cuMemAlloc_v2,      SANITIZER_CBID_DRIVER_API_cuMemAllocPitch_v2,
    SANITIZER_CBID_DRIVER_API_cuMemAllocManaged,  SANITIZER_CBID_DRIVER_API_cuMemCreate,
    SANITIZER_CBID_DRIVER_API_cuMemAllocAsync,    SANITIZER_CBID_DRIVER_API_cuMemAllocAsync_ptsz,
    SANITIZER_CBID_DRIVER_API_cuMemAllocFromPoolAsync, SANITIZER_CBID_DRIVER_API_cuMemAllocFromPoolAsync_ptsz,
};

}  // namespace

bool is_allocation(uint32_t cbid) { return std::find(kAllocations.begin(), kAllocations.end(), cbid) != kAllocations.end(); }

void Recorder::follow_allocations() {
    for (Sanitizer_CallbackId id : kAllocations)
        check(api.sanitizerEnableCallback(1, subscriber_, SANITIZER_CB_DOMAIN_DRIVER_API, id), "enabling callbacks");
}

// Frameworks that cache memory give it back then and try again: the program may go on well.
void Recorder::allocated(const Sanitizer_CallbackData& data) {
    if (told_of_memory_ || data.callbackSite != SANITIZER_API_EXIT || data.functionReturnValue == nullptr) return;
    if (*static_cast<const CUresult*>(data.functionReturnValue) != CUDA_ERROR_OUT_OF_MEMORY) return;
    told_of_memory_ = true;
    complain("the GPU was out of memory when the program asked for some; of it, %llu MiB are the recorder's. If the program runs "
             "without a recorder, make that less with --arena",
             static_cast<unsigned long long>(arenas_.empty() ? 0 : options.arena_bytes >> 20));
}

}  // namespace tileprof
