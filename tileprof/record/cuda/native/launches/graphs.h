// CUDA graphs: their nodes, and the wait for a launch of one.
#pragma once

#include <set>

#include "launches/launches.h"

namespace tileprof {

class Graphs {
  public:
    Graphs(const Options& options, Arenas& arenas, Memory& memory, Modules& modules, Launches& launches)
        : options_(options), arenas_(arenas), memory_(memory), modules_(modules), launches_(launches) {}

    void node(const Sanitizer_GraphNodeLaunchData& data);
    void launch(uint32_t cbid, const Sanitizer_GraphLaunchData& data);
    // Waits for a graph launch before its call returns. Its nodes run with callback data that belongs to their
    // functions, and the next launch of this graph or of the same functions would overwrite these data while nodes
    // wait.
    void wait();

  private:
    const Options& options_;
    Arenas& arenas_;
    Memory& memory_;
    Modules& modules_;
    Launches& launches_;
    int last_number_ = -1;
    std::set<const void*> spinning_;  // graphs with a launch that had not ended at the time limit
};

}  // namespace tileprof
