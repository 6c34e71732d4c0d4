// Launches, from the callback that announces one until its API call returns.
#pragma once

#include <map>
#include <vector>

#include "records/arenas.h"
#include "memory/memory.h"
#include "code/modules.h"
#include "launches/unpatched.h"

namespace tileprof {

// A launch that has its header, until its API call returns.
struct OpenLaunch {
    bool recorded = false;
    bool aside = false;    // the launch is in the trace but has no records
    bool learned = false;  // not recorded but replayed: graphs and later launches use the result
    bool computed = false;  // not patched: what it touches is computed afterwards
    uint32_t launch = 0;
    const Kernel* kernel = nullptr;
    uint32_t clusters = 0;
    uint64_t blocks = 0;
    uint64_t geometry = 0;  // hash of kernel and grid
    Arena* arena = nullptr;
    CUfunction function = nullptr;  // the API call may contain a CUkernel instead
    CUstream stream = nullptr;
    Sanitizer_StreamHandle handle = nullptr;
    Places::Place place =
        // the place after the launch; the wait begins when the call no longer holds a lock of the driver
        Places::kNone;
};

// The graph launch in which a thread is. The nodes of a context share a header.
struct GraphLaunch {
    struct Shared {
        Header* header = nullptr;
        uint32_t launch = 0, nodes = 0;
        const Kernel* last = nullptr;
    };
    int number = -1;
    CUgraphExec exec = nullptr;
    Sanitizer_StreamHandle stream = nullptr;
    std::map<CUcontext, Shared> nodes;
    std::vector<const Kernel*> kernels;  // of its nodes
};

class Launches {
  public:
    Launches(const Options& options, Arenas& arenas, Modules& modules, Unpatched& unpatched)
        : options_(options), arenas_(arenas), modules_(modules), unpatched_(unpatched) {}

    // Called when a kernel is about to be launched, directly or as a node of `graph`.
    void begin(const Sanitizer_LaunchData& data, GraphLaunch* graph = nullptr);
    void end(const Sanitizer_LaunchData& data);

    // Called before and after a launching call of the driver. Between `returned` and `forget` the caller waits for
    // graphs.
    void call_begins(uint32_t cbid, const Sanitizer_CallbackData& data);
    void call_returned(uint32_t cbid, const Sanitizer_CallbackData& data);
    // Called for calls that also launch, but are neither repeated nor captured one by one.
    void other_call_returned();
    // Waits for the launch of this thread, and stores how many entries such a launch appends.
    void wait();

    const Kernel* last() const { return last_; }

  private:
    bool wants(const Kernel& kernel);
    bool teaches(const OpenLaunch& launch);
    bool stores_through_maps(const OpenLaunch& launch) const;
    void prepare_all();
    Header* header_of(OpenLaunch* open, bool patched, const Sanitizer_LaunchData& data, GraphLaunch* graph,
                      uint32_t* generation);
    void give_filters(const OpenLaunch& open, Header* own, Sanitizer_StreamHandle stream);
    void give_up(uint32_t launch, const Kernel& kernel);
    void report(const OpenLaunch& launch, const LaunchingCall& call);
    void repeat(const OpenLaunch& launch, const LaunchingCall& call);

    const Options& options_;
    Arenas& arenas_;
    Modules& modules_;
    Unpatched& unpatched_;
    const Kernel* last_ = nullptr;          // that was launched
    uint64_t launches_ = 0;                 // launches of the program, recorded or not: this number joins the passes
    uint64_t matching_ = 0;                 // launches of kernels that are selected
    std::map<uint64_t, uint32_t> lessons_;  // launches that were replayed for others, by kernel and grid
    bool prepared_ = false;                 // a launch of a kernel that was set aside has been made
};

extern thread_local OpenLaunch open_launch;
extern thread_local bool in_launching_call;  // its records are read before it returns, and must stay until then

// Write attribution by replay (replay.cpp). Called when the API call of `launch`, a kernel that stores through tensor
// maps, has returned. `again` repeats the same call. While it runs, `replaying` is the header that launches get.
extern thread_local Header* replaying;
void replay(const OpenLaunch& launch, const std::vector<char>& parameters, bool (*again)(const void*),
            const void* call);
// Returns whether a launch of this kernel and grid was replayed whose parameters differ only in the addresses of
// buffers.
bool was_replayed(const OpenLaunch& launch, const std::vector<char>& parameters);

}  // namespace tileprof
