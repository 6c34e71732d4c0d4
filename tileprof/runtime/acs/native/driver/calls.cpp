#include "driver/calls.h"

#include <string.h>

namespace tileprof::acs {

namespace {

// Prefixes of the names of calls that change no order. A call in neither list orders everything, and so do calls of
// newer drivers.
constexpr const char* kHarmless[] = {
    "cuArray",
    "cuCoredump",
    "cuCtxGet",
    "cuCtxPush",
    "cuCtxPop",
    "cuCtxSetCurrent",
    "cuCtxCreate",
    "cuCtxAttach",
    "cuDeviceGet",
    "cuDeviceCan",
    "cuDeviceComputeCapability",
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxSetFlags",
    "cuDeviceTotalMem",
    "cuDriverGet",
    "cuEventCreate",
    "cuFuncGet",
    "cuFuncIsLoaded",
    "cuFuncLoad",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetExportTable",
    "cuGetProcAddress",
    "cuGraphAdd",
    "cuGraphClone",
    "cuGraphCreate",
    "cuGraphDebug",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphExecGet",
    "cuGraphExecKernel",
    "cuGraphExecUpdate",
    "cuGraphGet",
    "cuGraphInstantiate",
    "cuGraphKernelNode",
    "cuGraphNode",
    "cuGraphRetain",
    "cuGraphRelease",
    "cuInit",
    "cuIpcGet",
    "cuKernelGet",
    "cuLibraryGet",
    "cuLibraryLoad",
    "cuLibraryEnumerate",
    "cuLinkAdd",
    "cuLinkComplete",
    "cuLinkCreate",
    "cuLinkDestroy",
    "cuLogs",
    "cuMemAddressReserve",
    "cuMemAlloc_v2",
    "cuMemAlloc",
    "cuMemAllocHost",
    "cuMemAllocManaged",
    "cuMemAllocPitch",
    "cuMemCreate",
    "cuMemGetAccess",
    "cuMemGetAddressRange",
    "cuMemGetAllocation",
    "cuMemGetHandle",
    "cuMemGetInfo",
    "cuMemHostAlloc",
    "cuMemHostGet",
    "cuMemHostRegister",
    "cuMemPoolGet",
    "cuMemPoolCreate",
    "cuMemRetain",
    "cuModuleEnumerate",
    "cuModuleGet",
    "cuModuleLoad",
    "cuOccupancy",
    "cuPointerGet",
    "cuStreamBeginCaptureToGraphQuery",
    "cuStreamCreate",
    "cuStreamGet",
    "cuStreamIsCapturing",
    "cuTensorMap",
    "cuThreadExchange",
    "cuUserObject",
    "cuDeviceRegisterAsync",
    "cuMulticastGet",
};
// Calls that change no order themselves, but must not come before an earlier launch, because they would see or return
// something else.
constexpr const char* kIssued[] = {
    "cuCtxDetach",
    "cuCtxEnable",
    "cuCtxRecord",
    "cuCtxResetPersistingL2Cache",
    "cuCtxSet",
    "cuEventDestroy",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuFlush",
    "cuFuncSet",
    "cuKernelSet",
    "cuMemMap",
    "cuMemPoolSet",
    "cuMemSetAccess",
    "cuProfiler",
    "cuStreamSetAttribute",
};
// Calls that report errors of earlier launches.
constexpr const char* kReporting[] = {"cuCtxSynchronize", "cuEventQuery",  "cuEventSynchronize",
                                      "cuMemcpy",         "cuStreamQuery", "cuStreamSynchronize"};
// Exceptions that do order: longer names with the same beginning.
constexpr const char* kOrderedYet[] = {"cuMemAllocAsync", "cuMemAllocFromPool", "cuMemMapArrayAsync", "cuArrayDestroy",
                                       "cuGraphicsMap"};

bool begins(const char* name, const char* with) { return strncmp(name, with, strlen(with)) == 0; }

}  // namespace

Meaning meaning_of(const char* symbol) {
    if (begins(symbol, "cuStreamBeginCapture")) return Meaning::kCaptureBegins;
    if (begins(symbol, "cuStreamEndCapture")) return Meaning::kCaptureEnds;
    if (begins(symbol, "cuModuleUnload") || begins(symbol, "cuLibraryUnload")) return Meaning::kUnloads;
    // For another process, which may learn of an event as soon as its record has returned.
    if (begins(symbol, "cuIpcGetEventHandle")) return Meaning::kShared;
    for (const char* name : kOrderedYet)
        if (begins(symbol, name)) return Meaning::kOrdered;
    for (const char* name : kHarmless)
        if (begins(symbol, name)) return Meaning::kHarmless;
    for (const char* name : kIssued)
        if (begins(symbol, name)) return Meaning::kIssued;
    return Meaning::kOrdered;
}

bool reports_errors(const char* symbol) {
    for (const char* name : kReporting)
        if (begins(symbol, name)) return true;
    return false;
}

}  // namespace tileprof::acs
