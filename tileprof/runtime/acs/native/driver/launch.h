// A launch as the program made it, and the known properties of its function.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "driver/driver.h"
#include "order/table.h"

namespace tileprof::acs {

// Set while this thread makes calls of the library, or calls that the driver makes from there: they pass through.
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

// A fill, or a copy on the device: the call says which memory it touches.
struct Move {
    enum Kind { kCopy, kFill8, kFill16, kFill32 } kind;
    CUdeviceptr to, from;
    unsigned value;
    size_t count;  // number of filled elements, or of copied bytes
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

// An operation for a stream.
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
    bool known = false;  // the driver has been asked for all of the above
    const KernelEntries* entries = nullptr;
};

// Copies parameters of either form to their places in the function's block, `function.bytes` long; returns false if
// their form is unknown.
bool copy_parameters(const Function& function, void** parameters, void** extra, char* out);

// Parameters as one block, in whole words, with zeros between and after them.
struct Parameters {
    std::vector<uint64_t> words;
    size_t bytes = 0;
    bool read(const Function& function, void** parameters, void** extra);
};

// Functions by the handles that launches use.
class Functions {
  public:
    const Function& of(CUfunction handle, const Table& table);
    void note_kernel(CUkernel kernel) { kernels_.insert(kernel); }
    // A module is unloaded: the driver reuses handles. References become invalid here.
    void forget() { functions_.clear(); }

  private:
    std::unordered_map<const void*, std::unique_ptr<Function>> functions_;
    std::unordered_set<const void*> kernels_;
};

// Makes the launch in the program's own stream, with all its attributes.
CUresult issue_as_it_is(const Launch& launch);
// Makes the launch in a stream, without the program's attributes about what it may overlap with.
CUresult issue(const Launch& launch, CUstream stream, void** parameters, void** extra);

// Mixes an attribute into a hash, without the unused bytes of its union, which callers leave uninitialised.
uint64_t mix(uint64_t hash, const Attribute& attribute);
inline uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 32;
}

// A hash of function, shape and attributes: a launch that the driver has accepted once is accepted again.
uint64_t configuration_of(const Launch& launch);

// Returns why such a launch stays in the program's stream; nullptr if it may go to another one.
const char* immovable(const Launch& launch);

}  // namespace tileprof::acs
