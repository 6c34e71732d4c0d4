// An injection library that finds out what Compute Sanitizer tells a tool of grids that kernels launch. It sets
// callback data where a launch is reported, and patches all code. In the environment: TILEPROF_SANITIZER (the library)
// and PROBE_PATCHES (a fatbin). It prints a line for each launch that is reported, and one for each block that
// enters patched, and each group of threads that exits.
#include <dlfcn.h>
#include <sanitizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>
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
Sanitizer_StreamHandle last_stream;

void report(SanitizerResult result, const char* what) {
    if (result != SANITIZER_SUCCESS) printf("refused %s %d\n", what, static_cast<int>(result));
}

void* allocated(size_t bytes) {
    void* at = nullptr;
    report(CALL(sanitizerAlloc)(context, &at, bytes), "sanitizerAlloc");
    report(CALL(sanitizerMemset)(at, 0, bytes, last_stream), "sanitizerMemset");
    return at;
}

Buffer* buffer_of(uint64_t source) {
    if (seen == nullptr) {
        seen = static_cast<Seen*>(allocated(kCapacity * sizeof(Seen)));
        count = static_cast<unsigned long long*>(allocated(8));
    }
    Buffer there = {source, count, seen, kCapacity};
    void* at = allocated(sizeof there);
    report(CALL(sanitizerMemcpyHostToDeviceAsync)(at, &there, sizeof there, last_stream), "copy");
    return static_cast<Buffer*>(at);
}

void finish() {
    if (count == nullptr) return;
    unsigned long long some = 0;
    report(CALL(sanitizerMemcpyDeviceToHost)(&some, count, 8, last_stream), "reading");
    std::vector<Seen> all(some < kCapacity ? some : kCapacity);
    report(CALL(sanitizerMemcpyDeviceToHost)(all.data(), seen, all.size() * sizeof(Seen), last_stream), "reading");
    for (const Seen& s : all)
        printf("block %u of %u grid %lld pc %llx source %llu left %u\n", s.block, s.blocks,
               static_cast<long long>(s.grid), static_cast<unsigned long long>(s.pc),
               static_cast<unsigned long long>(s.source), s.left);
    fflush(stdout);
}

uint64_t launches;

void callback(void*, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data) {
    if (domain == SANITIZER_CB_DOMAIN_RESOURCE && id == SANITIZER_CBID_RESOURCE_MODULE_LOADED) {
        auto* module = static_cast<const Sanitizer_ResourceModuleData*>(data);
        context = module->context;
        if (!patched[context])
            report(CALL(sanitizerAddPatchesFromFile)(getenv("PROBE_PATCHES"), context), "patches"),
                patched[context] = true;
        report(CALL(sanitizerPatchInstructions)(SANITIZER_INSTRUCTION_BLOCK_ENTER, module->module, "probe_enter"),
               "enter");
        report(CALL(sanitizerPatchInstructions)(SANITIZER_INSTRUCTION_BLOCK_EXIT, module->module, "probe_exit"),
               "exit");
        report(CALL(sanitizerPatchModule)(module->module), "patching");
        printf("module %p patched\n", static_cast<void*>(module->module));
    }
    if (domain == SANITIZER_CB_DOMAIN_LAUNCH && id == SANITIZER_CBID_LAUNCH_BEGIN) {
        auto* launch = static_cast<const Sanitizer_LaunchData*>(data);
        context = launch->context, last_stream = launch->hStream;
        const uint64_t number = ++launches;
        printf("launch %s source %llu\n", launch->functionName, static_cast<unsigned long long>(number));
        report(
            CALL(sanitizerSetLaunchCallbackData)(launch->hLaunch, launch->function, launch->hStream, buffer_of(number)),
            "sanitizerSetLaunchCallbackData");
    }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
    library = dlopen(getenv("TILEPROF_SANITIZER"), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return 0;
    Sanitizer_SubscriberHandle handle;
    report(CALL(sanitizerSubscribe)(&handle, callback, nullptr), "subscribing");
    for (auto domain : {SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CB_DOMAIN_LAUNCH})
        report(CALL(sanitizerEnableDomain)(1, handle, domain), "enabling");
    atexit(finish);
    return 1;
}
