#include "driver/launch.h"

#include <string.h>

#include <algorithm>

namespace tileprof::acs {

namespace {

// CU_LAUNCH_PARAM_END, _BUFFER_POINTER and _BUFFER_SIZE
constexpr uintptr_t kEnd = 0, kBuffer = 1, kBufferSize = 2;

}  // namespace

bool copy_parameters(const Function& function, void** parameters, void** extra, char* out) {
    if (parameters != nullptr) {
        for (size_t i = 0; i < function.layout.size(); ++i)
            memcpy(out + function.layout[i].first, parameters[i], function.layout[i].second);
        return true;
    }
    if (extra == nullptr) return function.layout.empty();
    const void* from = nullptr;
    size_t buffer_bytes = 0;
    for (void** at = extra; reinterpret_cast<uintptr_t>(*at) != kEnd; at += 2) {
        if (reinterpret_cast<uintptr_t>(*at) == kBuffer)
            from = at[1];
        else if (reinterpret_cast<uintptr_t>(*at) == kBufferSize)
            buffer_bytes = *static_cast<size_t*>(at[1]);
        else
            return false;
    }
    if (from == nullptr || buffer_bytes < function.bytes) return false;
    const char* source = static_cast<const char*>(from);
    for (const auto& [offset, size] : function.layout) memcpy(out + offset, source + offset, size);
    return true;
}

bool Parameters::read(const Function& function, void** parameters, void** extra) {
    bytes = function.bytes;
    words.assign((bytes + 7) / 8, 0);
    return copy_parameters(function, parameters, extra, reinterpret_cast<char*>(words.data()));
}

const Function& Functions::of(CUfunction handle, const Table& table) {
    std::unique_ptr<Function>& function = functions_[handle];
    if (function != nullptr) return *function;
    function = std::make_unique<Function>();
    const Driver& driver = Driver::get();
    function->handle = handle;
    if (kernels_.count(handle) != 0 &&
        driver.cuKernelGetFunction(&function->handle, reinterpret_cast<CUkernel>(handle)) != kSuccess)
        return *function;
    const char* name = nullptr;
    if (driver.cuFuncGetName(&name, function->handle) != kSuccess || name == nullptr) return *function;
    function->symbol = name;
    for (size_t i = 0;; ++i) {
        size_t offset = 0, size = 0;
        if (driver.cuFuncGetParamInfo(function->handle, i, &offset, &size) != kSuccess) break;
        function->layout.emplace_back(offset, size);
        function->bytes = std::max(function->bytes, offset + size);
    }
    function->known = true;
    function->entries = table.of(name);
    return *function;
}

CUresult issue_as_it_is(const Launch& launch) {
    const Shape& s = launch.shape;
    LaunchConfig config{{s.grid[0], s.grid[1], s.grid[2]},
                        {s.block[0], s.block[1], s.block[2]},
                        s.shared_bytes,
                        launch.stream,
                        const_cast<Attribute*>(launch.attributes),
                        launch.attribute_count};
    if (launch.extended)
        return Driver::get().cuLaunchKernelEx(&config, launch.function, launch.parameters, launch.extra);
    return Driver::get().cuLaunchKernel(launch.function, s.grid[0], s.grid[1], s.grid[2], s.block[0], s.block[1],
                                        s.block[2], s.shared_bytes, launch.stream, launch.parameters, launch.extra);
}

CUresult issue(const Launch& launch, CUstream stream, void** parameters, void** extra) {
    const Driver& driver = Driver::get();
    const Shape& s = launch.shape;
    if (!launch.extended)
        return driver.cuLaunchKernel(launch.function, s.grid[0], s.grid[1], s.grid[2], s.block[0], s.block[1],
                                     s.block[2], s.shared_bytes, stream, parameters, extra);
    LaunchConfig config{{s.grid[0], s.grid[1], s.grid[2]},
                        {s.block[0], s.block[1], s.block[2]},
                        s.shared_bytes,
                        stream,
                        const_cast<Attribute*>(launch.attributes),
                        launch.attribute_count};
    // A kernel that may begin before the previous one ends was written for the kernel that the program launched
    // before it.
    Attribute attributes[16];
    for (unsigned i = 0; i < launch.attribute_count; ++i)
        if (launch.attributes[i].id == kProgrammatic && launch.attribute_count <= 16) {
            memcpy(attributes, launch.attributes, launch.attribute_count * sizeof(Attribute));
            for (unsigned k = 0; k < launch.attribute_count; ++k)
                if (attributes[k].id == kProgrammatic) attributes[k].id = kIgnored;
            config.attributes = attributes;
            break;
        }
    return driver.cuLaunchKernelEx(&config, launch.function, parameters, extra);
}

Work work_of(const Launch& launch) {
    auto make = [](const void* what, CUstream stream) {
        const auto& l = *static_cast<const Launch*>(what);
        return issue(l, stream, l.parameters, l.extra);
    };
    return {make, &launch};
}

Work work_of(const Move& move) {
    auto make = [](const void* what, CUstream stream) {
        const auto& m = *static_cast<const Move*>(what);
        const Driver& driver = Driver::get();
        switch (m.kind) {
            case Move::kFill8:
                return driver.cuMemsetD8Async(m.to, static_cast<unsigned char>(m.value), m.count, stream);
            case Move::kFill16:
                return driver.cuMemsetD16Async(m.to, static_cast<unsigned short>(m.value), m.count, stream);
            case Move::kFill32:
                return driver.cuMemsetD32Async(m.to, m.value, m.count, stream);
            default:
                return driver.cuMemcpyDtoDAsync_v2(m.to, m.from, m.count, stream);
        }
    };
    return {make, &move};
}

CUresult make(const Mark& mark) {
    const Driver& driver = Driver::get();
    return mark.kind == Mark::kRecord ? driver.cuEventRecord(mark.event, mark.stream)
                                      : driver.cuStreamWaitEvent(mark.stream, mark.event, 0);
}

void Move::access(Access* out) const {
    const size_t bytes = count * (kind == kFill16 ? 2 : kind == kFill32 ? 4 : 1);
    if (bytes == 0) return;
    out->writes.push_back({to, to + bytes});
    if (kind == kCopy) out->reads.push_back({from, from + bytes});
}

uint64_t mix(uint64_t hash, const Attribute& attribute) {
    size_t bytes = sizeof attribute.bytes;  // attributes that are unknown
    switch (attribute.id) {
        case kIgnored:
            bytes = 0;
            break;
        case kCooperative:
        case kSpreadOverCluster:
        case kProgrammatic:
        case kPriority:
        case 3:   // how the host waits
        case 10:  // domain of memory fences
        case 14:  // share of shared memory
            bytes = 4;
            break;
        case kCluster:
        case 11:  // preferred cluster
            bytes = 12;
            break;
        default:
            break;
    }
    hash = mix(hash, static_cast<uint64_t>(attribute.id));
    for (size_t at = 0; at < bytes; at += 4) {
        uint32_t word = 0;
        memcpy(&word, attribute.bytes + at, sizeof word);
        hash = mix(hash, static_cast<uint64_t>(word));
    }
    return hash;
}

const char* immovable(const Launch& launch) {
    for (unsigned i = 0; i < launch.attribute_count; ++i) {
        switch (launch.attributes[i].id) {
            case kIgnored:
            case kCluster:
            case kSpreadOverCluster:
            case kPriority:
                break;
            case kProgrammatic:
                if (launch.attribute_count > 16) return "attributes";
                break;
            case kCooperative:
                if (launch.attributes[i].value != 0) return "a cooperative launch";
                break;
            case kProgrammaticEvent:
            case kCompletionEvent:
                return "an event of the launch";
            case kDeviceUpdatable:
                return "a node that kernels update";
            default:
                break;  // 1, 9, 10, 11, 14, 16: attributes of how a kernel runs, not when
        }
    }
    return nullptr;
}

uint64_t configuration_of(const Launch& launch) {
    const Shape& s = launch.shape;
    uint64_t hash = mix(reinterpret_cast<uint64_t>(launch.function), uint64_t{launch.parameters == nullptr});
    hash = mix(hash, static_cast<uint64_t>(s.grid[0]) << 32 | s.grid[1]);
    hash = mix(hash, static_cast<uint64_t>(s.grid[2]) << 32 | s.shared_bytes);
    hash = mix(hash, static_cast<uint64_t>(s.block[0]) << 40 | static_cast<uint64_t>(s.block[1]) << 20 | s.block[2]);
    hash = mix(hash, uint64_t{launch.attribute_count});
    for (unsigned i = 0; i < launch.attribute_count; ++i) hash = mix(hash, launch.attributes[i]);
    return hash;
}

}  // namespace tileprof::acs
