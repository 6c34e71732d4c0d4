#include "code/modules.h"

#include <cxxabi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log/events.h"
#include "log/log.h"
#include "driver/waiting.h"

namespace tileprof {

namespace {

// Names that are not mangled stay as they are: demangled, the name of a C kernel "t" would be that of a type.
std::string demangled(const char* name) {
    if (strncmp(name, "_Z", 2) != 0) return name;
    int status = 0;
    char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    std::string out = status == 0 && text != nullptr ? text : name;
    free(text);
    return out;
}

struct Patch {
    Sanitizer_InstructionId instruction;
    const char* function;
};

constexpr Patch kBlockPatches[] = {
    {SANITIZER_INSTRUCTION_BLOCK_ENTER, "tileprof_block_enter"},
    {SANITIZER_INSTRUCTION_BLOCK_EXIT, "tileprof_block_exit"},
};
constexpr Patch kAccessPatches[] = {
    {SANITIZER_INSTRUCTION_GLOBAL_MEMORY_ACCESS, "tileprof_access"},
    {SANITIZER_INSTRUCTION_MEMCPY_ASYNC, "tileprof_copy_async"},
    {SANITIZER_INSTRUCTION_BULK_COPY_GLOBAL_TO_SHARED, "tileprof_bulk_load"},
    {SANITIZER_INSTRUCTION_BULK_COPY_SHARED_TO_GLOBAL, "tileprof_bulk_store"},
    {SANITIZER_INSTRUCTION_BULK_REDUCTION_SHARED_TO_GLOBAL, "tileprof_bulk_reduce"},
    {SANITIZER_INSTRUCTION_TMA_LOAD, "tileprof_tensor_load"},
};
constexpr Patch kFloorPatches[] = {
    {SANITIZER_INSTRUCTION_BLOCK_ENTER, "tileprof_nothing"},
    {SANITIZER_INSTRUCTION_BLOCK_EXIT, "tileprof_nothing"},
    {SANITIZER_INSTRUCTION_GLOBAL_MEMORY_ACCESS, "tileprof_nothing_access"},
    {SANITIZER_INSTRUCTION_MEMCPY_ASYNC, "tileprof_nothing_copy"},
    {SANITIZER_INSTRUCTION_TMA_LOAD, "tileprof_nothing_tensor"},
};

}  // namespace

std::string Modules::read_patches(const std::string& path) {
    FILE* file = fopen(path.c_str(), "rb");
    if (file == nullptr) return "cannot read " + path;
    char block[1 << 16];
    for (size_t n; (n = fread(block, 1, sizeof block, file)) > 0;) patches_.insert(patches_.end(), block, block + n);
    fclose(file);
    return "";
}

void Modules::loaded(const Sanitizer_ResourceModuleData& data) {
    unloaded(data.module);  // if its unloading was not reported, its handle now belongs to the new module
    Module& module = modules_[data.module];
    module.context = data.context;
    module.codes = scan_cubin(data.pCubin, data.cubinSize, on_demand_);
    module.left_alone = left_alone(module);
    module.waits = on_demand_ && !module.left_alone;
    if (options_.sees_work() && !module.waits) follow_regions(data.module, &module);
}

// Kernels keep their ids; the handle no longer refers to them.
void Modules::unloaded(CUmodule handle) {
    auto module = modules_.find(handle);
    if (module == modules_.end()) return;
    module->second.gone = true;
    if (module->second.changing) {  // a thread continues with it
        unloaded_.push_back(modules_.extract(module));
    } else {
        modules_.erase(module);
    }
    std::set<uint32_t> unloaded_ids;
    for (auto at = by_symbol_.lower_bound({handle, ""}); at != by_symbol_.end() && at->first.first == handle;) {
        unloaded_ids.insert(at->second->id);
        at = by_symbol_.erase(at);
    }
    for (auto at = handles_.begin(); at != handles_.end();)
        at = unloaded_ids.count(at->second) != 0 ? handles_.erase(at) : ++at;
}

void Modules::context_destroyed(CUcontext context) {
    contexts_.erase(context);
    std::vector<CUmodule> handles;
    for (const auto& [handle, module] : modules_)
        if (module.context == context) handles.push_back(handle);
    for (CUmodule handle : handles) unloaded(handle);
}

int Modules::id_of(const void* handle) const {
    auto kernel = handles_.find(handle);
    return kernel == handles_.end() ? -1 : static_cast<int>(kernel->second);
}

const Kernel* Modules::kernel_of(const void* handle, CUfunction* function) {
    *function = static_cast<CUfunction>(const_cast<void*>(handle));
    CUmodule module = nullptr;
    if (api.cuFuncGetModule(&module, *function) != CUDA_SUCCESS || modules_.count(module) == 0) {
        auto kernel = static_cast<CUkernel>(const_cast<void*>(handle));
        if (api.cuKernelGetFunction(function, kernel) != CUDA_SUCCESS ||
            api.cuFuncGetModule(&module, *function) != CUDA_SUCCESS || modules_.count(module) == 0)
            return nullptr;
    }
    const char* name = nullptr;
    return api.cuFuncGetName(&name, *function) == CUDA_SUCCESS ? &this->kernel(module, name) : nullptr;
}

bool Modules::is_left(CUmodule handle) const {
    auto module = modules_.find(handle);
    return module != modules_.end() && module->second.waits;
}

void Modules::patch_module(CUmodule handle) {
    auto module = modules_.find(handle);
    if (module == modules_.end() || module->second.left_alone) return;
    ContextGuard inside(module->second.context);
    module->second.waits = false;
    module->second.streams.clear();
    follow_regions(handle, &module->second);
}

std::vector<CUmodule> Modules::end_leaving_unpatched() {
    on_demand_ = false;
    std::vector<CUmodule> handles;
    for (const auto& [handle, module] : modules_)
        if (module.waits) handles.push_back(handle);
    return handles;
}

void Modules::ran_unpatched(CUmodule handle, Sanitizer_StreamHandle stream) {
    auto module = modules_.find(handle);
    if (module != modules_.end()) module->second.streams.insert(stream);
}

std::set<Sanitizer_StreamHandle> Modules::streams_of(CUmodule handle) const {
    auto module = modules_.find(handle);
    return module == modules_.end() ? std::set<Sanitizer_StreamHandle>{} : module->second.streams;
}

CUcontext Modules::context_of(CUmodule handle) const {
    auto module = modules_.find(handle);
    return module == modules_.end() ? nullptr : module->second.context;
}

std::vector<CUmodule> Modules::ran_in(Sanitizer_StreamHandle stream) const {
    std::vector<CUmodule> handles;
    for (const auto& [handle, module] : modules_)
        if (module.streams.count(stream) != 0) handles.push_back(handle);
    return handles;
}

void Modules::end_stream(Sanitizer_StreamHandle stream, bool rested) {
    for (auto& [handle, module] : modules_)
        if (module.streams.erase(stream) != 0 && !rested) module.left_alone = true;  // while it `waits`
}

bool Modules::is_wanted(const std::string& name) const {
    return (!options_.kernel || std::regex_search(name, *options_.kernel)) &&
           (!options_.exclude || !std::regex_search(name, *options_.exclude));
}

bool Modules::is_aside(const std::string& name) const {
    return options_.spinning && std::regex_search(name, *options_.spinning) &&
           !(options_.include && std::regex_search(name, *options_.include));
}

// Patches would only slow down these kernels, for which others wait.
bool Modules::left_alone(const Module& module) const {
    bool any = false;
    for (const auto& [symbol, code] : module.codes) {
        if (!code.entry) continue;
        any = true;
        if (!is_aside(demangled(symbol.c_str()))) return false;
    }
    return any;
}

bool Modules::add_patches(CUcontext context) {
    auto [state, fresh] = contexts_.try_emplace(context, Patches::kAdding);
    while (!fresh && contexts_[context] == Patches::kAdding) pause_without_holds();
    if (!fresh) return contexts_[context] == Patches::kAdded;
    bool ok = check(api.sanitizerAddPatches(patches_.data(), context), "loading the device patches");
    contexts_[context] = ok ? Patches::kAdded : Patches::kRefused;
    return ok;
}

void Modules::follow_regions() {
    std::vector<CUmodule> handles;  // other threads may load and unload modules meanwhile
    for (const auto& [handle, module] : modules_) handles.push_back(handle);
    for (CUmodule handle : handles) {
        auto module = modules_.find(handle);
        if (module != modules_.end()) follow_regions(handle, &module->second);
    }
}

// One thread at a time changes the code of a module. When it has finished, a region may have ended or begun
// meanwhile.
void Modules::follow_regions(CUmodule handle, Module* module) {
    if (module->left_alone || module->waits || module->changing) return;
    module->changing = true;
    while (!module->gone && module->patched != options_.sees_work())
        if (!(options_.sees_work() ? patch(handle, module) : unpatch(handle, module))) break;
    module->changing = false;
}

bool Modules::patch(CUmodule handle, Module* module) {
    if (!add_patches(module->context)) return false;
    module->patched = prepare_and_patch(handle, module);
    module->prepared = true;
    return module->patched;
}

bool Modules::prepare_and_patch(CUmodule handle, Module* module) {
    if (!module->prepared) module->refused.clear();
    auto prepare = [&](const Patch& p) {
        if (!check(api.sanitizerPatchInstructions(p.instruction, handle, p.function), p.function))
            module->refused.push_back(p.function);
    };
    if (!module->prepared && options_.pass == Pass::kFloor)
        for (const Patch& p : kFloorPatches) prepare(p);
    if (!module->prepared && options_.pass != Pass::kFloor)
        for (const Patch& p : kBlockPatches) prepare(p);
    if (!module->prepared && (options_.pass == Pass::kAccesses || options_.pass == Pass::kFilters))
        for (const Patch& p : kAccessPatches) prepare(p);
    return check(api.sanitizerPatchModule(handle), "patching a module");
}

// The header says that this removes "any instrumentation", so the patches have to be set up again next time.
bool Modules::unpatch(CUmodule handle, Module* module) {
    if (!check(api.sanitizerUnpatchModule(handle), "unpatching a module")) return false;
    module->patched = module->prepared = false;
    return true;
}

std::vector<std::string> Modules::refused_patches(CUmodule handle) const {
    auto module = modules_.find(handle);
    return module == modules_.end() ? std::vector<std::string>{} : module->second.refused;
}

CUcontext Modules::any_context() const { return modules_.empty() ? nullptr : modules_.begin()->second.context; }

std::vector<CUcontext> Modules::patched_contexts() const {
    std::vector<CUcontext> contexts;
    for (const auto& [context, patches] : contexts_) contexts.push_back(context);
    return contexts;
}

void Modules::wait_for_contexts() {
    std::set<CUcontext> contexts;
    for (const auto& [handle, module] : modules_) contexts.insert(module.context);
    for (CUcontext context : contexts) {
        ContextGuard inside(context);
        CUresult result = api.cuCtxSynchronize();
        if (result != CUDA_SUCCESS)
            complain("waiting before code is patched: the driver returns %d", static_cast<int>(result));
    }
}

void Modules::report_constants(const Kernel& kernel) {
    auto module = modules_.find(kernel.module);
    if (kernel.code.constants.empty() || module == modules_.end() || !constants_reported_.insert(kernel.id).second)
        return;
    ContextGuard inside(module->second.context);
    events::Ranges ranges;
    for (const std::string& name : kernel.code.constants) {
        CUdeviceptr address = 0;
        size_t bytes = 0;
        CUresult result = api.cuModuleGetGlobal(&address, &bytes, kernel.module, name.c_str());
        // A variable that the driver does not find by its name cannot be written by a program: it is a table of the
        // compiler.
        if (result == CUDA_ERROR_NOT_FOUND) continue;
        if (result != CUDA_SUCCESS) return;  // then it may read anything
        ranges.emplace_back(address, bytes);
    }
    events::constants(kernel.id, ranges);
}

const Kernel& Modules::kernel(CUmodule module, const char* symbol) {
    auto [at, fresh] = by_symbol_.try_emplace({module, symbol});
    if (!fresh) return *at->second;
    at->second = &kernels_.emplace_back();
    Kernel& kernel = *at->second;
    kernel.id = static_cast<uint32_t>(kernels_.size() - 1);
    kernel.module = module;
    kernel.name = demangled(symbol);
    auto home = modules_.find(module);
    if (home != modules_.end()) {
        auto code = home->second.codes.find(symbol);
        if (code != home->second.codes.end()) {
            kernel.code = code->second;
            kernel.scanned = true;
        }
        kernel.patched = !home->second.left_alone;
    }
    kernel.wanted = is_wanted(kernel.name);
    kernel.aside = is_aside(kernel.name);
    uint64_t address = 0, bytes = 0;  // 0: unknown; block entries then cannot be checked against it
    if (api.sanitizerGetFunctionPcAndSize(module, symbol, &address, &bytes) != SANITIZER_SUCCESS) address = bytes = 0;
    events::kernel(kernel, symbol, address, bytes);
    if (kernel.code.stores_through_maps() && kernel.code.text && kernel.code.relocated.empty() &&
        options_.pass == Pass::kAccesses)
        log_.file("code-" + std::to_string(kernel.id) + ".bin", kernel.code.text->data(), kernel.code.text->size());
    return kernel;
}

}  // namespace tileprof
