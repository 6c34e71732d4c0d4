// The program's modules and kernels: their code, which kernels are recorded by their names, and when code is
// patched.
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
    bool aside = false;   // known to wait for other launches, GPUs or processes: never waited for, nor recorded
    bool patched = true;  // its module is, or will be
    bool spins = false;   // a launch of it had not ended at the limit
};

class Modules {
  public:
    explicit Modules(const Options& options) : options_(options) {}

    // The device patches, from their file: an empty string, or what is wrong.
    std::string read_patches(const std::string& path);

    void loaded(const Sanitizer_ResourceModuleData& data);
    void unloaded(CUmodule handle);
    void context_destroyed(CUcontext context);

    // The kernel of a launch, with an event when it is new.
    const Kernel& kernel(CUmodule module, const char* name);
    void spins(const Kernel& kernel) { kernels_[kernel.id].spins = true; }
    // An event with where the constant variables lie that a kernel may read, once: no callback reports that it does.
    // Called when no call of the driver's is under way.
    void report_constants(const Kernel& kernel);

    // The handle by which a launching call names its kernel: a CUfunction, or a CUkernel in its place.
    void named(const void* handle, const Kernel& kernel) { handles_[handle] = kernel.id; }
    // The kernel's id; -1 where it never ran by itself.
    int id_of(const void* handle) const;

    // Patch or unpatch all code as the options say now.
    void follow_regions();
    // Wait for all that runs in every context that has code.
    void wait_for_contexts();
    // Any context that has code; nullptr where there is none.
    CUcontext any_context() const;
    std::vector<CUcontext> patched_contexts() const;
    // Patches that the library refused in a module.
    std::vector<std::string> refused_patches(CUmodule handle) const;

  private:
    // What a loaded module holds, and whether its code is patched now.
    struct Module {
        CUcontext context = nullptr;
        std::map<std::string, KernelCode> codes;
        bool patched = false;
        bool changing = false;             // a thread patches or unpatches it now, without the mutex
        bool gone = false;                 // unloaded meanwhile
        bool prepared = false;             // it is known which instructions to patch
        std::vector<std::string> refused;  // patches
        bool left_alone = false;           // it holds no kernel that is recorded
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
    std::vector<char> patches_;
    std::map<CUcontext, Patches> contexts_;
    std::map<CUmodule, Module> modules_;                           // loaded ones: the driver gives handles out again
    std::vector<std::map<CUmodule, Module>::node_type> unloaded_;  // while a thread changed them
    std::deque<Kernel> kernels_;                                   // ever seen, by id
    std::map<std::pair<CUmodule, std::string>, Kernel*> by_symbol_;
    std::map<const void*, uint32_t> handles_;  // ids of kernels
    std::set<uint32_t> constants_reported_;    // ids of kernels
};

}  // namespace tileprof
