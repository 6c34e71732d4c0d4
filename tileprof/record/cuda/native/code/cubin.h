// Facts about the kernels of a loaded module that its machine code shows before they run.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tileprof {

struct KernelCode {
    uint64_t fingerprint = 0;  // hash of the machine code
    bool entry = false;        // a kernel, not a function that kernels call
    uint32_t registers = 0;
    uint32_t static_shared_bytes = 0;
    uint32_t parameter_offset = 0;  // offset of the parameters in their constant bank, which begins at a page
    uint32_t parameter_bytes = 0;
    bool tensor_load = false;
    bool tensor_store = false;           // stores that no callback reports
    bool tensor_reduce = false;          // reductions that no callback reports
    bool texture = false;                // reads through textures or surfaces
    bool surface = false;                // writes through surfaces
    // the code, or a kernel of the same module, launches 1: kernels, 2: graphs, whose nodes may be of any module
    int launches = 0;
    std::shared_ptr<const std::string> text;  // the instructions of a kernel
    std::vector<uint32_t> relocated;  // offsets of the instructions that the linker or the loader completes
    std::vector<std::string> constants;  // the module's constant variables, which any of its kernels may read

    bool stores_through_maps() const { return tensor_store || tensor_reduce; }
    // Adds the accesses of a function that this code may call.
    void calls(const KernelCode& other);
    // Adds all kinds of accesses of the other code.
    void does(const KernelCode& other);
};

// Returns kernels by mangled name; empty if `image` is not a 64-bit ELF file. Without `all_text` only kernels that may
// store through tensor maps keep their instructions.
std::map<std::string, KernelCode> scan_cubin(const char* image, size_t bytes, bool all_text);

}  // namespace tileprof
