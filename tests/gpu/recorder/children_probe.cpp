// An injection library that finds out what Compute Sanitizer tells a tool of grids that kernels launch. In the
// environment: TILEPROF_SANITIZER (the library), PROBE_PATCHES (a fatbin), PROBE_WAY: "launch" sets callback data where
// a launch is reported, "function" for every function of a module when the module is loaded, "both" does both, the
// function's before each launch. A line for each launch that is reported, and one for each block that ran patched.
#include <dlfcn.h>
#include <sanitizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <string>
#include <vector>

#include "children_probe.h"

namespace {

void* library;

template <class F>
F* theirs(const char* name) {
    return reinterpret_cast<F*>(dlsym(library, name));
}
#define CALL(name) theirs<decltype(name)>(#name)

constexpr uint64_t kCapacity = 4096;
CUcontext context;
Seen* seen;
unsigned long long* count;
std::map<CUcontext, bool> patched;
std::vector<std::pair<CUmodule, std::vector<CUfunction>>> functions;
std::string way;
Sanitizer_StreamHandle last_stream;

void said(SanitizerResult result, const char* what) {
    if (result != SANITIZER_SUCCESS) printf("refused %s %d\n", what, static_cast<int>(result));
}

void* allocated(size_t bytes) {
    void* at = nullptr;
    said(CALL(sanitizerAlloc)(context, &at, bytes), "sanitizerAlloc");
    said(CALL(sanitizerMemset)(at, 0, bytes, last_stream), "sanitizerMemset");
    return at;
}

Buffer* buffer_of(uint64_t source) {
    if (seen == nullptr) {
        seen = static_cast<Seen*>(allocated(kCapacity * sizeof(Seen)));
        count = static_cast<unsigned long long*>(allocated(8));
    }
    Buffer there = {source, count, seen, kCapacity};
    void* at = allocated(sizeof there);
    said(CALL(sanitizerMemcpyHostToDeviceAsync)(at, &there, sizeof there, last_stream), "copy");
    return static_cast<Buffer*>(at);
}

void set_functions(uint64_t source) {
    auto of_module =
        reinterpret_cast<decltype(&cuModuleGetFunctionCount)>(dlsym(RTLD_DEFAULT, "cuModuleGetFunctionCount"));
    auto listed =
        reinterpret_cast<decltype(&cuModuleEnumerateFunctions)>(dlsym(RTLD_DEFAULT, "cuModuleEnumerateFunctions"));
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (of_module == nullptr)
        of_module = reinterpret_cast<decltype(of_module)>(dlsym(driver, "cuModuleGetFunctionCount"));
    if (listed == nullptr) listed = reinterpret_cast<decltype(listed)>(dlsym(driver, "cuModuleEnumerateFunctions"));
    for (auto& [module, list] : functions) {
        unsigned some = 0;
        CUresult result = of_module(&some, module);
        list.resize(some);
        if (result == CUDA_SUCCESS) result = listed(list.data(), some, module);
        if (source < 2) printf("module of %u functions: %d\n", some, static_cast<int>(result));
        for (CUfunction function : list)
            said(CALL(sanitizerSetCallbackData)(function, buffer_of(source)), "sanitizerSetCallbackData");
    }
}

void finish() {
    if (count == nullptr) return;
    unsigned long long some = 0;
    said(CALL(sanitizerMemcpyDeviceToHost)(&some, count, 8, last_stream), "reading");
    std::vector<Seen> all(some < kCapacity ? some : kCapacity);
    said(CALL(sanitizerMemcpyDeviceToHost)(all.data(), seen, all.size() * sizeof(Seen), last_stream), "reading");
    for (const Seen& s : all)
        printf("block %u of %u grid %lld pc %llx source %llu\n", s.block, s.blocks, static_cast<long long>(s.grid),
               static_cast<unsigned long long>(s.pc), static_cast<unsigned long long>(s.source));
    fflush(stdout);
}

uint64_t launches;

void callback(void*, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data) {
    if (domain == SANITIZER_CB_DOMAIN_RESOURCE && id == SANITIZER_CBID_RESOURCE_MODULE_LOADED) {
        auto* module = static_cast<const Sanitizer_ResourceModuleData*>(data);
        context = module->context;
        if (!patched[context])
            said(CALL(sanitizerAddPatchesFromFile)(getenv("PROBE_PATCHES"), context), "patches"),
                patched[context] = true;
        said(CALL(sanitizerPatchInstructions)(SANITIZER_INSTRUCTION_BLOCK_ENTER, module->module, "probe_enter"),
             "enter");
        said(CALL(sanitizerPatchModule)(module->module), "patching");
        printf("module %p patched\n", static_cast<void*>(module->module));
        functions.emplace_back(module->module, std::vector<CUfunction>{});
    }
    if (domain == SANITIZER_CB_DOMAIN_LAUNCH && id == SANITIZER_CBID_LAUNCH_BEGIN) {
        auto* launch = static_cast<const Sanitizer_LaunchData*>(data);
        context = launch->context, last_stream = launch->hStream;
        const uint64_t number = ++launches;
        printf("launch %s source %llu\n", launch->functionName, static_cast<unsigned long long>(2 * number));
        if (way != "launch") set_functions(2 * number + 1);
        if (way != "function")
            said(CALL(sanitizerSetLaunchCallbackData)(launch->hLaunch, launch->function, launch->hStream,
                                                      buffer_of(2 * number)),
                 "sanitizerSetLaunchCallbackData");
    }
    if (domain == SANITIZER_CB_DOMAIN_SYNCHRONIZE) return;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
    library = dlopen(getenv("TILEPROF_SANITIZER"), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return 0;
    way = getenv("PROBE_WAY");
    Sanitizer_SubscriberHandle handle;
    said(CALL(sanitizerSubscribe)(&handle, callback, nullptr), "subscribing");
    for (auto domain : {SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CB_DOMAIN_LAUNCH})
        said(CALL(sanitizerEnableDomain)(1, handle, domain), "enabling");
    atexit(finish);
    return 1;
}
