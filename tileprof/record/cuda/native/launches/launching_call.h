// A driver call that launches kernels, with its arguments.
#pragma once

#include <cuda.h>
#include <stdint.h>

#include <vector>

namespace tileprof {

struct Geometry {
    uint32_t grid[3], block[3], cluster[3];
};

struct LaunchingCall {
    uint32_t cbid = 0;
    const void* arguments = nullptr;

    // Whether it launches one kernel that may be repeated or captured, and the methods below hold.
    bool is_plain() const;
    bool is_graph() const;
    // By which the call names its kernel: a CUfunction, or a CUkernel instead; nullptr for a graph.
    const void* handle() const;
    // The kernel's parameters as one block of bytes; empty if the driver does not know their sizes.
    std::vector<char> parameters(CUfunction function) const;
    // Clusters as the call or the kernel asks for them.
    Geometry geometry(CUfunction function) const;
    // Whether its blocks wait for each other: if some of them ended early, the others would hang.
    bool is_cooperative() const;
    // Makes the same call again; returns whether it worked.
    bool again() const;
};

}  // namespace tileprof
