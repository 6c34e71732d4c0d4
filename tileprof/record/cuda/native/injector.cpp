// Entry points: the function that the CUDA driver calls when it initialises, the function that Compute Sanitizer
// calls, and the plain C functions that Python hooks call inside the recorded process.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launches/marks.h"
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

// The driver looks for this name in the library that CUDA_INJECTION64_PATH names. 1 means success.
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
    // Exit handlers run in the reverse order of their registration: the driver's own handler may run before or after
    // this one.
    atexit([] { tileprof::recorder.finish(); });
    return 1;
}

// Begins (1) or ends (0) a region that is recorded.
TILEPROF_EXPORT void tileprof_capture(int on) { tileprof::recorder.capture(on != 0); }

// Begins (1) or ends (0) a pause, during which nothing is recorded.
TILEPROF_EXPORT void tileprof_pause(int on) { tileprof::recorder.pause(on != 0); }

// Writes an event of the caller into the log, in order. The argument is the inside of a JSON object, without
// newlines.
TILEPROF_EXPORT void tileprof_event(const char* json) {
    tileprof::Lock lock;
    tileprof::log_.event("%s", json);
}

// Launches of this thread belong to an operator and a module from now on; "" for none.
TILEPROF_EXPORT void tileprof_mark(const char* op, const char* module) { tileprof::marks::set(op, module); }

// Whether anything was launched under the mark of this thread, and nothing by other threads since.
TILEPROF_EXPORT int tileprof_marked() { return tileprof::marks::is_written(); }

// Writes an event that says how the operator of this thread's mark was called, if that is the last mark in the log.
TILEPROF_EXPORT void tileprof_called(const char* json) {
    tileprof::Lock lock;
    if (tileprof::marks::is_written()) tileprof_event(json);
}

// Copies the records from the device. Called when Python ends, while the driver still works.
TILEPROF_EXPORT void tileprof_drain() { tileprof::recorder.drain(); }

TILEPROF_EXPORT void tileprof_flush() {
    tileprof::Lock lock;
    tileprof::log_.flush();
}
