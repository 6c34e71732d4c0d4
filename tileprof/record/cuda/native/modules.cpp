// The program's modules and kernels: what their code is, by what names kernels are wanted or left alone, and when they
// are patched.
#include <cxxabi.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "recorder.h"

namespace tileprof {

namespace {

using u64 = unsigned long long;

// Names that are not mangled stay: that of a C kernel "t" would be a type's.
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

void Recorder::module_loaded(const Sanitizer_ResourceModuleData& data) {
    module_unloaded(data);  // had it gone without a word, its handle would stand for this one now
    Module& module = modules_[data.module];
    module.context = data.context;
    module.codes = scan_cubin(data.pCubin, data.cubinSize);
    module.left_alone = left_alone(module);
    if (seeing()) follow_regions(data.module, &module);
}

// Kernels keep their ids; a handle stands for them no longer.
void Recorder::module_unloaded(const Sanitizer_ResourceModuleData& data) {
    auto found = modules_.find(data.module);
    if (found == modules_.end()) return;
    found->second.gone = true;
    if (found->second.changing) {  // a thread goes on with it
        unloaded_.push_back(modules_.extract(found));
    } else {
        modules_.erase(found);
    }
    std::set<uint32_t> gone;
    for (auto at = kernels_.lower_bound({data.module, ""}); at != kernels_.end() && at->first.first == data.module;) {
        gone.insert(at->second->id);
        at = kernels_.erase(at);
    }
    for (auto at = handles_.begin(); at != handles_.end();)
        at = gone.count(at->second) != 0 ? handles_.erase(at) : ++at;
}

bool Recorder::is_wanted(const std::string& readable) const {
    return (!options.kernel || std::regex_search(readable, *options.kernel)) &&
           (!options.exclude || !std::regex_search(readable, *options.exclude));
}

bool Recorder::is_aside(const std::string& readable) const {
    return options.spinning && std::regex_search(readable, *options.spinning) &&
           !(options.include && std::regex_search(readable, *options.include));
}

// Patches would only slow such kernels down, which others wait for.
bool Recorder::left_alone(const Module& module) const {
    bool any = false;
    for (const auto& [name, code] : module.codes) {
        if (!code.entry) continue;
        any = true;
        if (!is_aside(demangled(name.c_str()))) return false;
    }
    return any;
}

bool Recorder::add_patches(CUcontext context) {
    auto [known, fresh] = patched_contexts_.try_emplace(context, Patches::kAdding);
    while (!fresh && patched_contexts_[context] == Patches::kAdding) pause_without_holds();
    if (!fresh) return patched_contexts_[context] == Patches::kAdded;
    bool ok = check(api.sanitizerAddPatches(patches_.data(), context), "loading the device patches");
    patched_contexts_[context] = ok ? Patches::kAdded : Patches::kRefused;
    return ok;
}

// One thread changes a module's code at a time. When it is done, a region may have ended or begun meanwhile.
void Recorder::follow_regions(CUmodule handle, Module* module) {
    if (module->left_alone || module->changing) return;
    module->changing = true;
    while (!module->gone && module->patched != seeing())
        if (!(seeing() ? patch(handle, module) : unpatch(handle, module))) break;
    module->changing = false;
}

bool Recorder::patch(CUmodule handle, Module* module) {
    if (!add_patches(module->context)) return false;
    module->patched = prepare_and_patch(handle, module);
    module->prepared = true;
    return module->patched;
}

bool Recorder::prepare_and_patch(CUmodule handle, Module* module) {
    if (!module->prepared) module->unpatched.clear();
    auto prepare = [&](const Patch& p) {
        if (!check(api.sanitizerPatchInstructions(p.instruction, handle, p.function), p.function))
            module->unpatched.push_back(p.function);
    };
    if (!module->prepared && options.pass == Pass::kFloor)
        for (const Patch& p : kFloorPatches) prepare(p);
    if (!module->prepared && options.pass != Pass::kFloor)
        for (const Patch& p : kBlockPatches) prepare(p);
    if (!module->prepared && options.pass == Pass::kAccesses)
        for (const Patch& p : kAccessPatches) prepare(p);
    return check(api.sanitizerPatchModule(handle), "patching a module");
}

// The header says that this removes "any instrumentation": what to patch is said again next time.
bool Recorder::unpatch(CUmodule handle, Module* module) {
    if (!check(api.sanitizerUnpatchModule(handle), "unpatching a module")) return false;
    module->patched = module->prepared = false;
    return true;
}

// For a launch's event: patches that its module lacks; nothing when it has all.
std::string Recorder::unpatched(CUmodule handle) const {
    auto found = modules_.find(handle);
    if (found == modules_.end() || found->second.unpatched.empty()) return "";
    std::string list;
    for (const std::string& name : found->second.unpatched) list += (list.empty() ? "\"" : ",\"") + name + "\"";
    return ",\"unpatched\":[" + list + "]";
}

const Kernel& Recorder::kernel(CUmodule module, const char* name) {
    auto [at, fresh] = kernels_.try_emplace({module, name});
    if (fresh) {
        at->second = &all_kernels_.emplace_back();
        Kernel& kernel = *at->second;
        kernel.id = static_cast<uint32_t>(all_kernels_.size() - 1);
        kernel.module = module;
        bool scanned = false;
        kernel.name = demangled(name);
        auto found = modules_.find(module);
        if (found != modules_.end()) {
            auto code = found->second.codes.find(name);
            if (code != found->second.codes.end()) {
                kernel.code = code->second;
                scanned = true;
            }
            kernel.patched = !found->second.left_alone;
        }
        kernel.wanted = is_wanted(kernel.name);
        kernel.aside = is_aside(kernel.name);
        uint64_t pc = 0, bytes = 0;  // 0: not known; then block entries cannot be held against it
        if (api.sanitizerGetFunctionPcAndSize(module, name, &pc, &bytes) != SANITIZER_SUCCESS) pc = bytes = 0;
        log_.event(
            "\"e\":\"kernel\",\"id\":%u,\"name\":%s,\"symbol\":%s,\"scanned\":%d,\"fingerprint\":\"%016llx\","
            "\"registers\":%u,\"static_shared\":%u,\"parameters\":[%u,%u],\"tensor_load\":%d,\"tensor_store\":%d,"
            "\"tensor_reduce\":%d,\"texture\":%d,\"surface\":%d,\"launches\":%d,\"constants\":%zu,\"code\":[%llu,%llu]",
            kernel.id, quoted(kernel.name.c_str()).c_str(), quoted(name).c_str(), scanned,
            static_cast<u64>(kernel.code.fingerprint), kernel.code.registers, kernel.code.static_shared_bytes,
            kernel.code.parameter_offset, kernel.code.parameter_bytes, kernel.code.tensor_load,
            kernel.code.tensor_store, kernel.code.tensor_reduce, kernel.code.texture, kernel.code.surface,
            kernel.code.launches, kernel.code.constants.size(), static_cast<u64>(pc), static_cast<u64>(bytes));
    }
    return *at->second;
}

}  // namespace tileprof
