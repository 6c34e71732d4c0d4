// When to record: regions that the program marks, NVTX ranges, and CUDA graphs that are made meanwhile.
#include <algorithm>
#include <array>

#include "log.h"
#include "recorder.h"
#include "waiting.h"

namespace tileprof {

namespace {

constexpr std::array kCaptureBegins = {
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture,        SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_ptsz,
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_v2,     SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_v2_ptsz,
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCaptureToGraph, SANITIZER_CBID_DRIVER_API_cuStreamBeginCaptureToGraph_ptsz,
};

}  // namespace

bool is_capture_begin(uint32_t cbid) {
    return std::find(kCaptureBegins.begin(), kCaptureBegins.end(), cbid) != kCaptureBegins.end();
}

bool is_capture_end(uint32_t cbid) {
    return cbid == SANITIZER_CBID_DRIVER_API_cuStreamEndCapture ||
           cbid == SANITIZER_CBID_DRIVER_API_cuStreamEndCapture_ptsz;
}

// Waits for all that runs in every context that has code.
void Recorder::rest() {
    std::set<CUcontext> contexts;
    for (const auto& [handle, module] : modules_) contexts.insert(module.context);
    for (CUcontext context : contexts) {
        Inside inside(context);
        CUresult result = api.cuCtxSynchronize();
        if (result != CUDA_SUCCESS)
            complain("waiting before code is patched: the driver says %d", static_cast<int>(result));
    }
}

void Recorder::start_regions() {
    region_ = options.capturing;
    only_in_regions_ = !region_;
    options.capturing = wanted();
    started_ = true;
    if (!options.patch_in_ranges) return;
    auto follow_call = [&](Sanitizer_CallbackId id) {
        check(api.sanitizerEnableCallback(1, subscriber_, SANITIZER_CB_DOMAIN_DRIVER_API, id), "enabling callbacks");
    };
    for (Sanitizer_CallbackId id : kCaptureBegins) follow_call(id);
    follow_call(SANITIZER_CBID_DRIVER_API_cuStreamEndCapture);
    follow_call(SANITIZER_CBID_DRIVER_API_cuStreamEndCapture_ptsz);
}

// Each limit narrows what the others leave: with NVTX ranges, regions count only where they were asked for.
bool Recorder::wanted() const {
    if (!options.nvtx) return region_;
    return open_ranges_ > 0 && (region_ || !only_in_regions_);
}

void Recorder::follow() {
    if (wanted() != options.capturing) record(wanted());
}

void Recorder::range(int change) {
    Hold hold;
    open_ranges_ += change;
    if (started_ && !finished) follow();
}

// Where code is patched and unpatched with regions, the context has to be idle, and waiting for it would break the
// capture of a graph. Nothing runs that is captured: what a region has changed takes effect when the graph is made.
void Recorder::stream_captured(uint32_t cbid, const Sanitizer_CallbackData& data) {
    if (data.callbackSite != SANITIZER_API_EXIT) return;
    CUresult result =
        data.functionReturnValue == nullptr ? CUDA_SUCCESS : *static_cast<const CUresult*>(data.functionReturnValue);
    CUstream stream = *static_cast<const CUstream*>(data.functionParams);  // the first argument of all of them
    if (is_capture_begin(cbid)) {
        if (result == CUDA_SUCCESS) graph_streams_.insert(stream);
        return;
    }
    if (result == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) return;  // it goes on
    graph_streams_.erase(stream);
    if (graph_streams_.empty()) follow();
}

}  // namespace tileprof
