// A launch as the program made it, and what is known of its function.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "driver/driver.h"
#include "order/table.h"

namespace tileprof::acs {

// Set while this thread makes calls of the library's own, or calls that the driver makes to itself from there: they go
// through.
extern thread_local bool inside;

struct Launch {
    CUfunction function;  // or a CUkernel
    Shape shape;
    CUstream stream;
    const Attribute* attributes;
    unsigned attribute_count;
    void** parameters;
    void** extra;
    bool extended;  // cuLaunchKernelEx
};

// A fill, or a copy on the device: what it touches is known from the call.
struct Move {
    enum Kind { kCopy, kFill8, kFill16, kFill32 } kind;
    CUdeviceptr to, from;
    unsigned value;
    size_t count;  // of what is filled, or bytes
    CUstream stream;

    void access(Access* out) const;
};

// A record on an event or a wait for one, on a stream.
struct Mark {
    enum Kind { kRecord, kWait } kind;
    CUevent event;
    CUstream stream;
};
CUresult make(const Mark& mark);

// Something to be put into a stream.
struct Work {
    CUresult (*make)(const void* what, CUstream stream);
    const void* what;
};
Work work_of(const Launch& launch);
Work work_of(const Move& move);

struct Function {
    CUfunction handle = nullptr;
    std::string symbol;
    std::vector<std::pair<size_t, size_t>> layout;  // offset and bytes of each parameter
    size_t bytes = 0;
    bool known = false;  // the driver has answered for all of the above
    const KernelEntries* entries = nullptr;
};

// Copies parameters of either form to where they lie in the function's block, `function.bytes` long; false where they
// are of a form that is not known.
bool copy_parameters(const Function& function, void** parameters, void** extra, char* out);

// Parameters as one block, in whole words; zeros between and behind.
struct Parameters {
    std::vector<uint64_t> words;
    size_t bytes = 0;
    bool read(const Function& function, void** parameters, void** extra);
};

// Functions by the handle that launches name them by.
class Functions {
  public:
    const Function& of(CUfunction handle, const Table& table);
    void note_kernel(CUkernel kernel) { kernels_.insert(kernel); }
    // A module goes: the driver gives handles out again. References end here.
    void forget() { functions_.clear(); }

  private:
    std::unordered_map<const void*, std::unique_ptr<Function>> functions_;
    std::unordered_set<const void*> kernels_;
};

// Makes the launch where the program put it, with all its attributes.
CUresult issue_as_it_is(const Launch& launch);
// Makes the launch in a stream, without the program's own attributes about what it may overlap with.
CUresult issue(const Launch& launch, CUstream stream, void** parameters, void** extra);

// Mixes an attribute into a hash, without the bytes of its union that it does not use: callers leave those unset.
uint64_t mix(uint64_t hash, const Attribute& attribute);
inline uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 32;
}

// A hash of function, shape and attributes: what the driver takes once it takes again.
uint64_t configuration_of(const Launch& launch);

// Why such a launch is left where the program put it; nullptr where it may go elsewhere.
const char* immovable(const Launch& launch);

}  // namespace tileprof::acs
