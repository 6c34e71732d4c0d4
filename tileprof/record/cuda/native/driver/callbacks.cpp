#include "driver/callbacks.h"

#include <array>

#include "memory/array_copies.h"
#include "memory/stream_operations.h"

namespace tileprof {

namespace {

constexpr std::array kLaunches = {
    SANITIZER_CBID_DRIVER_API_cuLaunchKernel,
    SANITIZER_CBID_DRIVER_API_cuLaunchKernel_ptsz,
    SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx,
    SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx_ptsz,
    SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel,
    SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel_ptsz,
    SANITIZER_CBID_DRIVER_API_cuGraphLaunch,
    SANITIZER_CBID_DRIVER_API_cuGraphLaunch_ptsz,
};

}  // namespace

std::string Callbacks::subscribe(Sanitizer_CallbackFunc callback) {
    SanitizerResult result = api.sanitizerSubscribe(&subscriber_, callback, nullptr);
    if (result == SANITIZER_ERROR_MAX_LIMIT_REACHED)
        return "another Compute Sanitizer tool is attached to this program";
    if (!check(result, "subscribing to Compute Sanitizer"))
        return std::string("Compute Sanitizer refused (") + text_of_result(result) +
               "): the driver may be too old for it, or the GPU unsupported";
    return "";
}

void Callbacks::follow_resources() {
    check(api.sanitizerEnableDomain(1, subscriber_, SANITIZER_CB_DOMAIN_RESOURCE), "enabling callbacks");
}

void Callbacks::follow_work(bool on) {
    for (Sanitizer_CallbackDomain domain :
         {SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CB_DOMAIN_MEMCPY, SANITIZER_CB_DOMAIN_MEMSET,
          SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CB_DOMAIN_SYNCHRONIZE})
        check(api.sanitizerEnableDomain(on, subscriber_, domain), "enabling callbacks");
    follow_calls(kLaunches, on);
    follow_calls(memory_operations(), on);
    follow_calls(array_copies(), on);
}

}  // namespace tileprof
