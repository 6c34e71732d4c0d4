// The state of a recording process and what each kind of callback does to it.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "api.h"
#include "arena.h"
#include "cubin.h"
#include "options.h"

namespace tileprof {

struct Kernel {
    uint32_t id = 0;
    CUmodule module = nullptr;
    std::string name;  // demangled
    KernelCode code;
    bool wanted = true;   // by --kernel and --exclude
    bool aside = false;   // known to wait for other launches, GPUs or processes: never waited for, nor recorded
    bool patched = true;  // its module is, or will be
    bool spins = false;   // a launch of it had not ended at the limit
};

// A launch that was given its header, until its API call returns.
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
        Places::kNone;  // behind it; it is waited for when its call holds no lock of the driver any more
};

// What a loaded module holds, and whether its code is patched now.
struct Module {
    CUcontext context = nullptr;
    std::map<std::string, KernelCode> codes;
    bool patched = false;
    bool changing = false;  // a thread patches or unpatches it now, without the mutex
    bool gone = false;      // unloaded meanwhile
    bool prepared = false;  // it is known which instructions to patch
    std::vector<std::string> unpatched;  // patches that the library refused
    bool left_alone = false;  // it holds no kernel that is recorded
};

class Recorder {
  public:
    std::string start();
    void finish();
    // Copy what is on the device now. For the end of programs whose languages end before the process does.
    void drain();
    // A forked child has no context of its own and nothing to say.
    void forked();

    void module_loaded(const Sanitizer_ResourceModuleData& data);
    void module_unloaded(const Sanitizer_ResourceModuleData& data);
    void context_destroyed(CUcontext context);
    void memory(uint32_t cbid, const Sanitizer_ResourceMemoryData& data);
    void host_memory(bool made, const Sanitizer_ResourceMemoryData& data);
    void mapped(uint64_t address, uint64_t bytes, uint64_t handle, uint64_t offset);
    void unmapped(uint64_t address, uint64_t bytes);
    void unmapping_ended(uint64_t address, uint64_t bytes, bool worked);
    void shared(uint32_t cbid, const Sanitizer_CallbackData& data);
    void launch_begin(const Sanitizer_LaunchData& data, int graph);
    void launch_end(const Sanitizer_LaunchData& data);
    void copy(const Sanitizer_MemcpyData& data, int graph);
    void set(const Sanitizer_MemsetData& data, int graph);
    void node(uint32_t cbid, const Sanitizer_GraphNodeLaunchData& data);
    void graph_launch(uint32_t cbid, const Sanitizer_GraphLaunchData& data);
    void synchronized();
    void api_call(uint32_t cbid, const Sanitizer_CallbackData& data);
    void launch_returned(uint32_t cbid, const Sanitizer_CallbackData& data);
    void stream(uint32_t cbid, const Sanitizer_ResourceStreamData& data);
    void capture(bool on);
    // A matching NVTX range was opened (1) or is closed (-1), in any thread, perhaps before start().
    void range(int change);
    void stream_captured(uint32_t cbid, const Sanitizer_CallbackData& data);
    void allocated(uint32_t cbid, const Sanitizer_CallbackData& data);

    // [base, base + bytes) of the live device allocation that holds an address; bytes 0 when there is none.
    std::pair<uint64_t, uint64_t> allocation(uint64_t address) const;
    // Whether all of it is live: a tensor may lie in several mappings side by side, as with expandable segments.
    bool holds(uint64_t address, uint64_t bytes) const;
    const std::map<uint64_t, uint64_t>& allocations() const { return allocations_; }
    // The context of an allocation, by its base; nullptr where nobody said.
    CUcontext owner(uint64_t base) const;

    std::recursive_mutex mutex;  // through Hold
    Options options;
    const Kernel* last = nullptr;  // that was launched
    std::atomic<bool> finished{false};  // the process ends: whatever is called now does nothing

  private:
    Arena* arena(CUcontext context);
    const Kernel& kernel(CUmodule module, const char* name);
    bool wants(const Kernel& kernel);
    bool teaches(const OpenLaunch& launch);
    void tell_constants(const Kernel& kernel);
    bool is_wanted(const std::string& readable) const;
    bool is_aside(const std::string& readable) const;
    bool left_alone(const Module& module) const;
    void give_up(uint32_t launch, const Kernel& kernel);
    bool seeing() const { return options.capturing || !options.patch_in_ranges; }
    void see_launches(bool on);
    void prepare_all();
    std::vector<Arena*> arenas() const;
    void wait_for_launch();
    void wait_for_graph();
    bool add_patches(CUcontext context);
    void start_regions();
    void follow_allocations();
    bool wanted() const;
    void follow();
    void record(bool on);
    void rest();
    void follow_regions(CUmodule handle, Module* module);
    bool patch(CUmodule handle, Module* module);
    bool prepare_and_patch(CUmodule handle, Module* module);
    bool unpatch(CUmodule handle, Module* module);
    std::string unpatched(CUmodule handle) const;

    Sanitizer_SubscriberHandle subscriber_ = nullptr;
    std::vector<char> patches_;
    std::map<CUcontext, std::unique_ptr<Arena>> arenas_;
    std::vector<std::unique_ptr<Arena>> ended_arenas_;  // of contexts that went: threads may still hold them
    std::map<CUcontext, int> context_ids_;
    std::map<CUmodule, Module> modules_;  // loaded ones: the driver gives handles out again
    std::vector<std::map<CUmodule, Module>::node_type> unloaded_;  // while a thread changed them
    std::deque<Kernel> all_kernels_;      // ever seen, by id
    std::map<std::pair<CUmodule, std::string>, Kernel*> kernels_;
    enum class Patches { kAdding, kAdded, kRefused };
    std::map<CUcontext, Patches> patched_contexts_;
    std::map<uint64_t, uint64_t> allocations_;
    struct Mapping {
        uint64_t bytes = 0, handle = 0, offset = 0;
    };
    std::map<uint64_t, Mapping> mappings_;  // by address
    std::set<int> exported_;                // numbers of files
    std::map<uint64_t, CUcontext> owners_;  // of allocations that die with a context
    uint64_t launches_ = 0;  // of the program, recorded or not: what joins the passes
    std::map<const void*, uint32_t> handles_;  // kernels by what launching calls name them by
    std::map<uint64_t, uint32_t> lessons_;  // launches replayed for what they teach, by kernel and grid
    std::set<uint32_t> constants_told_;  // kernels
    std::set<const void*> spinning_graphs_;
    bool spinning_ = false;       // a kernel that was set aside has been launched
    uint64_t matching_ = 0;
    uint64_t last_drain_ns_ = 0;
    int graphs_ = -1;
    bool told_of_memory_ = false;
    bool started_ = false;
    bool region_ = true;           // inside of what tileprof_capture and cuProfilerStart mark
    bool only_in_regions_ = false;  // with NVTX ranges: in these regions alone
    int open_ranges_ = 0;          // NVTX ranges that match
    std::set<CUstream> graph_streams_;  // that capture a graph now
    bool lost_ = false;  // a context took records along
};

// Driver calls between which a stream captures a graph (regions.cpp).
bool is_capture_begin(uint32_t cbid);
bool is_capture_end(uint32_t cbid);

// Driver calls that hand out device memory (memory.cpp).
bool is_allocation(uint32_t cbid);

// Driver calls that make handles of memory into others, and back (memory.cpp).
bool is_share(uint32_t cbid);

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

// Never destroyed, like the log.
extern Recorder& recorder;
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
