// What the CUDA driver calls when it initialises, what Compute Sanitizer calls afterwards, and the plain C
// functions that Python hooks inside the recorded process call.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "recorder.h"

namespace tileprof {

void dispatch(Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data) {
    Hold hold;
    if (recorder.finished) return;
    switch (domain) {
        case SANITIZER_CB_DOMAIN_RESOURCE:
            switch (id) {
                case SANITIZER_CBID_RESOURCE_MODULE_LOADED:
                    return recorder.module_loaded(*static_cast<const Sanitizer_ResourceModuleData*>(data));
                case SANITIZER_CBID_RESOURCE_MODULE_UNLOAD_STARTING:
                    return recorder.module_unloaded(*static_cast<const Sanitizer_ResourceModuleData*>(data));
                case SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_STARTING:
                    return recorder.context_destroyed(static_cast<const Sanitizer_ResourceContextData*>(data)->context);
                case SANITIZER_CBID_RESOURCE_HOST_MEMORY_ALLOC:
                case SANITIZER_CBID_RESOURCE_HOST_MEMORY_FREE:
                    return recorder.host_memory(id == SANITIZER_CBID_RESOURCE_HOST_MEMORY_ALLOC,
                                                *static_cast<const Sanitizer_ResourceMemoryData*>(data));
                case SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_ALLOC:
                case SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_FREE:
                case SANITIZER_CBID_RESOURCE_MEMORY_ALLOC_ASYNC:
                case SANITIZER_CBID_RESOURCE_MEMORY_FREE_ASYNC:
                    return recorder.memory(id, *static_cast<const Sanitizer_ResourceMemoryData*>(data));
                case SANITIZER_CBID_RESOURCE_STREAM_CREATED:
                case SANITIZER_CBID_RESOURCE_STREAM_DESTROY_STARTING:
                    return recorder.stream(id, *static_cast<const Sanitizer_ResourceStreamData*>(data));
                default:
                    return;
            }
        case SANITIZER_CB_DOMAIN_LAUNCH:
            if (id == SANITIZER_CBID_LAUNCH_BEGIN)
                recorder.launch_begin(*static_cast<const Sanitizer_LaunchData*>(data), -1);
            if (id == SANITIZER_CBID_LAUNCH_END) recorder.launch_end(*static_cast<const Sanitizer_LaunchData*>(data));
            return;
        case SANITIZER_CB_DOMAIN_MEMCPY:
            if (id == SANITIZER_CBID_MEMCPY_STARTING || id == SANITIZER_CBID_MEMCPY_BATCH_ITEM_STARTING)
                recorder.copy(*static_cast<const Sanitizer_MemcpyData*>(data), -1);
            return;
        case SANITIZER_CB_DOMAIN_MEMSET:
            if (id == SANITIZER_CBID_MEMSET_STARTING) recorder.set(*static_cast<const Sanitizer_MemsetData*>(data), -1);
            return;
        case SANITIZER_CB_DOMAIN_GRAPHS:
            if (id == SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN)
                return recorder.node(id, *static_cast<const Sanitizer_GraphNodeLaunchData*>(data));
            if (id == SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN || id == SANITIZER_CBID_GRAPHS_LAUNCH_END)
                recorder.graph_launch(id, *static_cast<const Sanitizer_GraphLaunchData*>(data));
            return;
        case SANITIZER_CB_DOMAIN_SYNCHRONIZE:
            return recorder.synchronized();
        case SANITIZER_CB_DOMAIN_DRIVER_API:
            return recorder.api_call(id, *static_cast<const Sanitizer_CallbackData*>(data));
        default:
            return;
    }
}

}  // namespace tileprof

#define TILEPROF_EXPORT extern "C" __attribute__((visibility("default")))

// The driver looks for this name in the library that CUDA_INJECTION64_PATH names. 1: all is well.
TILEPROF_EXPORT int InitializeInjection() {
    std::string wrong = tileprof::recorder.start();
    if (!wrong.empty()) {
        tileprof::complain("%s", wrong.c_str());
        tileprof::log_.event("\"e\":\"failed\",\"why\":%s", tileprof::quoted(wrong.c_str()).c_str());
        tileprof::log_.flush();
        fprintf(stderr, "tileprof: nothing is recorded: %s\n", wrong.c_str());
        return 0;
    }
    tileprof::log_.flush();
    // Handlers run in the reverse order of their registration: the driver's own may run before or after this one.
    atexit([] { tileprof::recorder.finish(); });
    return 1;
}

// Begin (1) or end (0) what is to be recorded.
TILEPROF_EXPORT void tileprof_capture(int on) { tileprof::recorder.capture(on != 0); }

// Put an event of the caller's among ours, in order: the inside of a JSON object, without newlines.
TILEPROF_EXPORT void tileprof_event(const char* json) {
    tileprof::Hold hold;
    tileprof::log_.event("%s", json);
}

// Copy what is on the device: called when Python ends, while the driver surely lives.
TILEPROF_EXPORT void tileprof_drain() { tileprof::recorder.drain(); }

TILEPROF_EXPORT void tileprof_flush() {
    tileprof::Hold hold;
    tileprof::log_.flush();
}
