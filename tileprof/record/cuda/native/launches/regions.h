// When to record: regions that the program marks, NVTX ranges, and CUDA graphs that are captured meanwhile.
#pragma once

#include <set>

#include "records/arenas.h"
#include "driver/callbacks.h"
#include "code/modules.h"

namespace tileprof {

class Regions {
  public:
    Regions(Options& options, Arenas& arenas, Modules& modules, Callbacks& callbacks)
        : options_(options), arenas_(arenas), modules_(modules), callbacks_(callbacks) {}

    void start();
    // The program begins or ends a region.
    void mark(bool on);
    // Pauses the recording, whatever regions and ranges say.
    void pause(bool on);
    // A matching NVTX range was opened (1) or is closed (-1), in any thread, possibly before `start`.
    void range(int change);
    // Handles a driver call that begins or ends a capture; returns whether it is one.
    bool api_call(uint32_t cbid, const Sanitizer_CallbackData& data);

  private:
    bool wanted() const;
    void follow();
    void record(bool on);

    Options& options_;  // only this class changes `capturing`
    Arenas& arenas_;
    Modules& modules_;
    Callbacks& callbacks_;
    bool started_ = false;
    bool paused_ = false;
    bool in_region_ = true;             // that tileprof_capture and cuProfilerStart mark
    bool only_in_regions_ = false;      // with NVTX ranges: record only in these regions
    int open_ranges_ = 0;               // number of open NVTX ranges that match
    std::set<CUstream> graph_streams_;  // streams that are capturing a graph now
};

}  // namespace tileprof
