// The driver and Compute Sanitizer as tables of function pointers, resolved at run time: nothing is linked.
#pragma once

#include <cuda.h>
#include <sanitizer.h>

#include <string>

#include "driver/locks.h"

namespace tileprof {

// A function of one of these libraries. The mutex is released during the call.
template <typename Function>
struct LibraryFunction;
template <typename Result, typename... Arguments>
struct LibraryFunction<Result (*)(Arguments...)> {
    Result (*function)(Arguments...) = nullptr;

    Result operator()(Arguments... arguments) const {
        Unlock unlock;
        return function(arguments...);
    }
};

#define TILEPROF_SANITIZER_FUNCTIONS(X) \
    X(sanitizerSubscribe)               \
    X(sanitizerEnableDomain)            \
    X(sanitizerEnableCallback)          \
    X(sanitizerAddPatches)              \
    X(sanitizerPatchInstructions)       \
    X(sanitizerPatchModule)             \
    X(sanitizerUnpatchModule)           \
    X(sanitizerGetFunctionPcAndSize)    \
    X(sanitizerSetLaunchCallbackData)   \
    X(sanitizerAlloc)                   \
    X(sanitizerAllocHost)               \
    X(sanitizerFree)                    \
    X(sanitizerMemcpyHostToDeviceAsync) \
    X(sanitizerMemcpyDeviceToHost)      \
    X(sanitizerMemset)                  \
    X(sanitizerStreamSynchronize)       \
    X(sanitizerGetStreamHandle)         \
    X(sanitizerGetResultString)

#define TILEPROF_DRIVER_FUNCTIONS(X) \
    X(cuLaunchKernel)                \
    X(cuLaunchKernelEx)              \
    X(cuCtxSynchronize)              \
    X(cuCtxGetCurrent)               \
    X(cuCtxPushCurrent)              \
    X(cuCtxPopCurrent)               \
    X(cuDeviceGetCount)              \
    X(cuStreamSynchronize)           \
    X(cuStreamIsCapturing)           \
    X(cuFuncGetAttribute)            \
    X(cuFuncGetModule)               \
    X(cuFuncGetName)                 \
    X(cuFuncGetParamInfo)            \
    X(cuKernelGetFunction)           \
    X(cuMemGetInfo)                  \
    X(cuModuleGetGlobal)

struct Api {
#define X(name) LibraryFunction<decltype(&::name)> name;
    TILEPROF_SANITIZER_FUNCTIONS(X)
    TILEPROF_DRIVER_FUNCTIONS(X)
#undef X

    // Returns an empty string, or the library and the symbol that are missing.
    std::string load(const char* sanitizer_path);
    std::string load_driver();
};

extern Api api;

// The library's text for a result.
const char* text_of_result(SanitizerResult result);

// Writes a complaint if a call failed; the recording continues with what it has.
bool check(SanitizerResult result, const char* what);

}  // namespace tileprof
