// The work in the streams of a context, and waits for it that end at a time limit.
#pragma once

#include <cuda.h>

#include <map>
#include <string>
#include <vector>

#include "driver/api.h"
#include "driver/waiting.h"

namespace tileprof {

class StreamWaits {
  public:
    StreamWaits(CUcontext context, uint64_t limit_ns) : context_(context), limit_ns_(limit_ns) {}
    bool allocate();
    // The context is destroyed: waits end, and launches that did not end in time are no longer checked.
    void end();

    // Called when a recorded launch is made in this stream.
    void note(Sanitizer_StreamHandle stream) { streams_.emplace(stream, Places::kNone); }
    // Number of streams with recorded launches since all had ended.
    std::vector<Sanitizer_StreamHandle> streams() const;
    // Called before a stream is destroyed: nothing waits any more for its launches that still run.
    void end_stream(Sanitizer_StreamHandle stream);

    // Returns a place behind all work that the stream holds now.
    Places::Place put(Sanitizer_StreamHandle stream) { return places_.put(stream); }
    // Waits for a place, which is then released; false at the time limit.
    bool ends(Places::Place place);
    // Waits until all work of the stream has ended; false at the time limit.
    bool rest(Sanitizer_StreamHandle stream) { return ends(places_.put(stream)); }
    // Returns whether all launches up to now end before the limit. Other threads may launch meanwhile, possibly what
    // these launches wait for.
    bool settles();
    // Returns whether all launches end before this time.
    bool all_end(uint64_t patience_ns);

    // A launch had not ended at the time limit: nothing waits for it any more. `name` may be empty.
    void give_up(Sanitizer_StreamHandle stream, const std::string& name);
    bool gave_up() const { return !abandoned_places_.empty(); }
    // Whether a launch that did not end in time still runs: waits for later work in its stream would not end.
    bool is_blocked();
    // See `Places`.
    bool was_refused() { return places_.was_refused(); }

  private:
    bool answers();

    CUcontext context_;
    uint64_t limit_ns_;
    bool ready_ = false;
    Places places_;
    // Streams with recorded launches, each with a place that was not reached at the last wait for all.
    std::map<Sanitizer_StreamHandle, Places::Place> streams_;
    std::vector<Places::Place> abandoned_places_;  // places behind launches that had not ended at the time limit
};

}  // namespace tileprof
