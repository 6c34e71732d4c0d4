// The recording of a process: its parts, and which of them handles each kind of callback.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "launches/graphs.h"
#include "launches/regions.h"

namespace tileprof {

class Recorder {
  public:
    // Returns an empty string, or the reason why nothing is recorded.
    std::string start();
    void finish();
    // Copies the records from the device now, for programs whose interpreter ends before the process does.
    void drain();
    // A forked child has no CUDA context, and its parent writes the log.
    void forked();

    // Handles the callbacks of Compute Sanitizer, with the mutex held.
    void resource(Sanitizer_CallbackId id, const void* data);
    void work(Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data);
    void synchronized();
    void api_call(uint32_t cbid, const Sanitizer_CallbackData& data);

    void capture(bool on);
    void pause(bool on);
    void range(int change);

    std::recursive_mutex mutex;         // through Lock
    std::atomic<bool> finished{false};  // the process ends: calls have no effect from now on

    Options options;
    Callbacks callbacks;
    Arenas arenas{options};
    Memory memory{options, arenas};
    Modules modules{options};
    Unpatched unpatched{options, arenas, memory, modules};
    Launches launches{options, arenas, modules, unpatched};
    Graphs graphs{options, arenas, memory, modules, launches};
    Regions regions{options, arenas, modules, callbacks};
};

// Never destroyed, like the log.
extern Recorder& recorder;

}  // namespace tileprof
