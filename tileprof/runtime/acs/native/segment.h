// Launches that are held back until something needs their results: then they run as one CUDA graph with parallel
// branches, or are checked.
#pragma once

#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "launch.h"
#include "options.h"
#include "window.h"

namespace tileprof::acs {

// A launch with copies of all that the program passed.
struct Held {
    Launch launch{};
    const Function* function = nullptr;
    uint64_t id = 0;
    std::vector<uint64_t> words;
    std::vector<void*> pointers;  // to the parameters among the words
    std::vector<Attribute> attributes;
    std::vector<uint32_t> slots;
    Access access;

    Held() = default;
    Held(const Launch& made, const Function& of, const Entry& entry, const Parameters& parameters, Access&& touched) {
        hold(made, of, entry, parameters);
        access = std::move(touched);
    }
    Held(Held&&) = default;
    Held& operator=(Held&&) = default;
    // All but what it touches; memory of what was held before is used again.
    void hold(const Launch& made, const Function& of, const Entry& entry, const Parameters& parameters);
    CUresult run(CUstream stream) const { return issue(launch, stream, const_cast<void**>(pointers.data()), nullptr); }
};

// Whether a segment ends behind these launches: by what the last ones are, so that a program that repeats itself gets
// the same segments each time, wherever they began.
bool ends_segment(const std::vector<Held>& held);

// Graphs of segments that came before, by kernels, shapes and dependencies; parameters are updated at each launch.
class Graphs {
  public:
    explicit Graphs(Counts* counts) : counts_(counts) {}
    // Whether the segment was launched as a graph; otherwise its launches are to be made one by one. `result` holds
    // what the driver said.
    bool launch(const std::vector<Held>& segment, CUstream stream, CUresult* result);
    void forget();  // a module goes, and functions with it

  private:
    struct Kept {
        uint64_t seen = 0;
        bool refused = false;
        CUgraph graph = nullptr;
        CUgraphExec exec = nullptr;
        std::vector<CUgraphNode> nodes;
        std::vector<std::vector<uint64_t>> words;
    };
    bool build(const std::vector<Held>& segment, const std::vector<std::vector<int>>& after, Kept* kept);
    bool update(const std::vector<Held>& segment, Kept* kept);
    Kept* same(const std::vector<Held>& segment, uint64_t exactly);
    void run(const Kept& kept, CUstream stream, CUresult* result);

    std::unordered_map<uint64_t, Kept> kept_;
    std::unordered_map<uint64_t, Kept*> exact_;  // by parameters, too: then nothing has to be compared
    Counts* counts_;
};

// Runs a segment in orders that its dependencies allow, then in stream order, and compares all memory that its pointer
// arguments lie in. The first launches of each entry also run on other memory, which shows what they touch. The program
// goes on with what stream order gave.
CUresult check(const std::vector<Held>& segment, CUstream stream, const Options& options, Counts* counts);

}  // namespace tileprof::acs
