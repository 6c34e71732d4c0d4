// The part of the CUDA driver's interface that this library calls, resolved at first use: nothing links libcuda, and no
// CUDA header is needed to build. Layouts are those of cuda.h since CUDA 12.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <chrono>

namespace tileprof::acs {

using CUresult = int;
using CUdeviceptr = uint64_t;
using CUfunction = struct CUfunc_st*;
using CUkernel = struct CUkern_st*;
using CUlibrary = struct CUlib_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUcontext = struct CUctx_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphNode = struct CUgraphNode_st*;
using CUgraphExec = struct CUgraphExec_st*;

constexpr CUresult kSuccess = 0, kLaunchTimeout = 702;
constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr unsigned kDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
constexpr int kMemoryType = 2, kDeviceMemory = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE
constexpr int kCaptureNone = 0, kCaptureRelaxed = 2;

constexpr std::chrono::minutes kPatience{10};  // time for the driver to accept a launch before a wait for it ends

inline CUstream legacy_stream() { return reinterpret_cast<CUstream>(1); }
inline CUstream per_thread_stream() { return reinterpret_cast<CUstream>(2); }

struct Attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int value;
        unsigned cluster[3];
    };
};
static_assert(sizeof(Attribute) == 72, "CUlaunchAttribute");
constexpr int kIgnored = 0, kCooperative = 2, kCluster = 4, kSpreadOverCluster = 5, kProgrammatic = 6,
              kProgrammaticEvent = 7, kPriority = 8, kCompletionEvent = 12, kDeviceUpdatable = 13;

struct LaunchConfig {
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    Attribute* attributes;
    unsigned attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56 && offsetof(LaunchConfig, stream) == 32, "CUlaunchConfig");

struct KernelNode {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes;
    void** parameters;
    void** extra;
    CUkernel kernel;
    CUcontext context;
};
static_assert(sizeof(KernelNode) == 72 && offsetof(KernelNode, parameters) == 40, "CUDA_KERNEL_NODE_PARAMS_v2");

// name, arguments
#define TILEPROF_ACS_DRIVER(X)                                                                                      \
    X(cuCtxGetCurrent, (CUcontext*))                                                                                \
    X(cuCtxSetCurrent, (CUcontext))                                                                                 \
    X(cuCtxSynchronize, ())                                                                                         \
    X(cuStreamCreate, (CUstream*, unsigned))                                                                        \
    X(cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                                             \
    X(cuStreamQuery, (CUstream))                                                                                    \
    X(cuStreamSynchronize, (CUstream))                                                                              \
    X(cuStreamIsCapturing, (CUstream, int*))                                                                        \
    X(cuThreadExchangeStreamCaptureMode, (int*))                                                                    \
    X(cuEventCreate, (CUevent*, unsigned))                                                                          \
    X(cuEventRecord, (CUevent, CUstream))                                                                           \
    X(cuLaunchKernel,                                                                                               \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**)) \
    X(cuModuleLoadData, (void**, const void*))                                                                      \
    X(cuModuleGetFunction, (CUfunction*, void*, const char*))                                                       \
    X(cuLaunchKernelEx, (const LaunchConfig*, CUfunction, void**, void**))                                          \
    X(cuFuncGetName, (const char**, CUfunction))                                                                    \
    X(cuFuncGetParamInfo, (CUfunction, size_t, size_t*, size_t*))                                                   \
    X(cuFuncSetAttribute, (CUfunction, int, int))                                                                   \
    X(cuKernelGetFunction, (CUfunction*, CUkernel))                                                                 \
    X(cuKernelSetAttribute, (int, int, CUkernel, int))                                                              \
    X(cuMemGetAddressRange_v2, (CUdeviceptr*, size_t*, CUdeviceptr))                                                \
    X(cuPointerGetAttribute, (void*, int, CUdeviceptr))                                                             \
    X(cuMemAlloc_v2, (CUdeviceptr*, size_t))                                                                        \
    X(cuMemFree_v2, (CUdeviceptr))                                                                                  \
    X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                              \
    X(cuMemsetD16Async, (CUdeviceptr, unsigned short, size_t, CUstream))                                            \
    X(cuMemsetD32Async, (CUdeviceptr, unsigned, size_t, CUstream))                                                  \
    X(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                           \
    X(cuMemcpyDtoHAsync_v2, (void*, CUdeviceptr, size_t, CUstream))                                                 \
    X(cuGraphCreate, (CUgraph*, unsigned))                                                                          \
    X(cuGraphAddKernelNode_v2, (CUgraphNode*, CUgraph, const CUgraphNode*, size_t, const KernelNode*))              \
    X(cuGraphKernelNodeSetAttribute, (CUgraphNode, int, const void*))                                               \
    X(cuGraphInstantiateWithFlags, (CUgraphExec*, CUgraph, unsigned long long))                                     \
    X(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec, CUgraphNode, const KernelNode*))                             \
    X(cuGraphLaunch, (CUgraphExec, CUstream))                                                                       \
    X(cuGraphDestroy, (CUgraph))                                                                                    \
    X(cuGraphExecDestroy, (CUgraphExec))

struct Driver {
#define X(name, arguments) CUresult(*name) arguments = nullptr;
    TILEPROF_ACS_DRIVER(X)
#undef X
    const char* missing = nullptr;  // the first symbol that this driver does not have; the library is then inactive

    // Returns the driver of this process; loads it at the first call.
    static const Driver& get();
};

// For the lifetime of this object, the thread may create streams and events and load modules even if a stream
// captures a graph.
struct Relaxed {
    Relaxed() { Driver::get().cuThreadExchangeStreamCaptureMode(&mode); }
    ~Relaxed() { Driver::get().cuThreadExchangeStreamCaptureMode(&mode); }
    int mode = kCaptureRelaxed;
};

// The dlsym below this library, and a symbol of libcuda.so.1 by its exact name.
void* real_dlsym(void* handle, const char* name);
void* driver_symbol(const char* name);

}  // namespace tileprof::acs
