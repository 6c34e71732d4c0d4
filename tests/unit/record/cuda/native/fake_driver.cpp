// A small driver and Compute Sanitizer for tests of the host side of the injection library: "device" memory is the
// heap, and a launch writes the records that its blocks would. Tests drive it from Python (test_cuda_injection.py).
// Calls that crash a real driver (memory of a dead context, calls after the end) end the process with a message.
#include <cuda.h>
#include <sanitizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "records/records.h"

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
    bool gone = false, faulted = false, makes_graph = false;
    std::atomic<int> pause_ms{0};  // functions take it that several threads may enter at the same time
    std::string refused;  // the patch function of instructions that are not patched
    bool capturing = false;
    CUstream stream = nullptr;  // applies to later launches
    std::set<const void*> refusing;  // streams in which no place can be marked
    std::set<const void*> spinning;  // streams, by handle
    std::map<const void*, std::vector<void*>> behind;  // bytes to set when such a stream continues
    std::mutex mutex;
    std::recursive_mutex
        driver;  // like the real driver's: held in callbacks of launches and resources, and taken by its functions
};
State& state() {
    static State* s = new State;
    return *s;
}

using Driver = std::lock_guard<std::recursive_mutex>;
thread_local const void* present = nullptr;  // callback data of the current launch
thread_local CUmodule launched_module = nullptr;  // of the kernel that a call launches, and its name
thread_local const char* launched_name = nullptr;
// The contexts that are current in this thread; none at first, as in a thread that has not used the GPU. Leaked, since
// calls come while threads end.
std::vector<CUcontext>& contexts() {
    thread_local auto* stack = new std::vector<CUcontext>;
    return *stack;
}

void rest(unsigned part = 1) { usleep(static_cast<unsigned>(state().pause_ms) * 1000 / part); }

[[noreturn]] void die(const char* why) {
    fprintf(stderr, "fake driver: %s\n", why);
    _exit(99);
}

void alive(const void* p) {
    if (state().gone) die("called after the driver had shut down");
    auto at = state().memory.upper_bound(const_cast<void*>(p));
    if (p != nullptr && at != state().memory.begin() && state().dead.count((--at)->second) != 0)
        die("memory of a dead context");
}

using Brief = std::lock_guard<std::mutex>;

bool spins(const void* stream) {
    Brief brief(state().mutex);
    return state().spinning.count(stream) != 0;
}

void say(Sanitizer_CallbackDomain domain, uint32_t id, const void* data) {
    {
        Brief brief(state().mutex);
        if (state().callback == nullptr || state().domains.count(domain) == 0) return;
    }
    std::unique_lock<std::recursive_mutex> driver(state().driver, std::defer_lock);
    if (domain == SANITIZER_CB_DOMAIN_LAUNCH || domain == SANITIZER_CB_DOMAIN_RESOURCE) driver.lock();
    state().callback(nullptr, domain, id, data);
}

void append(Header* h, uint64_t key, uint32_t block) {
    Entry& e = h->arena[__atomic_fetch_add(h->count, 1, __ATOMIC_RELAXED)];
    e = Entry{key, block, h->launch, {1, 0, 2, 0}};
}

// Writes the records of a launch's blocks: one each, at the kernel's entry, also for the exit if each is kept, and the
// count of nodes in graphs.
void run(CUmodule module, uint32_t blocks) {
    auto* h = static_cast<Header*>(const_cast<void*>(present));
    Brief brief(state().mutex);
    if (h == nullptr || h->launch == kKeepAll || state().patched.count(module) == 0) return;
    uint64_t generation = h->in_graph ? h->generation : 0;
    uint64_t low = generation << kGenerationShift | (state().code[module] >> 4 << kSmBits);
    for (uint32_t b = 0; b < blocks; ++b) {
        append(h, static_cast<uint64_t>(kBlock) << kKindShift | low, b);
        if (h->keeps_exits) append(h, static_cast<uint64_t>(kExit) << kKindShift | low, b);
    }
    if (h->in_graph) ++h->generation;
}

Sanitizer_LaunchData launch_data(CUcontext context, CUmodule module, const char* name, uint32_t blocks) {
    Sanitizer_LaunchData d{};
    d.context = context;
    d.module = module;
    d.function = reinterpret_cast<CUfunction>(0x77);
    d.hStream = reinterpret_cast<Sanitizer_StreamHandle>(state().stream);
    d.device = static_cast<CUdevice>(reinterpret_cast<uintptr_t>(context) - 1);
    d.functionName = name;
    d.gridDim_x = blocks;
    d.gridDim_y = d.gridDim_z = d.blockDim_y = d.blockDim_z = 1;
    d.blockDim_x = 32;
    return d;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API SanitizerResult sanitizerSubscribe(Sanitizer_SubscriberHandle*, Sanitizer_CallbackFunc f, void*) {
    const char* refused = getenv("FAKE_SUBSCRIBE");  // with this result
    if (refused != nullptr) return static_cast<SanitizerResult>(atoi(refused));
    state().callback = f;
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerEnableDomain(uint32_t on, Sanitizer_SubscriberHandle, Sanitizer_CallbackDomain d) {
    Brief brief(state().mutex);
    if (on != 0)
        state().domains.insert(d);
    else
        state().domains.erase(d);
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerEnableCallback(uint32_t on, Sanitizer_SubscriberHandle, Sanitizer_CallbackDomain d,
                                            Sanitizer_CallbackId) {
    Brief brief(state().mutex);
    if (on != 0) state().domains.insert(d);
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerAddPatches(const void*, CUcontext) {
    rest();
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerPatchInstructions(Sanitizer_InstructionId, CUmodule, const char* function) {
    return state().refused == function ? SANITIZER_ERROR_UNKNOWN : SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerPatchModule(CUmodule m) {
    Driver driver(state().driver);
    rest();
    Brief brief(state().mutex);
    ++state().patches;
    if (!state().patched.insert(m).second) die("patched twice");
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerUnpatchModule(CUmodule m) {
    rest();
    Brief brief(state().mutex);
    ++state().unpatches;
    if (state().patched.erase(m) == 0) die("unpatched what is not patched");
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerGetFunctionPcAndSize(CUmodule m, const char*, uint64_t* pc, uint64_t* size) {
    Brief brief(state().mutex);
    *pc = state().code[m];
    *size = 256;
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerSetLaunchCallbackData(Sanitizer_LaunchHandle, CUfunction, Sanitizer_StreamHandle,
                                                   const void* data) {
    present = data;
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerAlloc(CUcontext c, void** p, size_t n) {
    Driver driver(state().driver);
    alive(nullptr);
    const char* most = getenv("FAKE_MEMORY");  // bytes that are free on the device
    if (most != nullptr && n > strtoull(most, nullptr, 10)) return SANITIZER_ERROR_OUT_OF_MEMORY;
    *p = calloc(1, n);
    state().memory[*p] = c;
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerAllocHost(CUcontext c, void** p, size_t n) { return sanitizerAlloc(c, p, n); }
API SanitizerResult sanitizerFree(CUcontext, void*) { return SANITIZER_SUCCESS; }
API SanitizerResult sanitizerMemcpyHostToDeviceAsync(void* to, void* from, size_t n, Sanitizer_StreamHandle) {
    Driver driver(state().driver);
    alive(to);
    memcpy(to, from, n);
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerMemcpyDeviceToHost(void* to, void* from, size_t n, Sanitizer_StreamHandle stream) {
    rest();
    while (spins(stream)) usleep(1000);
    Driver driver(state().driver);
    alive(from);
    if (state().faulted) return SANITIZER_ERROR_UNKNOWN;
    memcpy(to, from, n);
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerMemset(void* to, int value, size_t n, Sanitizer_StreamHandle stream) {
    Driver driver(state().driver);
    alive(to);
    std::lock_guard<std::mutex> lock(state().mutex);
    if (n == 1) ++state().waits;  // a place in a stream
    if (n == 1 && state().refusing.count(stream) != 0) return SANITIZER_ERROR_UNKNOWN;
    if (n == 1 && state().spinning.count(stream) != 0)
        state().behind[stream].push_back(to);
    else
        memset(to, value, n);
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerStreamSynchronize(Sanitizer_StreamHandle) {
    alive(nullptr);
    Brief brief(state().mutex);
    ++state().waits;
    return SANITIZER_SUCCESS;
}
API SanitizerResult sanitizerGetStreamHandle(CUcontext, CUstream, Sanitizer_StreamHandle*) { return SANITIZER_SUCCESS; }
API SanitizerResult sanitizerGetResultString(SanitizerResult, const char** text) {
    *text = "fake";
    return SANITIZER_SUCCESS;
}

API CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                            void**, void**) {
    return CUDA_SUCCESS;
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction, void**, void**) { return CUDA_SUCCESS; }
API CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = contexts().empty() ? nullptr : contexts().back();
    return CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent(CUcontext context) {
    contexts().push_back(context);
    return CUDA_SUCCESS;
}
API CUresult cuCtxPopCurrent(CUcontext*) {
    contexts().pop_back();
    return CUDA_SUCCESS;
}
API CUresult cuCtxSynchronize() {
    if (contexts().empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (state().makes_graph) die("waited for the context while a graph was captured");
    return CUDA_SUCCESS;
}
size_t gpu_count();  // of fake_gpus.cpp
API CUresult cuMemGetInfo(size_t* free, size_t* all) {
    *free = *all = 0;
    return state().faulted ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}
API CUresult cuDeviceGetCount(int* n) {
    const char* text = getenv("FAKE_GPUS");
    *n = text == nullptr ? 1 : static_cast<int>(gpu_count());
    return state().gone ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
}
API CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
// Every kernel has one parameter, of 8 bytes.
API CUresult cuFuncGetParamInfo(CUfunction, size_t n, size_t* offset, size_t* bytes) {
    rest(8);
    *offset = 0;
    *bytes = 8;
    return n == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
// All kernels have one handle. In a launching call it stands for the kernel that is launched, also as a CUkernel.
API CUresult cuFuncGetModule(CUmodule* module, CUfunction) {
    *module = launched_module;
    return launched_module == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
API CUresult cuFuncGetName(const char** name, CUfunction) {
    *name = launched_name;
    return CUDA_SUCCESS;
}
API CUresult cuKernelGetFunction(CUfunction*, CUkernel) { return CUDA_ERROR_INVALID_HANDLE; }
API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) {
    *value = 0;
    return CUDA_SUCCESS;
}
API CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
    *status = state().capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
API CUresult cuModuleGetGlobal(CUdeviceptr* address, size_t* bytes, CUmodule, const char* name) {
    if (state().refused == "cuModuleGetGlobal") return CUDA_ERROR_INVALID_CONTEXT;
    *address = 0xC0000;
    *bytes = 64;
    return strcmp(name, "table") == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// ---- the actions of a program, for tests

API void fake_module(CUcontext context, CUmodule module, uint64_t code, const char* cubin, uint64_t bytes) {
    Sanitizer_ResourceModuleData d{};
    d.pCubin = cubin;
    d.cubinSize = bytes;
    d.context = context;
    d.module = module;
    {
        Brief brief(state().mutex);
        state().code[module] = code;
        state().patched.erase(module);  // even if the handle had another module before
    }
    say(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_MODULE_LOADED, &d);
}
API void fake_unload(CUcontext context, CUmodule module) {
    Sanitizer_ResourceModuleData d{};
    d.context = context;
    d.module = module;
    say(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_MODULE_UNLOAD_STARTING, &d);
    Brief brief(state().mutex);
    state().patched.erase(module);
}
API void fake_destroy(CUcontext context) {
    Sanitizer_ResourceContextData d{};
    d.context = context;
    say(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, &d);
    Driver driver(state().driver);
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
// A call that begins and returns; `words` are its arguments.
static void called(uint32_t cbid, const void* words, CUresult result = CUDA_SUCCESS) {
    Sanitizer_CallbackData d{};
    d.functionParams = words;
    d.functionReturnValue = &result;
    for (Sanitizer_ApiCallbackSite site : {SANITIZER_API_ENTER, SANITIZER_API_EXIT}) {
        d.callbackSite = site;
        say(SANITIZER_CB_DOMAIN_DRIVER_API, cbid, &d);
    }
}
API void fake_map(int made, uint64_t address, uint64_t bytes, uint64_t handle, int result) {
    struct {
        CUdeviceptr address;
        size_t bytes, offset;
        CUmemGenericAllocationHandle handle;
    } arguments{address, bytes, 0, handle};
    called(made != 0 ? SANITIZER_CBID_DRIVER_API_cuMemMap : SANITIZER_CBID_DRIVER_API_cuMemUnmap, &arguments,
           static_cast<CUresult>(result));
}
API void fake_create(uint64_t handle, int result) {
    const CUmemGenericAllocationHandle* words[] = {reinterpret_cast<CUmemGenericAllocationHandle*>(&handle)};
    called(SANITIZER_CBID_DRIVER_API_cuMemCreate, words, static_cast<CUresult>(result));
}
API void fake_share(int exported, uint64_t handle, int file, int type) {
    CUmemAllocationHandleType kind = static_cast<CUmemAllocationHandleType>(type);
    struct {
        const void* file;
        CUmemGenericAllocationHandle handle;
        CUmemAllocationHandleType type;
    } out{&file, handle, kind};
    struct {
        const void* handle;
        const void* file;
        CUmemAllocationHandleType type;
    } in{&handle, reinterpret_cast<void*>(intptr_t{file}), kind};
    if (exported != 0) return called(SANITIZER_CBID_DRIVER_API_cuMemExportToShareableHandle, &out);
    called(SANITIZER_CBID_DRIVER_API_cuMemImportFromShareableHandle, &in);
}
// `before` runs while the call is in progress and the kernel has not run, `after` when it has.
API void fake_launch_and(CUcontext context, CUmodule module, const char* name, uint32_t blocks, void (*before)(),
                         void (*after)(), uint64_t parameter) {
    void* parameters[] = {&parameter};
    struct {
        CUfunction function;
        unsigned sizes[7];
        CUstream stream;
        void** parameters;
        void** extra;
    } arguments{};
    arguments.function = reinterpret_cast<CUfunction>(0x77);
    for (unsigned& size : arguments.sizes) size = 1;
    arguments.sizes[0] = blocks;
    arguments.sizes[3] = 32;
    arguments.parameters = parameters;
    Sanitizer_CallbackData api{};
    api.functionParams = &arguments;
    api.callbackSite = SANITIZER_API_ENTER;
    launched_module = module;
    launched_name = name;
    say(SANITIZER_CB_DOMAIN_DRIVER_API, SANITIZER_CBID_DRIVER_API_cuLaunchKernel, &api);
    Sanitizer_LaunchData d = launch_data(context, module, name, blocks);
    present = nullptr;
    say(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_BEGIN, &d);
    const void* data = present;
    if (before != nullptr) before();
    present = data;
    run(module, blocks);
    say(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_END, &d);
    if (after != nullptr) after();
    api.callbackSite = SANITIZER_API_EXIT;
    say(SANITIZER_CB_DOMAIN_DRIVER_API, SANITIZER_CBID_DRIVER_API_cuLaunchKernel, &api);
    launched_module = nullptr;
}
API void fake_launch(CUcontext context, CUmodule module, const char* name, uint32_t blocks, uint64_t parameter) {
    fake_launch_and(context, module, name, blocks, nullptr, nullptr, parameter);
}
API void fake_pause(int ms) { state().pause_ms = ms; }
API void fake_refuse(const char* function) { state().refused = function; }
API void fake_capturing(int on) { state().capturing = on != 0; }
// A stream's memory operation has returned `result`: one value, or where `count` is not 0 a batch.
API void fake_value(uint32_t cbid, CUdeviceptr address, int result, unsigned count,
                    const CUstreamBatchMemOpParams* operations) {
    struct {
        CUstream stream;
        CUdeviceptr address;
        uint64_t value;
        unsigned flags;
    } one{nullptr, address, 1, 0};
    struct {
        CUstream stream;
        unsigned count;
        const CUstreamBatchMemOpParams* operations;
        unsigned flags;
    } batch{nullptr, count, operations, 0};
    CUresult returned = static_cast<CUresult>(result);
    Sanitizer_CallbackData d{};
    d.functionParams = count != 0 ? static_cast<const void*>(&batch) : &one;
    d.functionReturnValue = &returned;
    for (Sanitizer_ApiCallbackSite site : {SANITIZER_API_ENTER, SANITIZER_API_EXIT}) {
        d.callbackSite = site;
        say(SANITIZER_CB_DOMAIN_DRIVER_API, cbid, &d);
    }
}
// A call that allocates device memory returns this result.
API void fake_allocates(int result) {
    Sanitizer_CallbackData d{};
    d.callbackSite = SANITIZER_API_EXIT;
    d.functionReturnValue = &result;
    say(SANITIZER_CB_DOMAIN_DRIVER_API, SANITIZER_CBID_DRIVER_API_cuMemAlloc_v2, &d);
}
// A stream begins to capture a graph, or ends.
API void fake_capture(int begins, CUstream stream) {
    struct {
        CUstream stream;
    } arguments{stream};
    CUresult result = CUDA_SUCCESS;
    Sanitizer_CallbackData d{};
    d.functionParams = &arguments;
    d.functionReturnValue = &result;
    for (Sanitizer_ApiCallbackSite site : {SANITIZER_API_ENTER, SANITIZER_API_EXIT}) {
        d.callbackSite = site;
        if (site == SANITIZER_API_EXIT) state().makes_graph = begins != 0;
        say(SANITIZER_CB_DOMAIN_DRIVER_API,
            begins != 0 ? SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_v2
                        : SANITIZER_CBID_DRIVER_API_cuStreamEndCapture,
            &d);
    }
}
API void fake_synchronize() { say(SANITIZER_CB_DOMAIN_SYNCHRONIZE, 1, nullptr); }
// A graph of one node of a type without data.
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
// A launch as a program makes it: by a call of the driver.
API void fake_graph_call(CUcontext context, CUmodule module, const char* name, uint32_t blocks) {
    Sanitizer_CallbackData d{};
    d.callbackSite = SANITIZER_API_ENTER;
    say(SANITIZER_CB_DOMAIN_DRIVER_API, SANITIZER_CBID_DRIVER_API_cuGraphLaunch, &d);
    fake_graph(context, module, name, blocks, 1, 0);
    d.callbackSite = SANITIZER_API_EXIT;
    say(SANITIZER_CB_DOMAIN_DRIVER_API, SANITIZER_CBID_DRIVER_API_cuGraphLaunch, &d);
}
// Sets the stream of later launches.
API void fake_stream(CUstream stream) { state().stream = stream; }
API void fake_refuse_places(CUstream stream) { state().refusing.insert(stream); }
// A launch that no visible call of the driver's API makes.
API void fake_launch_unseen(CUcontext context, CUmodule module, const char* name, uint32_t blocks, void (*before)(),
                            int api_exit) {
    Sanitizer_LaunchData d = launch_data(context, module, name, blocks);
    if (api_exit == 0) {
        state().callback(nullptr, SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_BEGIN, &d);
        const void* data = present;
        if (before != nullptr) before();
        present = data;
        run(module, blocks);
        say(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_END, &d);
        return;
    }
    struct {
        CUfunction function;
        unsigned sizes[7];
        CUstream stream;
        void** parameters;
        void** extra;
    } arguments{};
    arguments.function = reinterpret_cast<CUfunction>(0x77);
    Sanitizer_CallbackData api{};
    api.functionParams = &arguments;
    api.callbackSite = SANITIZER_API_EXIT;
    say(SANITIZER_CB_DOMAIN_DRIVER_API, SANITIZER_CBID_DRIVER_API_cuLaunchKernel, &api);
}
// The work in the stream spins until it is released.
API void fake_spin(CUstream stream) {
    std::lock_guard<std::mutex> lock(state().mutex);
    state().spinning.insert(stream);
}
API void fake_let_go(CUstream stream) {
    std::lock_guard<std::mutex> lock(state().mutex);
    state().spinning.erase(stream);
    for (void* byte : state().behind[stream]) *static_cast<volatile char*>(byte) = 1;
    state().behind.erase(stream);
}
// As after a kernel that faulted: the context does not answer any more.
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
API void fake_peer_array_copy(uint32_t cbid, int array) {
    CUDA_MEMCPY3D_PEER c{};
    c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    c.dstMemoryType = array != 0 ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
    c.srcDevice = 0x100000;
    c.dstArray = reinterpret_cast<CUarray>(0xA000);
    c.srcPitch = 256;
    c.WidthInBytes = 64;
    c.Height = 16;
    c.Depth = 1;
    const void* words[] = {&c, nullptr};
    called(cbid, words);
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
    struct {
        const void* copy;
        CUstream stream;
    } arguments{deep != 0 ? static_cast<const void*>(&cube) : &flat, nullptr};
    called(cbid, &arguments);
}
