#include "launches/launching_call.h"

#include <string.h>

#include <algorithm>

#include "driver/api.h"

namespace tileprof {

namespace {

// The arguments of two driver functions, in the order in which callbacks get them. The library's own header for them
// does not compile against an older cuda.h.
struct LaunchKernel {
    CUfunction function;
    unsigned int grid[3], block[3], shared_bytes;
    CUstream stream;
    void** parameters;
    void** extra;  // not in cooperative launches
};
struct LaunchKernelEx {
    const CUlaunchConfig* config;
    CUfunction function;
    void** parameters;
    void** extra;
};

bool is_extended(uint32_t cbid) {
    return cbid == SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx ||
           cbid == SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx_ptsz;
}

bool is_cooperative_call(uint32_t cbid) {
    return cbid == SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel ||
           cbid == SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel_ptsz;
}

const LaunchKernel& plain(const LaunchingCall& call) { return *static_cast<const LaunchKernel*>(call.arguments); }

const LaunchKernelEx& extended(const LaunchingCall& call) {
    return *static_cast<const LaunchKernelEx*>(call.arguments);
}

template <typename Holds>
bool any_attribute(const LaunchingCall& call, Holds holds) {
    if (!is_extended(call.cbid)) return false;
    const CUlaunchConfig& config = *extended(call).config;
    return std::any_of(config.attrs, config.attrs + config.numAttrs, holds);
}

std::vector<char> block_of(CUfunction function, void** parameters, void** extra) {
    std::vector<char> block;
    if (parameters == nullptr) {
        const void* buffer = nullptr;
        size_t bytes = 0;
        for (; extra != nullptr && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
            if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[1];
            if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const size_t*>(extra[1]);
        }
        if (buffer != nullptr) block.assign(static_cast<const char*>(buffer), static_cast<const char*>(buffer) + bytes);
        return block;
    }
    size_t offset = 0, bytes = 0;
    for (size_t i = 0; api.cuFuncGetParamInfo(function, i, &offset, &bytes) == CUDA_SUCCESS; ++i) {
        if (block.size() < offset + bytes) block.resize(offset + bytes);
        memcpy(block.data() + offset, parameters[i], bytes);
    }
    return block;
}

}  // namespace

bool LaunchingCall::is_plain() const { return arguments != nullptr && !is_graph() && !is_cooperative_call(cbid); }

bool LaunchingCall::is_graph() const {
    return cbid == SANITIZER_CBID_DRIVER_API_cuGraphLaunch || cbid == SANITIZER_CBID_DRIVER_API_cuGraphLaunch_ptsz;
}

const void* LaunchingCall::handle() const {
    if (is_graph()) return nullptr;
    return is_extended(cbid) ? extended(*this).function : plain(*this).function;
}

std::vector<char> LaunchingCall::parameters(CUfunction function) const {
    return is_extended(cbid) ? block_of(function, extended(*this).parameters, extended(*this).extra)
                             : block_of(function, plain(*this).parameters, plain(*this).extra);
}

Geometry LaunchingCall::geometry(CUfunction function) const {
    Geometry geometry{};
    if (is_extended(cbid)) {
        const CUlaunchConfig& c = *extended(*this).config;
        geometry = {{c.gridDimX, c.gridDimY, c.gridDimZ}, {c.blockDimX, c.blockDimY, c.blockDimZ}, {1, 1, 1}};
    } else {
        const LaunchKernel& k = plain(*this);
        geometry = {{k.grid[0], k.grid[1], k.grid[2]}, {k.block[0], k.block[1], k.block[2]}, {1, 1, 1}};
    }
    constexpr CUfunction_attribute kRequired[] = {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
                                                  CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
                                                  CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH};
    for (int i = 0; i < 3; ++i) {
        int required = 0;
        if (api.cuFuncGetAttribute(&required, kRequired[i], function) == CUDA_SUCCESS && required > 0)
            geometry.cluster[i] = static_cast<uint32_t>(required);
    }
    any_attribute(*this, [&](const CUlaunchAttribute& a) {
        if (a.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return false;
        const auto& d = a.value.clusterDim;
        for (int i = 0; i < 3; ++i) geometry.cluster[i] = std::max(1u, i == 0 ? d.x : i == 1 ? d.y : d.z);
        return true;
    });
    return geometry;
}

bool LaunchingCall::is_cooperative() const {
    return is_cooperative_call(cbid) || any_attribute(*this, [](const CUlaunchAttribute& a) {
               return a.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && a.value.cooperative != 0;
           });
}

bool LaunchingCall::again() const {
    if (is_extended(cbid)) {
        const LaunchKernelEx& c = extended(*this);
        return api.cuLaunchKernelEx(c.config, c.function, c.parameters, c.extra) == CUDA_SUCCESS;
    }
    const LaunchKernel& c = plain(*this);
    return api.cuLaunchKernel(c.function, c.grid[0], c.grid[1], c.grid[2], c.block[0], c.block[1], c.block[2],
                              c.shared_bytes, c.stream, c.parameters, c.extra) == CUDA_SUCCESS;
}

}  // namespace tileprof
