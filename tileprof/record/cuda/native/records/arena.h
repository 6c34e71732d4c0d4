// The device memory of a recording, one arena per context, and how it is emptied. Waits for the GPU: stream_waits.h.
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
    // The context goes. Other threads may be about to work here: they find nothing to do.
    void end();

    // Allocate now what launches need: afterwards a kernel may spin, and others must not wait for it.
    void prepare() { allocate(); }
    // The header of the next launch and its id; nullptr when there is no memory or no header left.
    Header* next(uint32_t* launch) { return take(&used_headers_, 0, kHeaders, launch); }
    // The same for all kernel nodes of a graph launch.
    Header* next_in_graph(uint32_t* launch) { return take(&used_in_graphs_, kHeaders, kGraphHeaders, launch); }
    // Before a launch that has a header of its own: filters for its blocks, where filters are asked for.
    void give_filters(Header* own, uint64_t blocks, bool reads_anything, bool writes_anything,
                      Sanitizer_StreamHandle stream);
    // Before such a launch of a kernel that launches others: each exit of a block leaves an entry.
    void keep_exits(Header* own, Sanitizer_StreamHandle stream);
    // A header under which patches record nothing. nullptr as above.
    Header* off();
    // A header under which patches record nothing and clusters whose id has `bit` equal to `value` end at once.
    Header* ending(uint32_t bit, uint32_t value, Sanitizer_StreamHandle stream);

    // Before a stream goes: copy what its kernels left.
    void end_stream(Sanitizer_StreamHandle stream);

    // A thread is about to make a launch; the call has returned. What is drained in between may lack some of its
    // records.
    void begun(const void* thread, uint32_t launch) { open_[thread] = launch; }
    void returned(const void* thread) { open_.erase(thread); }
    // After a launch of `kernel` (any number that stands for kernel and grid). A place to wait for where how many
    // entries such a launch appends is not known yet, but not behind a launch that was given up. `spins`: another
    // launch of this kernel was.
    Places::Place launched(uint64_t kernel, Sanitizer_StreamHandle stream, const std::string& name, bool spins);
    // Wait for it and learn. False: the launch had not ended at the limit, and is given up.
    bool learn(Places::Place place, uint64_t kernel, Sanitizer_StreamHandle stream, const std::string& name);
    // Something that was given up still runs: a wait for what comes behind it would not end.
    bool is_blocked();
    // Wait until all that the stream holds has ended; false at the limit.
    bool rest(Sanitizer_StreamHandle stream) { return waits_.rest(stream); }
    // Drain when the arena may be half full.
    void make_room();
    // After a graph launch: waits for it, so that nothing else sets the callback data of its nodes while they wait.
    // False: it had not ended at the limit, or `spins`.
    bool graph_launched(Sanitizer_StreamHandle stream, const std::string& name, bool spins);
    // Wait for every stream, copy all entries to the log, and start afresh. Where one has not come to rest when
    // the time is over, all stays as it is.
    void drain(uint64_t patience_ns);
    void drain() { drain(limit_ns_); }
    // The entries that are in the arena now; the caller has waited for what wrote them.
    std::vector<Entry> entries_now();
    // Some accesses have no entry since the last drain.
    bool full() { return count() > capacity_ || beyond_ > 0; }
    bool pending() const { return used_headers_ + used_in_graphs_ > 0; }

  private:
    // Launches between two drains: 4 MiB, and 2 MiB for those in graphs.
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
    bool broken_ = false;                  // the context answers no more, as after a kernel that faulted
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
    bool complained_ = false;                        // that launches are not recorded for want of headers
    std::map<const void*, uint32_t> open_;     // launches that threads are making
    std::map<uint64_t, uint64_t> entries_of_;  // kernel and grid: entries that a launch appends
    uint64_t expected_ = 0;                    // entries in the arena, as far as known
};

}  // namespace tileprof
