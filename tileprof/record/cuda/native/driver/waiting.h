// Waits for the GPU that end at a limit.
//
// A stream is asked to set a byte of pinned memory behind all that it holds; the byte is read at
// growing intervals, and a limit ends the wait. Seen with 13.4.92 on sm_90: such a memset returns at once while a
// kernel spins, and so do the library's copies and allocations. Loading a module does not: the driver waits for the GPU
// there.
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

// A context that this thread works in for a while: the library's NULL stream is that of the current context, and a copy
// from memory of another GPU's there is a fault that ends the program (seen with 13.4.92).
class ContextGuard {
  public:
    explicit ContextGuard(CUcontext context);
    ~ContextGuard();
    ContextGuard(const ContextGuard&) = delete;

  private:
    bool entered_ = false;
};

// Places in streams of a context. A place is behind all that the stream held when it was put there.
class Places {
  public:
    using Place = int;
    static constexpr Place kNone = -1;  // behind nothing, or in a context that answers no more
    static constexpr Place kNever = -2;  // too many are under way

    bool allocate(CUcontext context);
    Place put(Sanitizer_StreamHandle stream);
    bool reached(Place place) const {
        const volatile char* bytes = bytes_;
        return place == kNone || bytes == nullptr || (place >= 0 && bytes[place] != 0);
    }
    // The context goes: its memory is not looked at any more, by no thread that waits either.
    void end();
    // Since this was asked last, a place could not be put: whether what the stream held has ended is not known.
    bool was_refused() { return std::exchange(refused_, false); }
    // The caller has no more use for it. One that is reached may be put again.
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

// Whether `done` came true before the limit. Looked at without a pause at first, in the end every 20 ms, until `broken`
// (called seldom, as it may be slow) says that nothing will come any more. The mutex is released.
bool wait_for(const std::function<bool()>& done, const std::function<bool()>& broken, uint64_t limit_ns);

// A thread that ends the process when nothing has moved for this long although the recorder is at work or has given
// a launch up that still runs.
void watch(uint64_t standstill_ns);
// Called by callbacks: there is progress.
void note_progress();
// A launch that was given up and that runs until its byte is set; forgotten before the byte goes away.
void note_abandoned(const volatile char* byte, const std::string& kernel);
void forget_abandoned(const volatile char* byte);

// End the process: what was waited for will not come. `kernel` may be empty.
[[noreturn]] void end_process(const std::string& kernel, const char* why);

// The name by which a kernel may be excluded: without its type, template arguments and parameters.
std::string short_name(const std::string& readable);

}  // namespace tileprof
