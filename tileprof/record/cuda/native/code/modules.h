// The program's modules and kernels: their code, which kernels are recorded by their names, and when code is patched.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "driver/api.h"
#include "code/cubin.h"
#include "options.h"

namespace tileprof {

struct Kernel {
    uint32_t id = 0;
    CUmodule module = nullptr;
    std::string name;  // demangled
    KernelCode code;
    bool scanned = false;  // its machine code was read
    bool wanted = true;   // by --kernel and --exclude
    // known to wait for other launches, GPUs or processes: not recorded, and the recorder does not wait for it
    bool aside = false;
    bool patched = true;  // its module is instrumented, or will be
    bool spins = false;   // a launch of this kernel had not ended at the time limit
};

class Modules {
  public:
    explicit Modules(const Options& options) : options_(options) {}

    // Reads the device patches from their file. Returns an empty string, or an error.
    std::string read_patches(const std::string& path);

    void loaded(const Sanitizer_ResourceModuleData& data);
    void unloaded(CUmodule handle);
    void context_destroyed(CUcontext context);

    // Returns the kernel of a launch, and writes an event if it is new.
    const Kernel& kernel(CUmodule module, const char* name);
    void spins(const Kernel& kernel) { kernels_[kernel.id].spins = true; }
    // Writes one event with the addresses of the constant variables that a kernel may read, because no callback
    // reports such reads. Called while no call of the driver is in progress.
    void report_constants(const Kernel& kernel);

    // Returns the handle by which a launching call names its kernel: a CUfunction, or a CUkernel instead.
    void named(const void* handle, const Kernel& kernel) { handles_[handle] = kernel.id; }
    // Returns the kernel's id, or -1 if it was never launched outside of graphs.
    int id_of(const void* handle) const;

    // The kernel by the handle of a launching call, and its function in this context; nullptr if the driver does not
    // tell.
    const Kernel* kernel_of(const void* handle, CUfunction* function);

    // Patches or unpatches all code according to the current options.
    void follow_regions();
    // Leaves modules unpatched, those that are loaded later too, until `patch_module` or `patch_all`.
    void leave_unpatched() { on_demand_ = true; }
    bool leaves_unpatched() const { return on_demand_; }
    // Whether a module was left unpatched, so that its launches record nothing.
    bool is_left(CUmodule handle) const;
    void patch_module(CUmodule handle);
    // Ends `leave_unpatched`; the modules that are not patched yet.
    std::vector<CUmodule> end_leaving_unpatched();
    // Remembers the stream of a launch from a module that is not patched; the streams of all of these.
    void ran_unpatched(CUmodule handle, Sanitizer_StreamHandle stream);
    std::set<Sanitizer_StreamHandle> streams_of(CUmodule handle) const;
    CUcontext context_of(CUmodule handle) const;
    // Modules that ran unpatched in a stream.
    std::vector<CUmodule> ran_in(Sanitizer_StreamHandle stream) const;
    // A stream is destroyed. `rested`: its launches have ended; otherwise the modules that ran there are not patched
    // any more.
    void end_stream(Sanitizer_StreamHandle stream, bool rested);
    // Waits for all work in every context that has code.
    void wait_for_contexts();
    // Returns any context that has code, or nullptr.
    CUcontext any_context() const;
    std::vector<CUcontext> patched_contexts() const;
    // Number of patches that the library refused in a module.
    std::vector<std::string> refused_patches(CUmodule handle) const;

  private:
    // The kernels of a loaded module, and whether its code is patched now.
    struct Module {
        CUcontext context = nullptr;
        std::map<std::string, KernelCode> codes;
        bool patched = false;
        bool changing = false;             // a thread patches or unpatches it now, without holding the mutex
        bool gone = false;                 // unloaded while a thread changed it
        bool prepared = false;             // the instructions to patch have been chosen
        std::vector<std::string> refused;  // number of patches
        bool left_alone = false;           // it contains no kernel that is recorded
        bool waits = false;  // it is patched when that is asked for
        std::set<Sanitizer_StreamHandle> streams;  // of launches meanwhile
    };
    enum class Patches { kAdding, kAdded, kRefused };

    bool is_wanted(const std::string& name) const;
    bool is_aside(const std::string& name) const;
    bool left_alone(const Module& module) const;
    void follow_regions(CUmodule handle, Module* module);
    bool add_patches(CUcontext context);
    bool patch(CUmodule handle, Module* module);
    bool prepare_and_patch(CUmodule handle, Module* module);
    bool unpatch(CUmodule handle, Module* module);

    const Options& options_;
    bool on_demand_ = false;
    std::vector<char> patches_;
    std::map<CUcontext, Patches> contexts_;
    std::map<CUmodule, Module> modules_;                           // loaded modules; the driver reuses handles
    // modules that were unloaded while a thread changed them
    std::vector<std::map<CUmodule, Module>::node_type> unloaded_;
    std::deque<Kernel> kernels_;                                   // all kernels ever seen, by id
    std::map<std::pair<CUmodule, std::string>, Kernel*> by_symbol_;
    std::map<const void*, uint32_t> handles_;  // ids of kernels
    std::set<uint32_t> constants_reported_;    // ids of kernels
};

}  // namespace tileprof
