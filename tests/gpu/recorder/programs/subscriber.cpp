// An injection library that attaches Compute Sanitizer and does nothing: the least cost of any tool built on it.
#include <dlfcn.h>
#include <sanitizer.h>
#include <stdlib.h>

static void callback(void*, Sanitizer_CallbackDomain, Sanitizer_CallbackId, const void*) {}

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
    void* library = dlopen(getenv("TILEPROF_SANITIZER"), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return 0;
    auto subscribe = reinterpret_cast<decltype(&sanitizerSubscribe)>(dlsym(library, "sanitizerSubscribe"));
    Sanitizer_SubscriberHandle handle;
    return subscribe != nullptr && subscribe(&handle, callback, nullptr) == SANITIZER_SUCCESS;
}
