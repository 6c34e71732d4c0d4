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
    // An empty string, or why nothing is recorded.
    std::string start();
    void finish();
    // Copy what is on the device now. For the end of programs whose languages end before the process does.
    void drain();
    // A forked child has no context of its own, and its parent writes the log.
    void forked();

    // What Compute Sanitizer calls back, with the mutex held.
    void resource(Sanitizer_CallbackId id, const void* data);
    void work(Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data);
    void synchronized();
    void api_call(uint32_t cbid, const Sanitizer_CallbackData& data);

    void capture(bool on);
    void pause(bool on);
    void range(int change);

    std::recursive_mutex mutex;         // through Lock
    std::atomic<bool> finished{false};  // the process ends: calls do nothing from now on

    Options options;
    Callbacks callbacks;
    Arenas arenas{options};
    Memory memory{options, arenas};
    Modules modules{options};
    Launches launches{options, arenas, modules};
    Graphs graphs{options, arenas, memory, modules, launches};
    Regions regions{options, arenas, modules, callbacks};
};

// Never destroyed, like the log.
extern Recorder& recorder;

}  // namespace tileprof
