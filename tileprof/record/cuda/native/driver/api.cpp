#include "driver/api.h"

#include <dlfcn.h>

#include "log/log.h"

namespace tileprof {

Api api;

std::string Api::load(const char* sanitizer_path) {
    void* library = dlopen(sanitizer_path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return std::string("cannot load ") + sanitizer_path + ": " + dlerror();
#define X(name)                                                                       \
    name.function = reinterpret_cast<decltype(name.function)>(dlsym(library, #name)); \
    if (name.function == nullptr)                                                     \
        return std::string(sanitizer_path) + " has no symbol " #name                  \
                                             ": it is too old; update nvidia-cuda-sanitizer-api";
    TILEPROF_SANITIZER_FUNCTIONS(X)
#undef X
    return "";
}

std::string Api::load_driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return std::string("cannot load libcuda.so.1: ") + dlerror();
#define STRING_OF(name) #name
#define X(name)                                                                                 \
    name.function = reinterpret_cast<decltype(name.function)>(dlsym(library, STRING_OF(name))); \
    if (name.function == nullptr)                                                               \
        return "libcuda.so.1 has no symbol " STRING_OF(                                         \
            name) ": the NVIDIA driver is too old, CUDA 12.4 is the first that has all";
    TILEPROF_DRIVER_FUNCTIONS(X)
#undef X
#undef STRING_OF
    return "";
}

const char* text_of_result(SanitizerResult result) {
    const char* text = "unknown result";
    if (api.sanitizerGetResultString.function != nullptr) api.sanitizerGetResultString(result, &text);
    return text;
}

bool check(SanitizerResult result, const char* what) {
    if (result == SANITIZER_SUCCESS) return true;
    complain("%s: %s (%d)", what, text_of_result(result), static_cast<int>(result));
    return false;
}

}  // namespace tileprof
