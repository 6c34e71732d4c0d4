// The two libraries that are found at run time, as tables of function pointers: nothing is linked.
#pragma once

#include <cuda.h>
#include <sanitizer.h>

#include <string>

namespace tileprof {

#define TILEPROF_SANITIZER_FUNCTIONS(X)                                                                        \
    X(sanitizerSubscribe)                                                                                      \
    X(sanitizerEnableDomain)                                                                                   \
    X(sanitizerEnableCallback)                                                                                 \
    X(sanitizerAddPatches)                                                                                     \
    X(sanitizerPatchInstructions)                                                                              \
    X(sanitizerPatchModule)                                                                                    \
    X(sanitizerUnpatchModule)                                                                                  \
    X(sanitizerGetFunctionPcAndSize)                                                                           \
    X(sanitizerSetLaunchCallbackData)                                                                          \
    X(sanitizerAlloc)                                                                                          \
    X(sanitizerAllocHost)                                                                                      \
    X(sanitizerFree)                                                                                           \
    X(sanitizerMemcpyHostToDeviceAsync)                                                                        \
    X(sanitizerMemcpyDeviceToHost)                                                                             \
    X(sanitizerMemset)                                                                                         \
    X(sanitizerStreamSynchronize)                                                                              \
    X(sanitizerGetStreamHandle)                                                                                \
    X(sanitizerGetResultString)

#define TILEPROF_DRIVER_FUNCTIONS(X) \
    X(cuLaunchKernel)                \
    X(cuLaunchKernelEx)              \
    X(cuCtxSynchronize)              \
    X(cuDeviceGetCount)              \
    X(cuStreamSynchronize)           \
    X(cuStreamIsCapturing)           \
    X(cuFuncGetParamInfo)            \
    X(cuModuleGetGlobal)

struct Api {
#define X(name) decltype(&::name) name = nullptr;
    TILEPROF_SANITIZER_FUNCTIONS(X)
    TILEPROF_DRIVER_FUNCTIONS(X)
#undef X

    // An empty string, or what is missing: the library and the symbol.
    std::string load(const char* sanitizer_path);
    std::string load_driver();
};

extern Api api;

// A sentence when a call fails; the recording goes on with what it has.
bool check(SanitizerResult result, const char* what);

}  // namespace tileprof
