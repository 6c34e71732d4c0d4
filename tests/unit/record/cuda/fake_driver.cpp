// A driver and a Compute Sanitizer of a page, for the host side of the injection library: "device" memory is the heap, and
// a launch writes the records that its blocks would. Tests drive it from Python (test_cuda_injection.py); what a real
// one would answer with a crash (memory of a dead context, calls after the end) ends the process with a message.
#include <cuda.h>
#include <sanitizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>

#include "records.h"

using namespace tileprof;

namespace {

struct State {
    Sanitizer_CallbackFunc callback = nullptr;
    std::set<int> domains;
    std::map<void*, CUcontext> memory;
    std::set<CUcontext> dead;
    std::set<CUmodule> patched;
    std::map<CUmodule, uint64_t> code;
    int patches = 0, unpatches = 0, waits = 0;
    bool gone = false, faulted = false;
    const void* data = nullptr;  // callback data of the present launch
    std::string refused;  // the patch function of instructions that are not patched
    bool capturing = false;
};
State& state() {
    static State* s = new State;
    return *s;
}

[[noreturn]] void die(const char* why) {
    fprintf(stderr, "fake driver: %s\n", why);
    _exit(99);
}

void alive(const void* p) {
    if (state().gone) die("called after the driver had shut down");
    auto at = state().memory.upper_bound(const_cast<void*>(p));
    if (p != nullptr && at != state().memory.begin() && state().dead.count((--at)->second) != 0) die("memory of a dead context");
}

void say(Sanitizer_CallbackDomain domain, uint32_t id, const void* data) {
    if (state().callback != nullptr && state().domains.count(domain) != 0) state().callback(nullptr, domain, id, data);
}

void append(Header* h, uint64_t key, uint32_t block) {
    Entry& e = h->arena[(*h->count)++];
    e = Entry{key, block, h->launch, {1, 0, 2, 0}};
}

// What a launch's blocks leave: a record each, at the kernel's entry, and the count of nodes in graphs.
void run(CUmodule module, uint32_t blocks) {
    auto* h = static_cast<Header*>(const_cast<void*>(state().data));
    if (h == nullptr || h->launch == kKeepAll || state().patched.count(module) == 0) return;
    uint64_t generation = h->in_graph ? h->generation : 0;
    for (uint32_t b = 0; b < blocks; ++b)
        append(h, static_cast<uint64_t>(kBlock) << kKindShift | generation << kGenerationShift | (state().code[module] >> 4 << kSmBits), b);
    if (h->in_graph) ++h->generation;
}

Sanitizer_LaunchData launch_data(CUcontext context, CUmodule module, const char* name, uint32_t blocks) {
    Sanitizer_LaunchData d{};
    d.context = context;
    d.module = module;
    d.function = reinterpret_cast<CUfunction>(0x77);
    d.functionName = name;
    d.gridDim_x = blocks;
    d.gridDim_y = d.gridDim_z = d.blockDim_y = d.blockDim_z = 1;
    d.blockDim_x = 32;
    return d;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API SanitizerResult sanitizerSubscribe(Sanitizer_SubscriberHandle*, Sanitizer_CallbackFunc f, void*) {
    state().callback = f;
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerEnableDomain(uint32_t on, Sanitizer_SubscriberHandle, Sanitizer_CallbackDomain d) {
    if (on != 0) state().domains.insert(d);
    else state().domains.erase(d);
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerEnableCallback(uint32_t on, Sanitizer_SubscriberHandle, Sanitizer_CallbackDomain d, Sanitizer_CallbackId) {
    if (on != 0) state().domains.insert(d);
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerAddPatches(const void*, CUcontext) { return SANITIZER_SUCCESS; }
API SanitizerResult sanitizerPatchInstructions(Sanitizer_InstructionId, CUmodule, const char* function) {
    return state().refused == function ? SANITIZER_ERROR_UNKNOWN : SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerPatchModule(CUmodule m) {
    ++state().patches;
    if (!state().patched.insert(m).second) die("patched twice");
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerUnpatchModule(CUmodule m) {
    ++state().unpatches;
    if (state().patched.erase(m) == 0) die("unpatched what is not patched");
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerGetFunctionPcAndSize(CUmodule m, const char*, uint64_t* pc, uint64_t* size) {
    *pc = state().code[m];
    *size = 256;
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerSetLaunchCallbackData(Sanitizer_LaunchHandle, CUfunction, Sanitizer_StreamHandle, const void* data) {
    state().data = data;
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerAlloc(CUcontext c, void** p, size_t n) {
    alive(nullptr);
    *p = calloc(1, n);
    state().memory[*p] = c;
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerAllocHost(CUcontext c, void** p, size_t n) { return sanitizerAlloc(c, p, n); }
API SanitizerResult sanitizerFree(CUcontext, void*) { return SANITIZER_SUCCESS; }
API SanitizerResult sanitizerMemcpyHostToDeviceAsync(void* to, void* from, size_t n, Sanitizer_StreamHandle) {
    alive(to);
    memcpy(to, from, n);
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerMemcpyDeviceToHost(void* to, void* from, size_t n, Sanitizer_StreamHandle) {
    alive(from);
    if (state().faulted) return SANITIZER_ERROR_UNKNOWN;
    memcpy(to, from, n);
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerMemset(void* to, int value, size_t n, Sanitizer_StreamHandle) {
    alive(to);
    memset(to, value, n);
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerStreamSynchronize(Sanitizer_StreamHandle) {
    alive(nullptr);
    ++state().waits;
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerGetStreamHandle(CUcontext, CUstream, Sanitizer_StreamHandle*) { return SANITIZER_SUCCESS; }
API SanitizerResult sanitizerGetResultString(SanitizerResult, const char** text) {
    *text = "fake";
    return SANITIZER_SUCCESS;
}

API CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**) {
    return CUDA_SUCCESS;
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction, void**, void**) { return CUDA_SUCCESS; }
API CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int* n) {
    *n = 1;
    return state().gone ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
}
API CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
// Every kernel has one parameter, of 8 bytes.
API CUresult cuFuncGetParamInfo(CUfunction, size_t n, size_t* offset, size_t* bytes) {
    *offset = 0;
    *bytes = 8;
    return n == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
    *status = state().capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
API CUresult cuModuleGetGlobal(CUdeviceptr* address, size_t* bytes, CUmodule, const char* name) {
    *address = 0xC0000;
    *bytes = 64;
    return strcmp(name, "table") == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// ---- what a program does, for tests

API void fake_module(CUcontext context, CUmodule module, uint64_t code, const char* cubin, uint64_t bytes) {
    Sanitizer_ResourceModuleData d{};
    d.pCubin = cubin;
    d.cubinSize = bytes;
    d.context = context;
    d.module = module;
    state().code[module] = code;
    state().patched.erase(module);  // whatever had the handle before
    say(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_MODULE_LOADED, &d);
}
API void fake_unload(CUcontext context, CUmodule module) {
    Sanitizer_ResourceModuleData d{};
    d.context = context;
    d.module = module;
    say(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_MODULE_UNLOAD_STARTING, &d);
    state().patched.erase(module);
}
API void fake_destroy(CUcontext context) {
    Sanitizer_ResourceContextData d{};
    d.context = context;
    say(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, &d);
    state().dead.insert(context);
}
API void fake_memory(int made, CUcontext context, uint64_t address, uint64_t bytes) {
    Sanitizer_ResourceMemoryData d{};
    d.context = context;
    d.address = address;
    d.size = bytes;
    say(SANITIZER_CB_DOMAIN_RESOURCE,
        made != 0 ? SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_ALLOC : SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_FREE, &d);
}
API void fake_map(int made, uint64_t address, uint64_t bytes) {
    struct { CUdeviceptr address; size_t bytes; } arguments{address, bytes};
    Sanitizer_CallbackData d{};
    d.functionParams = &arguments;
    for (Sanitizer_ApiCallbackSite site : {SANITIZER_API_ENTER, SANITIZER_API_EXIT}) {
        d.callbackSite = site;
        say(SANITIZER_CB_DOMAIN_DRIVER_API, made != 0 ? SANITIZER_CBID_DRIVER_API_cuMemMap : SANITIZER_CBID_DRIVER_API_cuMemUnmap, &d);
    }
}
// `before` is called while the call is under way and the kernel has not run, `after` when it has.
API void fake_launch_and(CUcontext context, CUmodule module, const char* name, uint32_t blocks, void (*before)(), void (*after)(),
                         uint64_t parameter) {
    void* parameters[] = {&parameter};
    struct { CUfunction function; unsigned sizes[7]; CUstream stream; void** parameters; void** extra; } arguments{};
    arguments.function = reinterpret_cast<CUfunction>(0x77);
    arguments.parameters = parameters;
    Sanitizer_CallbackData api{};
    api.functionParams = &arguments;
    api.callbackSite = SANITIZER_API_ENTER;
    say(SANITIZER_CB_DOMAIN_DRIVER_API, SANITIZER_CBID_DRIVER_API_cuLaunchKernel, &api);
    Sanitizer_LaunchData d = launch_data(context, module, name, blocks);
    state().data = nullptr;
    say(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_BEGIN, &d);
    const void* data = state().data;
    if (before != nullptr) before();
    state().data = data;
    run(module, blocks);
    say(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_END, &d);
    if (after != nullptr) after();
    api.callbackSite = SANITIZER_API_EXIT;
    say(SANITIZER_CB_DOMAIN_DRIVER_API, SANITIZER_CBID_DRIVER_API_cuLaunchKernel, &api);
}
API void fake_launch(CUcontext context, CUmodule module, const char* name, uint32_t blocks, uint64_t parameter) {
    fake_launch_and(context, module, name, blocks, nullptr, nullptr, parameter);
}
API void fake_refuse(const char* function) { state().refused = function; }
API void fake_capturing(int on) { state().capturing = on != 0; }
// A stream's memory operation has returned `result`: one value, or where `count` is not 0 a batch.
API void fake_value(uint32_t cbid, CUdeviceptr address, int result, unsigned count, const CUstreamBatchMemOpParams* operations) {
    struct { CUstream stream; CUdeviceptr address; uint64_t value; unsigned flags; } one{nullptr, address, 1, 0};
    struct { CUstream stream; unsigned count; const CUstreamBatchMemOpParams* operations; unsigned flags; } batch{nullptr, count, operations, 0};
    CUresult returned = static_cast<CUresult>(result);
    Sanitizer_CallbackData d{};
    d.functionParams = count != 0 ? static_cast<const void*>(&batch) : &one;
    d.functionReturnValue = &returned;
    for (Sanitizer_ApiCallbackSite site : {SANITIZER_API_ENTER, SANITIZER_API_EXIT}) {
        d.callbackSite = site;
        say(SANITIZER_CB_DOMAIN_DRIVER_API, cbid, &d);
    }
}
API void fake_synchronize() { say(SANITIZER_CB_DOMAIN_SYNCHRONIZE, 1, nullptr); }
// A graph of one node of a type that has no data.
API void fake_node(CUcontext context, int type) {
    Sanitizer_GraphLaunchData graph{};
    graph.context = context;
    say(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN, &graph);
    Sanitizer_GraphNodeLaunchData node{};
    node.nodeType = static_cast<CUgraphNodeType>(type);
    say(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN, &node);
    say(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_LAUNCH_END, &graph);
}
// A graph of `nodes` launches of one kernel; `lost` of them never run.
API void fake_graph(CUcontext context, CUmodule module, const char* name, uint32_t blocks, int nodes, int lost) {
    Sanitizer_GraphLaunchData graph{};
    graph.context = context;
    say(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN, &graph);
    for (int i = 0; i < nodes; ++i) {
        Sanitizer_GraphNodeLaunchData node{};
        node.nodeType = CU_GRAPH_NODE_TYPE_KERNEL;
        node.launchData = launch_data(context, module, name, blocks);
        say(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN, &node);
    }
    for (int i = 0; i < nodes - lost; ++i) run(module, blocks);
    say(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_LAUNCH_END, &graph);
}
// As after a kernel that faulted: the context answers nothing any more.
API void fake_fault() { state().faulted = true; }
API int fake_count(int what) { return what == 0 ? state().patches : what == 1 ? state().unpatches : state().waits; }

// The driver's own handlers, before or after those of the injection library: some call back, some make all calls fail.
API void fake_calls_back_at_exit() {
    atexit([] {
        fake_memory(1, nullptr, 0x900000, 4096);
        fake_memory(0, nullptr, 0x100000, 4096);
        fake_unload(nullptr, reinterpret_cast<CUmodule>(0x10));
    });
}
API void fake_ends_at_exit() {
    atexit([] { state().gone = true; });
}
// A copy of 16 rows of 64 bytes, 256 apart, to or from the array 0xA000.
API void fake_array_copy(uint32_t cbid, int to_array, int deep) {
    CUDA_MEMCPY2D flat{};
    CUDA_MEMCPY3D cube{};
    auto fill = [&](auto& c) {
        c.srcMemoryType = to_array != 0 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_ARRAY;
        c.dstMemoryType = to_array != 0 ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
        c.srcArray = c.dstArray = reinterpret_cast<CUarray>(0xA000);
        c.srcDevice = c.dstDevice = 0x100000;
        c.srcY = c.dstY = 1;
        c.srcPitch = c.dstPitch = 256;
        c.WidthInBytes = 64;
        c.Height = 16;
    };
    fill(flat);
    fill(cube);
    cube.srcHeight = cube.dstHeight = 20;
    cube.Depth = 2;
    struct { const void* copy; CUstream stream; } arguments{deep != 0 ? static_cast<const void*>(&cube) : &flat, nullptr};
    CUresult worked = CUDA_SUCCESS;
    Sanitizer_CallbackData d{};
    d.functionParams = &arguments;
    d.functionReturnValue = &worked;
    d.callbackSite = SANITIZER_API_EXIT;
    say(SANITIZER_CB_DOMAIN_DRIVER_API, cbid, &d);
}
