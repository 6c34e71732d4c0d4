// What the CUDA driver calls when it initialises, what Compute Sanitizer calls afterwards, and the plain C
// functions that Python hooks inside the recorded process call.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log/events.h"
#include "log/log.h"
#include "recorder.h"

namespace tileprof {

void dispatch(Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data) {
    Lock lock;
    if (recorder.finished) return;
    switch (domain) {
        case SANITIZER_CB_DOMAIN_RESOURCE:
            return recorder.resource(id, data);
        case SANITIZER_CB_DOMAIN_SYNCHRONIZE:
            return recorder.synchronized();
        case SANITIZER_CB_DOMAIN_DRIVER_API:
            return recorder.api_call(id, *static_cast<const Sanitizer_CallbackData*>(data));
        default:
            return recorder.work(domain, id, data);
    }
}

}  // namespace tileprof

#define TILEPROF_EXPORT extern "C" __attribute__((visibility("default")))

// The driver looks for this name in the library that CUDA_INJECTION64_PATH names. 1: all is well.
TILEPROF_EXPORT int InitializeInjection() {
    std::string problem = tileprof::recorder.start();
    if (!problem.empty()) {
        tileprof::complain("%s", problem.c_str());
        tileprof::events::failed(problem.c_str());
        tileprof::log_.flush();
        fprintf(stderr, "tileprof: nothing is recorded: %s\n", problem.c_str());
        return 0;
    }
    tileprof::log_.flush();
    // Handlers run in the reverse order of their registration: the driver's own may run before or after this one.
    atexit([] { tileprof::recorder.finish(); });
    return 1;
}

// Begin (1) or end (0) what is to be recorded.
TILEPROF_EXPORT void tileprof_capture(int on) { tileprof::recorder.capture(on != 0); }

// Begin (1) or end (0) a pause, in which nothing is recorded.
TILEPROF_EXPORT void tileprof_pause(int on) { tileprof::recorder.pause(on != 0); }

// Put an event of the caller's among ours, in order: the inside of a JSON object, without newlines.
TILEPROF_EXPORT void tileprof_event(const char* json) {
    tileprof::Lock lock;
    tileprof::log_.event("%s", json);
}

// Copy what is on the device: called when Python ends, while the driver surely lives.
TILEPROF_EXPORT void tileprof_drain() { tileprof::recorder.drain(); }

TILEPROF_EXPORT void tileprof_flush() {
    tileprof::Lock lock;
    tileprof::log_.flush();
}
