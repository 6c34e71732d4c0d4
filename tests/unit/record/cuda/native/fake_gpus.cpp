// The answers of fake_driver.cpp about its GPUs. FAKE_GPUS is "name|major|minor|SMs|bytes|L2 bytes|MPS;...", and
// FAKE_INIT is the result of cuInit.
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

std::vector<std::vector<std::string>> gpus() {
    std::vector<std::vector<std::string>> out;
    const char* text = getenv("FAKE_GPUS");
    for (const char* c = text == nullptr ? "" : text; *c != 0; ++c) {
        if (c == text || *c == ';') out.emplace_back(1);
        if (*c == '|')
            out.back().emplace_back();
        else if (*c != ';')
            out.back().back() += *c;
    }
    return out;
}

}  // namespace

size_t gpu_count() { return gpus().size(); }

API CUresult cuInit(unsigned) {
    return static_cast<CUresult>(getenv("FAKE_INIT") == nullptr ? 0 : atoi(getenv("FAKE_INIT")));
}
API CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    snprintf(name, static_cast<size_t>(length), "%s", gpus()[static_cast<size_t>(device)][0].c_str());
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
    const std::map<int, size_t> places = {{75, 1}, {76, 2}, {16, 3}, {38, 5}, {133, 6}};
    auto place = places.find(which);
    const auto gpu = gpus()[static_cast<size_t>(device)];
    if (place == places.end() || gpu[place->second].empty()) return CUDA_ERROR_INVALID_VALUE;
    *value = atoi(gpu[place->second].c_str());
    return CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {  // of cuda.h's version, by macro
    *bytes = strtoull(gpus()[static_cast<size_t>(device)][4].c_str(), nullptr, 10);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid_v2(CUuuid* id, CUdevice device) {
    memset(id, device + 1, sizeof *id);
    return CUDA_SUCCESS;
}
