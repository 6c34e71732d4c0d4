// What a loaded module's machine code says about its kernels before they run.
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
    bool entry = false;        // a kernel, no function that kernels call
    uint32_t registers = 0;
    uint32_t static_shared_bytes = 0;
    uint32_t parameter_offset = 0;  // of the parameters in their constant bank, which begins at a page
    uint32_t parameter_bytes = 0;
    bool tensor_load = false;
    bool tensor_store = false;           // stores that no callback reports
    bool tensor_reduce = false;          // the same of reductions
    bool texture = false;                // reads through textures or surfaces, and
    bool surface = false;                // writes through surfaces
    int launches = 0;  // it, or a kernel beside it, launches 1: kernels, 2: graphs, whose nodes may be of any module
    // Its instructions, where it may store through tensor maps and they are as they will run: what is put in when code
    // is linked or loaded is missing from them elsewhere.
    std::shared_ptr<const std::string> text;
    std::vector<std::string> constants;  // the module's constant variables, which any of its kernels may read

    // This code may call that.
    void calls(const KernelCode& other);
    // It may access memory in every way that the other does.
    void does(const KernelCode& other);
};

// Kernels by mangled name. Empty when `image` is no 64-bit ELF file.
std::map<std::string, KernelCode> scan_cubin(const char* image, size_t bytes);

}  // namespace tileprof
