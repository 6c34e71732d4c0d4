// Waits for the GPU that end at a time limit.
//
// A stream is asked to set a byte of pinned memory after all its work; the byte is read at growing intervals, and a
// limit ends the wait. Observed with 13.4.92 on sm_90: such a memset returns at once while a kernel spins, and so do
// the library's copies and allocations. Loading a module does not: the driver waits for the GPU there.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "driver/api.h"
#include "driver/locks.h"

namespace tileprof {

// Makes a context current for a scope. The library's NULL stream is that of the current context, and a copy from
// memory of another GPU in that stream is a fault that ends the program (seen with 13.4.92).
class ContextGuard {
  public:
    explicit ContextGuard(CUcontext context);
    ~ContextGuard();
    ContextGuard(const ContextGuard&) = delete;

  private:
    bool entered_ = false;
};

// Places in the streams of a context. A place is reached when all work that the stream held at `put` has ended.
class Places {
  public:
    using Place = int;
    static constexpr Place kNone = -1;  // the stream held no work, or the context no longer answers
    static constexpr Place kNever = -2;  // too many places are in use

    bool allocate(CUcontext context);
    Place put(Sanitizer_StreamHandle stream);
    bool reached(Place place) const {
        const volatile char* bytes = bytes_;
        return place == kNone || bytes == nullptr || (place >= 0 && bytes[place] != 0);
    }
    // The context is destroyed: no thread reads its memory any more, not even one that waits.
    void end();
    // Whether a place could not be put since the last call; whether the work of that stream has ended is then
    // unknown.
    bool was_refused() { return std::exchange(refused_, false); }
    // Releases a place. A place that was reached may be used again.
    void forget(Place place) {
        if (place >= 0) free_places_.push_back(place);
    }
    const volatile char* byte(Place place) const { return bytes_ + place; }

  private:
    static constexpr int kPlaces = 4096;

    std::atomic<volatile char*> bytes_{nullptr};  // pinned host
    bool refused_ = false;
    int used_ = 0;
    std::vector<Place> free_places_;
};

// Returns whether `done` became true before the limit. It is called without a pause at first and finally every 20 ms,
// until `broken` (called seldom, because it may be slow) reports that the wait cannot succeed. The mutex is released.
bool wait_for(const std::function<bool()>& done, const std::function<bool()>& broken, uint64_t limit_ns);

// A thread that ends the process if there was no progress for this long while the recorder works, or while a launch
// that it stopped waiting for still runs.
void watch(uint64_t standstill_ns);
// Called by callbacks to report progress.
void note_progress();
// Registers a launch that the recorder stopped waiting for and that runs until its byte is set. It is removed before
// the byte is freed.
void note_abandoned(const volatile char* byte, const std::string& kernel);
void forget_abandoned(const volatile char* byte);

// Ends the process, because an awaited event will not occur. `kernel` may be empty.
[[noreturn]] void end_process(const std::string& kernel, const char* why);

// Returns the name by which a kernel may be excluded: without its type, template arguments and parameters.
std::string short_name(const std::string& readable);

}  // namespace tileprof
