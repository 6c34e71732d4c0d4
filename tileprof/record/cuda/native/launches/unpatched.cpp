#include "launches/unpatched.h"

#include <string.h>

#include <array>

#include "log/log.h"

namespace tileprof {

namespace {

constexpr std::array kGraphsBegin = {
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture,
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_ptsz,
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_v2,
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_v2_ptsz,
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCaptureToGraph,
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCaptureToGraph_ptsz,
    SANITIZER_CBID_DRIVER_API_cuGraphCreate,
};

// The parameters of the call that this thread makes, if its launch is proven.
struct Proven {
    bool holds = false;
    uint32_t kernel = 0;
    Geometry geometry{};
    std::vector<char> parameters;
    std::vector<uint32_t> pointers;  // words of them that are addresses in device memory
};
thread_local Proven proven_call;

}  // namespace

void Unpatched::start(Callbacks* callbacks) {
    if (!options_.leaves_unpatched()) return;
    modules_.leave_unpatched();
    callbacks->follow_calls(kGraphsBegin);
}

bool Unpatched::api_call(uint32_t cbid, const Sanitizer_CallbackData& data) {
    if (!options_.leaves_unpatched() || !is_one_of(cbid, kGraphsBegin)) return false;
    if (data.callbackSite == SANITIZER_API_ENTER) patch_all();
    return true;
}

bool Unpatched::proven(const Kernel& kernel, const Geometry& geometry) const {
    return proven_call.holds && proven_call.kernel == kernel.id &&
           memcmp(&geometry, &proven_call.geometry, sizeof geometry) == 0;
}

void Unpatched::forget() { proven_call = {}; }

void Unpatched::before(const LaunchingCall& call) {
    proven_call = {};
    if (!modules_.leaves_unpatched()) return;
    CUfunction function = nullptr;
    const Kernel* kernel = call.is_graph() ? nullptr : modules_.kernel_of(call.handle(), &function);
    if (kernel == nullptr) return patch_all();
    if (!modules_.is_left(kernel->module)) return;
    bool seen = options_.capturing && kernel->wanted && !kernel->aside;
    if (!seen && !kernel->code.stores_through_maps()) return;
    if (!follows(call, *kernel, function)) patch(kernel->module);
}

bool Unpatched::follows(const LaunchingCall& call, const Kernel& kernel, CUfunction function) {
    if (!kernel.scanned || !call.is_plain() || call.is_cooperative()) return false;
    std::vector<char> parameters = call.parameters(function);
    if (parameters.size() < kernel.code.parameter_bytes) return false;  // the driver does not tell them
    parameters.resize(kernel.code.parameter_bytes);
    std::vector<bool> pointers((parameters.size() + 7) / 8);
    for (size_t i = 0; i < parameters.size() / 8; ++i) {
        uint64_t word;
        memcpy(&word, parameters.data() + 8 * i, sizeof word);
        pointers[i] = memory_.allocation(word).second != 0;
    }
    Geometry geometry = call.geometry(function);
    if (!proofs_.proven(kernel.id, kernel.code, geometry, parameters, pointers)) return false;
    proven_call = {true, kernel.id, geometry, std::move(parameters), {}};
    for (uint32_t i = 0; i < pointers.size(); ++i)
        if (pointers[i]) proven_call.pointers.push_back(i);
    return true;
}

events::Parameters Unpatched::keep(const Kernel& kernel) {
    if (kept_.insert(kernel.id).second) {
        const KernelCode& code = kernel.code;
        std::string number = std::to_string(kernel.id) + ".bin";
        log_.file("code-" + number, code.text->data(), code.text->size());
        if (!code.relocated.empty())
            log_.file("relocated-" + number, code.relocated.data(), code.relocated.size() * sizeof(uint32_t));
    }
    return {log_.parameters(proven_call.parameters), proven_call.parameters.size(), proven_call.pointers};
}

// Whether all launches of the module that were not patched have ended.
bool Unpatched::rests(CUmodule module) {
    CUcontext context = modules_.context_of(module);
    Arena* arena = arenas_.existing(context);
    ContextGuard inside(context);
    for (Sanitizer_StreamHandle stream : modules_.streams_of(module))
        if (arena == nullptr || !arena->rest(stream)) return false;
    return true;
}

// Where launches do not end in time, the module stays unpatched, and what is launched from it counts as touching all
// memory.
void Unpatched::patch(CUmodule module) {
    ClosedGate closed_gate(options_.wait_ns);
    if (closed_gate && modules_.is_left(module) && rests(module)) modules_.patch_module(module);
}

void Unpatched::patch_all() {
    for (CUmodule module : modules_.end_leaving_unpatched()) patch(module);
}

void Unpatched::end_stream(CUcontext context, Sanitizer_StreamHandle stream) {
    if (modules_.ran_in(stream).empty()) return;
    Arena* arena = arenas_.existing(context);
    ContextGuard inside(context);
    modules_.end_stream(stream, arena != nullptr && arena->rest(stream));
}

}  // namespace tileprof
