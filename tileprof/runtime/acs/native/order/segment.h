// Launches that wait until something needs their results. Then they run as one CUDA graph with parallel branches, or
// are checked.
#pragma once

#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "driver/launch.h"
#include "options.h"
#include "order/random_delay.h"
#include "order/window.h"

namespace tileprof::acs {

// A launch of a segment, with copies of everything that the program passed.
struct SegmentLaunch {
    Launch launch{};
    const Function* function = nullptr;
    uint64_t id = 0;
    std::vector<uint64_t> words;
    std::vector<void*> pointers;  // pointers to the parameters among the words
    std::vector<Attribute> attributes;
    std::vector<uint32_t> slots;
    Access access;

    SegmentLaunch() = default;
    SegmentLaunch(const Launch& call, const Function& of, const Entry& entry, const Parameters& parameters,
                  Access&& footprint) {
        assign(call, of, entry, parameters);
        access = std::move(footprint);
    }
    SegmentLaunch(SegmentLaunch&&) = default;
    SegmentLaunch& operator=(SegmentLaunch&&) = default;
    // Sets everything but the accesses; vectors keep their memory.
    void assign(const Launch& call, const Function& of, const Entry& entry, const Parameters& parameters);
    CUresult run(CUstream stream) const { return issue(launch, stream, const_cast<void**>(pointers.data()), nullptr); }
};

// Whether a segment ends behind these launches. Only the last launches decide, so that a program that repeats itself
// gets the same segments each time, wherever they began.
bool ends_segment(const std::vector<SegmentLaunch>& segment);

// Graphs of earlier segments, by kernels, shapes and dependencies; parameters are updated at each launch.
class Graphs {
  public:
    Graphs(const Options& options, Counts* counts) : random_delay_(options.delay_us), counts_(counts) {}
    // Returns whether the segment was launched as a graph; otherwise its launches have to be made one by one.
    // `result` is what the driver returned.
    bool launch(const std::vector<SegmentLaunch>& segment, CUstream stream, CUresult* result);
    void forget();  // a module is unloaded, and its functions with it

  private:
    struct CachedGraph {
        uint64_t seen = 0;
        bool unusable = false;
        CUgraph graph = nullptr;
        CUgraphExec exec = nullptr;
        std::vector<CUgraphNode> nodes;
        std::vector<std::vector<uint64_t>> words;
    };
    bool build(const std::vector<SegmentLaunch>& segment, const std::vector<std::vector<int>>& after,
               CachedGraph* cached_graph);
    bool update(const std::vector<SegmentLaunch>& segment, CachedGraph* cached_graph);
    CachedGraph* same(const std::vector<SegmentLaunch>& segment, uint64_t exact_key);
    void run(const CachedGraph& cached_graph, CUstream stream, CUresult* result);

    std::unordered_map<uint64_t, CachedGraph> graphs_;
    std::unordered_map<uint64_t, CachedGraph*> exact_;  // also by parameters: then nothing has to be compared
    RandomDelay random_delay_;
    Counts* counts_;
};

// Runs a segment in orders that its dependencies allow, then in stream order, and compares all memory that its
// pointer arguments point into. The first launches of each entry also run on other memory, which shows what they
// touch. The program continues with the result of stream order.
CUresult check(const std::vector<SegmentLaunch>& segment, CUstream stream, const Options& options, Counts* counts);

}  // namespace tileprof::acs
