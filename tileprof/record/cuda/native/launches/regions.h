// When to record: regions that the program marks, NVTX ranges, and CUDA graphs that are made meanwhile.
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
    // Nothing is recorded until the pause ends, whatever regions and ranges say.
    void pause(bool on);
    // A matching NVTX range was opened (1) or is closed (-1), in any thread, perhaps before `start`.
    void range(int change);
    // A call of the driver's that begins or ends a capture: true where it was handled.
    bool api_call(uint32_t cbid, const Sanitizer_CallbackData& data);

  private:
    bool wanted() const;
    void follow();
    void record(bool on);

    Options& options_;  // `capturing` is changed here alone
    Arenas& arenas_;
    Modules& modules_;
    Callbacks& callbacks_;
    bool started_ = false;
    bool paused_ = false;
    bool in_region_ = true;             // that tileprof_capture and cuProfilerStart mark
    bool only_in_regions_ = false;      // with NVTX ranges: in these regions alone
    int open_ranges_ = 0;               // NVTX ranges that match
    std::set<CUstream> graph_streams_;  // that capture a graph now
};

}  // namespace tileprof
