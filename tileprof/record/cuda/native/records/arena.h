// The device memory of a recording, with one arena per context, and how it is copied and cleared. For waits see
// stream_waits.h.
#pragma once

#include <cuda.h>

#include <map>
#include <vector>

#include "driver/api.h"
#include "records/filters.h"
#include "records/records.h"
#include "records/stream_waits.h"

namespace tileprof {

class Arena {
  public:
    Arena(CUcontext context, const Options& options);
    // The context is destroyed. Threads that are about to work here find nothing to do.
    void end();

    // Allocates what launches need. Later a kernel may spin, and allocations must not wait for it.
    void prepare() { allocate(); }
    // Returns the header of the next launch and its id; nullptr if there is no memory or no header left.
    Header* next(uint32_t* launch) { return take(&used_headers_, 0, kHeaders, launch); }
    // The same for all kernel nodes of a graph launch.
    Header* next_in_graph(uint32_t* launch) { return take(&used_in_graphs_, kHeaders, kGraphHeaders, launch); }
    // Called before a launch with its own header: assigns filters to its blocks if filters are enabled.
    void give_filters(Header* own, uint64_t blocks, bool reads_anything, bool writes_anything,
                      Sanitizer_StreamHandle stream);
    // Before such a launch of a kernel that launches others: each exit of a block leaves an entry.
    void keep_exits(Header* own, Sanitizer_StreamHandle stream);
    // A header under which patches record nothing. nullptr as above.
    Header* off();
    // Returns a header under which patches record nothing and clusters whose id has `bit` equal to `value` end at
    // once.
    Header* ending(uint32_t bit, uint32_t value, Sanitizer_StreamHandle stream);

    // Called before a stream is destroyed: copies the records of its kernels.
    void end_stream(Sanitizer_StreamHandle stream);

    // Called before and after a launching call of a thread. A drain in between may miss some of its records.
    void begun(const void* thread, uint32_t launch) { open_[thread] = launch; }
    void returned(const void* thread) { open_.erase(thread); }
    // Called after a launch of `kernel` (any number that identifies kernel and grid). Returns a place to wait for if
    // the number of entries of such a launch is not known yet, except behind a launch that did not end in time.
    // `spins`: an earlier launch of this kernel did not end in time.
    Places::Place launched(uint64_t kernel, Sanitizer_StreamHandle stream, const std::string& name, bool spins);
    // Waits for the place and stores the number of entries. Returns false if the launch had not ended at the time
    // limit; nothing waits for it any more.
    bool learn(Places::Place place, uint64_t kernel, Sanitizer_StreamHandle stream, const std::string& name);
    // Whether a launch that did not end in time still runs: waits for later work in its stream would not end.
    bool is_blocked();
    // Waits until all work of the stream has ended; false at the time limit.
    bool rest(Sanitizer_StreamHandle stream) { return waits_.rest(stream); }
    // Drains if the arena may be half full.
    void make_room();
    // Called after a graph launch: waits for it, so that no other launch sets the callback data of its nodes
    // meanwhile. Returns false if it had not ended at the time limit, or if `spins`.
    bool graph_launched(Sanitizer_StreamHandle stream, const std::string& name, bool spins);
    // Waits for every stream, copies all entries to the log, and clears the arena. If a stream is still busy when the
    // time is over, nothing is changed.
    void drain(uint64_t patience_ns);
    void drain() { drain(limit_ns_); }
    // Returns the entries that are in the arena now; the caller has waited for the kernels that wrote them.
    std::vector<Entry> entries_now();
    // Whether some accesses have no entry since the last drain.
    bool full() { return count() > capacity_ || beyond_ > 0; }
    bool pending() const { return used_headers_ + used_in_graphs_ > 0; }

  private:
    // Number of launches between two drains: their headers take 4 MiB, and 2 MiB for those in graphs.
    static constexpr uint32_t kHeaders = 1u << 15, kGraphHeaders = 1u << 14, kOff = kHeaders + kGraphHeaders,
                              kEnding = kOff + 1, kAllHeaders = kOff + 2;

    Header* take(uint32_t* used, uint32_t first, uint32_t most, uint32_t* launch);
    bool allocate();
    bool allocate_all();
    void refill();
    uint64_t count();
    uint64_t used();
    void report_spills();
    void report_graphs();

    CUcontext context_;
    uint32_t granule_shift_;
    uint64_t arena_bytes_;
    bool tried_ = false, ready_ = false, allocating_ = false;
    bool broken_ = false;                  // the context no longer answers, as after a kernel that faulted
    Header* headers_ = nullptr;            // device
    Entry* entries_ = nullptr;             // device
    uint32_t* table_ = nullptr;            // device
    Fact* facts_ = nullptr;                // device
    unsigned long long* count_ = nullptr;  // device
    Spill* spill_ = nullptr;               // device
    void* staging_ = nullptr;              // pinned host
    uint64_t capacity_ = 0;
    uint64_t beyond_ = 0;  // as of the last count()
    uint32_t used_headers_ = 0, used_in_graphs_ = 0;
    uint32_t first_launch_ = 0;
    std::vector<Header> host_headers_;
    uint64_t limit_ns_;
    Filters filters_;
    StreamWaits waits_;
    // a complaint was written that headers ran out and launches are not recorded
    bool complained_ = false;
    std::map<const void*, uint32_t> open_;     // launches that threads are making now
    std::map<uint64_t, uint64_t> entries_of_;  // kernel and grid: number of entries that a launch appends
    uint64_t expected_ = 0;                    // entries in the arena, as far as is known
};

}  // namespace tileprof
