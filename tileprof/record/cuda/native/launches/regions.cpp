#include "launches/regions.h"

#include <array>

#include "log/events.h"
#include "log/log.h"
#include "driver/waiting.h"

namespace tileprof {

namespace {

constexpr std::array kCaptureBegins = {
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture,        SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_ptsz,
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_v2,     SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_v2_ptsz,
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCaptureToGraph, SANITIZER_CBID_DRIVER_API_cuStreamBeginCaptureToGraph_ptsz,
};
constexpr std::array kCaptureEnds = {SANITIZER_CBID_DRIVER_API_cuStreamEndCapture,
                                     SANITIZER_CBID_DRIVER_API_cuStreamEndCapture_ptsz};

}  // namespace

void Regions::start() {
    in_region_ = options_.capturing;
    only_in_regions_ = !in_region_;
    options_.capturing = wanted();
    started_ = true;
    if (!options_.patch_in_ranges) return;
    callbacks_.follow_calls(kCaptureBegins);
    callbacks_.follow_calls(kCaptureEnds);
}

// All limits apply together: with NVTX ranges, regions count only if they were requested.
bool Regions::wanted() const {
    if (paused_) return false;
    if (!options_.nvtx) return in_region_;
    return open_ranges_ > 0 && (in_region_ || !only_in_regions_);
}

void Regions::follow() {
    if (wanted() != options_.capturing) record(wanted());
}

void Regions::mark(bool on) {
    in_region_ = on;
    options_.nvtx ? follow() : record(on);
}

void Regions::pause(bool on) {
    paused_ = on;
    if (started_) follow();
}

void Regions::range(int change) {
    open_ranges_ += change;
    if (started_) follow();
}

void Regions::record(bool on) {
    if (options_.patch_in_ranges && !graph_streams_.empty()) return;  // done later, when the graph is made
    events::capture(on);
    if (options_.capturing == on) return;
    options_.capturing = on;
    if (!options_.patch_in_ranges) return;
    // a region does not change during a launching call, unless a call does not end in time
    ClosedGate closed_gate(options_.wait_ns);
    on = options_.capturing;  // other threads may have changed this meanwhile
    ContextGuard inside(modules_.any_context());  // the thread may have no current context
    modules_.wait_for_contexts();  // no code runs while it changes
    if (on) callbacks_.follow_work(true);
    modules_.follow_regions();
    if (!on) {
        arenas_.drain();
        log_.flush();
        callbacks_.follow_work(false);
    }
}

// If code is patched and unpatched with regions, the context has to be idle, and waiting for it would break the
// capture of a graph. Captured work does not run yet: the change of a region takes effect when the graph is made.
bool Regions::api_call(uint32_t cbid, const Sanitizer_CallbackData& data) {
    bool begins = is_one_of(cbid, kCaptureBegins);
    if (!begins && !is_one_of(cbid, kCaptureEnds)) return false;
    if (data.callbackSite != SANITIZER_API_EXIT) return true;
    CUresult result =
        data.functionReturnValue == nullptr ? CUDA_SUCCESS : *static_cast<const CUresult*>(data.functionReturnValue);
    CUstream stream = *static_cast<const CUstream*>(data.functionParams);  // the first argument of all of them
    if (begins) {
        if (result == CUDA_SUCCESS) graph_streams_.insert(stream);
    } else if (result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) {  // the mode with which the thread continues
        graph_streams_.erase(stream);
        if (graph_streams_.empty()) follow();
    }
    return true;
}

}  // namespace tileprof
