// What is under way in the streams of a context, and waits for it that end at a limit.
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
    // The context goes: no wait goes on, and nothing that was given up is looked at any more.
    void end();

    // A recorded launch is made in this stream.
    void note(Sanitizer_StreamHandle stream) { streams_.emplace(stream, Places::kNone); }
    // Streams that recorded launches were made in since all had ended.
    std::vector<Sanitizer_StreamHandle> streams() const;
    // Before a stream goes: its launches are given up if they still run.
    void end_stream(Sanitizer_StreamHandle stream);

    // A place behind all that the stream holds now.
    Places::Place put(Sanitizer_StreamHandle stream) { return places_.put(stream); }
    // Wait for a place, which is not used again; false at the limit.
    bool ends(Places::Place place);
    // Wait until all that the stream holds has ended; false at the limit.
    bool rest(Sanitizer_StreamHandle stream) { return ends(places_.put(stream)); }
    // Whether what was launched until now ends before the limit. Others may launch meanwhile, what it waits for maybe.
    bool settles();
    // Whether all that was launched ends before this time.
    bool all_end(uint64_t patience_ns);

    // A launch had not ended at the limit: nothing waits for it any more. `name` may be empty.
    void give_up(Sanitizer_StreamHandle stream, const std::string& name);
    bool gave_up() const { return !abandoned_places_.empty(); }
    // Something that was given up still runs: a wait for what comes behind it would not end.
    bool is_blocked();
    // As of `Places`.
    bool was_refused() { return places_.was_refused(); }

  private:
    bool answers();

    CUcontext context_;
    uint64_t limit_ns_;
    bool ready_ = false;
    Places places_;
    // Streams with recorded launches, and a place in each that was not reached when all were waited for last.
    std::map<Sanitizer_StreamHandle, Places::Place> streams_;
    std::vector<Places::Place> abandoned_places_;  // behind launches that had not ended at the limit
};

}  // namespace tileprof
