// Launches, from the callback that announces one until its API call returns.
#pragma once

#include <map>
#include <vector>

#include "records/arenas.h"
#include "memory/memory.h"
#include "code/modules.h"

namespace tileprof {

// A launch that has its header, until its API call returns.
struct OpenLaunch {
    bool recorded = false;
    bool aside = false;    // has a place in the trace, and no records
    bool learned = false;  // not recorded, but replayed: graphs and later launches take what it teaches
    uint32_t launch = 0;
    const Kernel* kernel = nullptr;
    uint32_t clusters = 0;
    uint64_t blocks = 0;
    uint64_t geometry = 0;  // hash of kernel and grid
    Arena* arena = nullptr;
    CUfunction function = nullptr;  // the API call may hold a CUkernel instead
    CUstream stream = nullptr;
    Sanitizer_StreamHandle handle = nullptr;
    Places::Place place =
        Places::kNone;  // behind it; the wait begins when its call holds no lock of the driver any more
};

// The graph launch that a thread is in. Nodes of a context share a header.
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
    Launches(const Options& options, Arenas& arenas, Modules& modules)
        : options_(options), arenas_(arenas), modules_(modules) {}

    // A kernel is about to be launched, by itself or as a node of `graph`.
    void begin(const Sanitizer_LaunchData& data, GraphLaunch* graph = nullptr);
    void end(const Sanitizer_LaunchData& data);

    // Around a call of the driver's that launches. Between `returned` and `forget` the caller waits for graphs.
    void call_begins(uint32_t cbid, const Sanitizer_CallbackData& data);
    void call_returned(uint32_t cbid, const Sanitizer_CallbackData& data);
    // Such calls launch, too, but are neither repeated nor captured one by one.
    static bool is_another_way(uint32_t cbid);
    void other_call_returned();
    // Waits for the launch of this thread, and learns how many entries such a launch appends.
    void wait();

    const Kernel* last() const { return last_; }

  private:
    bool wants(const Kernel& kernel);
    bool teaches(const OpenLaunch& launch);
    bool stores_through_maps(const OpenLaunch& launch) const;
    void prepare_all();
    Header* header_of(OpenLaunch* open, const Sanitizer_LaunchData& data, GraphLaunch* graph, uint32_t* generation);
    void give_filters(const OpenLaunch& open, Header* own, Sanitizer_StreamHandle stream);
    void give_up(uint32_t launch, const Kernel& kernel);
    void report(const OpenLaunch& launch, uint32_t cbid, const Sanitizer_CallbackData& data);
    void repeat(const OpenLaunch& launch, uint32_t cbid, const Sanitizer_CallbackData& data);

    const Options& options_;
    Arenas& arenas_;
    Modules& modules_;
    const Kernel* last_ = nullptr;          // that was launched
    uint64_t launches_ = 0;                 // of the program, recorded or not: what joins the passes
    uint64_t matching_ = 0;                 // launches of kernels that are wanted
    std::map<uint64_t, uint32_t> lessons_;  // launches replayed for what they teach, by kernel and grid
    bool prepared_ = false;                 // a kernel that was set aside has been launched
};

extern thread_local OpenLaunch open_launch;
extern thread_local bool in_launching_call;  // its records are looked at before it returns: they stay until then

// Write attribution by replay (replay.cpp): called when the API call has returned that made `launch`, a launch
// of a kernel that stores through tensor maps. `again` makes the same call once more. While it runs, `replaying`
// is the header that launches get.
extern thread_local Header* replaying;
void replay(const OpenLaunch& launch, const std::vector<char>& parameters, bool (*again)(const void*),
            const void* call);
// Whether a launch of this kernel and grid whose parameters differ in nothing but where buffers lie was replayed
// before.
bool was_replayed(const OpenLaunch& launch, const std::vector<char>& parameters);

// The kernel's parameters as one block of bytes; empty when the driver cannot tell their sizes.
std::vector<char> parameter_block(CUfunction function, void** parameters, void** extra);

}  // namespace tileprof
