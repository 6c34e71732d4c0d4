// The device memory of a recording, one a context, and how it is emptied.
#pragma once

#include <cuda.h>

#include <map>
#include <set>
#include <vector>

#include "api.h"
#include "records.h"

namespace tileprof {

class Arena {
   public:
    Arena(CUcontext context, uint32_t granule_shift, uint64_t arena_bytes);

    // The header of the next launch and its id; nullptr when there is no memory or no header left.
    Header* next(uint32_t* launch) { return take(&used_headers_, 0, kHeaders, launch); }
    // The same for all kernel nodes of a graph launch.
    Header* next_in_graph(uint32_t* launch) { return take(&used_in_graphs_, kHeaders, kGraphHeaders, launch); }
    // A header under which patches record nothing. nullptr as above.
    Header* off();
    // A header under which patches record nothing and clusters whose id has `bit` equal to `value` end at once.
    Header* ending(uint32_t bit, uint32_t value, Sanitizer_StreamHandle stream);

    void know_stream(Sanitizer_StreamHandle stream) { streams_.insert(stream); }
    void forget_stream(Sanitizer_StreamHandle stream) { streams_.erase(stream); }

    // A thread is about to make a launch; the call has returned. What is drained in between may lack some of its records.
    void begun(const void* thread, uint32_t launch) { open_[thread] = launch; }
    void returned(const void* thread) { open_.erase(thread); }
    // After a launch of `kernel` (any number that stands for kernel and grid). Waits for the GPU only where how
    // many entries such a launch appends is not known yet.
    void launched(uint64_t kernel, Sanitizer_StreamHandle stream);
    // Drain when the arena may be half full.
    void make_room();
    // After a graph launch: waits for it, so that nothing else sets the callback data of its nodes while they wait.
    void graph_launched(Sanitizer_StreamHandle stream);
    // Wait for every stream, copy all entries to the log, and start afresh.
    void drain();
    // The entries that are in the arena now; the caller has waited for what wrote them.
    std::vector<Entry> peek();
    // Some accesses have no entry since the last drain.
    bool full() { return count() > capacity_ || beyond_ > 0; }
    bool pending() const { return used_headers_ + used_in_graphs_ > 0; }

   private:
    // Launches between two drains: 4 MiB, and 2 MiB for those in graphs.
    static constexpr uint32_t kHeaders = 1u << 15, kGraphHeaders = 1u << 14, kOff = kHeaders + kGraphHeaders,
                              kEnding = kOff + 1, kAllHeaders = kOff + 2;

    Header* take(uint32_t* used, uint32_t first, uint32_t most, uint32_t* launch);
    bool allocate();
    void refill();
    uint64_t count();
    void report_spills();
    void report_graphs();

    CUcontext context_;
    uint32_t granule_shift_;
    uint64_t arena_bytes_;
    bool tried_ = false, ready_ = false;
    bool broken_ = false;  // the context answers no more, as after a kernel that faulted
    Header* headers_ = nullptr;  // device
    Entry* entries_ = nullptr;   // device
    uint32_t* table_ = nullptr;  // device
    unsigned long long* count_ = nullptr;  // device
    Spill* spill_ = nullptr;     // device
    void* staging_ = nullptr;    // pinned host
    uint64_t capacity_ = 0;
    uint64_t beyond_ = 0;  // as of the last count()
    uint32_t used_headers_ = 0, used_in_graphs_ = 0;
    uint32_t first_launch_ = 0;
    std::vector<Header> host_headers_;
    std::set<Sanitizer_StreamHandle> streams_;
    std::map<const void*, uint32_t> open_;  // launches that threads are making
    std::map<uint64_t, uint64_t> entries_of_;  // kernel and grid: entries a launch appends
    uint64_t expected_ = 0;                    // entries in the arena, as far as known
};

}  // namespace tileprof
