#include "recorder.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <new>

#include "memory/array_copies.h"
#include "log/events.h"
#include "log/log.h"
#include "launches/nvtx.h"
#include "memory/stream_operations.h"

namespace tileprof {

Recorder& recorder = *new Recorder;

void dispatch(Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data);  // injector.cpp

namespace {

constexpr char kFaulted[] =
    "the GPU did not answer when the program ended: one of its kernels faulted, or the driver stopped it. What ran "
    "before is recorded as far as it had been copied. Where that does not happen without tileprof, it is a fault of "
    "tileprof's; compute-sanitizer --tool memcheck names the kernel otherwise";

constexpr uint64_t kStandstill = 10;  // multiple of the limit for one wait

constexpr std::array kProfiler = {SANITIZER_CBID_DRIVER_API_cuProfilerStart, SANITIZER_CBID_DRIVER_API_cuProfilerStop};

}  // namespace

std::string Recorder::start() {
    Lock lock;  // NVTX ranges may open meanwhile
    std::string problem = options.read_environment();
    if (!problem.empty()) return problem;
    if (!log_.open(options.raw_folder + "/process-" + std::to_string(getpid())))
        return "cannot write to " + options.raw_folder;
    if (!(problem = api.load(options.sanitizer.c_str())).empty() || !(problem = api.load_driver()).empty())
        return problem;
    if (!(problem = modules.read_patches(options.patches)).empty()) return problem;
    auto callback = [](void*, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data) {
        dispatch(domain, id, data);
    };
    if (!(problem = callbacks.subscribe(callback)).empty()) return problem;
    callbacks.follow_resources();
    callbacks.follow_calls(kProfiler);
    regions.start();
    memory.follow(&callbacks);
    unpatched.start(&callbacks);
    if (options.sees_work()) callbacks.follow_work(true);
    watch(kStandstill * options.wait_ns);
    pthread_atfork(
        [] {
            recorder.mutex.lock();
            log_.flush();  // otherwise the child would write it again at its end
        },
        [] { recorder.mutex.unlock(); }, [] { recorder.forked(); });
    events::start(options);
    if (options.nvtx && options.capturing) events::capture(true);
    return "";
}

void Recorder::forked() {
    new (&mutex) std::recursive_mutex;  // a thread that does not exist in the child holds the old one
    finished = true;
    log_.forget();
}

void Recorder::drain() {
    Lock lock;
    if (finished) return;
    arenas.drain();
    log_.flush();
}

void Recorder::finish() {
    Lock lock;
    if (finished) return;
    int gpus = 0;
    bool alive =
        api.cuDeviceGetCount(&gpus) == CUDA_SUCCESS;  // fails once the driver has shut down; no other call reports that
    bool whole = arenas.finish(alive);
    finished = true;
    if (!whole && alive) complain("%s", kFaulted);
    if (options.nvtx) report_ranges();
    if (whole) events::end();
    log_.close();
}

void Recorder::resource(Sanitizer_CallbackId id, const void* data) {
    switch (id) {
        case SANITIZER_CBID_RESOURCE_MODULE_LOADED:
            return modules.loaded(*static_cast<const Sanitizer_ResourceModuleData*>(data));
        case SANITIZER_CBID_RESOURCE_MODULE_UNLOAD_STARTING:
            return modules.unloaded(static_cast<const Sanitizer_ResourceModuleData*>(data)->module);
        case SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_STARTING: {
            CUcontext context = static_cast<const Sanitizer_ResourceContextData*>(data)->context;
            arenas.context_destroyed(context);
            modules.context_destroyed(context);
            return memory.context_destroyed(context);
        }
        case SANITIZER_CBID_RESOURCE_HOST_MEMORY_ALLOC:
        case SANITIZER_CBID_RESOURCE_HOST_MEMORY_FREE:
            return memory.host_changed(id == SANITIZER_CBID_RESOURCE_HOST_MEMORY_ALLOC,
                                       *static_cast<const Sanitizer_ResourceMemoryData*>(data));
        case SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_ALLOC:
        case SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_FREE:
        case SANITIZER_CBID_RESOURCE_MEMORY_ALLOC_ASYNC:
        case SANITIZER_CBID_RESOURCE_MEMORY_FREE_ASYNC:
            return memory.changed(id, *static_cast<const Sanitizer_ResourceMemoryData*>(data));
        case SANITIZER_CBID_RESOURCE_STREAM_DESTROY_STARTING: {
            const auto* stream = static_cast<const Sanitizer_ResourceStreamData*>(data);
            unpatched.end_stream(stream->context, stream->hStream);
            if (Arena* arena = arenas.existing(stream->context)) arena->end_stream(stream->hStream);
            return;
        }
        default:
            return;
    }
}

void Recorder::work(Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data) {
    switch (domain) {
        case SANITIZER_CB_DOMAIN_LAUNCH:
            if (id == SANITIZER_CBID_LAUNCH_BEGIN) launches.begin(*static_cast<const Sanitizer_LaunchData*>(data));
            if (id == SANITIZER_CBID_LAUNCH_END) launches.end(*static_cast<const Sanitizer_LaunchData*>(data));
            return;
        case SANITIZER_CB_DOMAIN_MEMCPY:
            if (options.capturing &&
                (id == SANITIZER_CBID_MEMCPY_STARTING || id == SANITIZER_CBID_MEMCPY_BATCH_ITEM_STARTING))
                events::copy(*static_cast<const Sanitizer_MemcpyData*>(data), -1);
            return;
        case SANITIZER_CB_DOMAIN_MEMSET:
            if (options.capturing && id == SANITIZER_CBID_MEMSET_STARTING)
                events::set(*static_cast<const Sanitizer_MemsetData*>(data), -1);
            return;
        case SANITIZER_CB_DOMAIN_GRAPHS:
            if (id == SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN)
                return graphs.node(*static_cast<const Sanitizer_GraphNodeLaunchData*>(data));
            if (id == SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN || id == SANITIZER_CBID_GRAPHS_LAUNCH_END)
                graphs.launch(id, *static_cast<const Sanitizer_GraphLaunchData*>(data));
            return;
        default:
            return;
    }
}

void Recorder::synchronized() {
    if (replaying == nullptr && !in_launching_call) arenas.drain_now_and_then();
}

void Recorder::capture(bool on) {
    Lock lock;
    if (!finished) regions.mark(on);
}

void Recorder::pause(bool on) {
    Lock lock;
    if (!finished) regions.pause(on);
}

void Recorder::range(int change) {
    Lock lock;
    if (!finished) regions.range(change);
}

void Recorder::api_call(uint32_t cbid, const Sanitizer_CallbackData& data) {
    if (cbid == SANITIZER_CBID_DRIVER_API_cuProfilerStart || cbid == SANITIZER_CBID_DRIVER_API_cuProfilerStop) {
        if (data.callbackSite == SANITIZER_API_EXIT) capture(cbid == SANITIZER_CBID_DRIVER_API_cuProfilerStart);
        return;
    }
    if (memory.api_call(cbid, data) || unpatched.api_call(cbid, data) || regions.api_call(cbid, data)) return;
    if (is_one_of(cbid, array_copies())) {
        if (options.capturing) array_copy(cbid, data);
        return;
    }
    if (is_one_of(cbid, memory_operations())) {
        if (options.capturing) memory_operation(cbid, data);
        return;
    }
    if (replaying != nullptr) return;
    if (data.callbackSite == SANITIZER_API_ENTER) return launches.call_begins(cbid, data);
    gate.leave();
    launches.wait();
    if (LaunchingCall{cbid, data.functionParams}.is_plain()) return launches.call_returned(cbid, data);
    graphs.wait();
    launches.other_call_returned();
}

}  // namespace tileprof
