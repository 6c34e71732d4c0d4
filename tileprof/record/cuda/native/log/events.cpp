#include "log/events.h"

#include <stdio.h>
#include <unistd.h>

#include "log/log.h"
#include "code/modules.h"
#include "launches/marks.h"

namespace tileprof {

std::string text_of(Sanitizer_StreamHandle stream) {
    char text[32];
    snprintf(text, sizeof text, "%p", static_cast<void*>(stream));
    return text;
}

namespace events {

namespace {

using u64 = unsigned long long;  // as printf takes it

u64 now() { return now_ns(); }

// Writes a list: values between commas, in brackets.
template <typename Items, typename Text>
std::string list(const Items& items, const Text& text) {
    std::string out;
    for (const auto& item : items) out += (out.empty() ? "" : ",") + text(item);
    return "[" + out + "]";
}

std::string pairs(const Ranges& ranges) {
    return list(ranges, [](const auto& range) {
        return "[" + std::to_string(range.first) + "," + std::to_string(range.second) + "]";
    });
}

std::string quoted_list(const std::vector<std::string>& names) {
    return list(names, [](const std::string& name) { return quoted(name.c_str()); });
}

void place(const char* kind, const LaunchFields& f) {
    marks::write();
    const Sanitizer_LaunchData& d = *f.data;
    std::string more = f.unpatched.empty() ? "" : ",\"unpatched\":" + quoted_list(f.unpatched);
    if (const Parameters& p = f.parameters; p.place >= 0)
        more += ",\"parameters\":[" + std::to_string(p.place) + "," + std::to_string(p.bytes) +
                "],\"pointers\":" + list(p.pointers, [](uint32_t word) { return std::to_string(word); });
    log_.event(R"("e":"%s","launch":%u,"kernel":%u,"grid":[%u,%u,%u],"block":[%u,%u,%u],"cluster":[%u,%u,%u],)"
               R"("stream":"%p","context":%d,"device":%d,"graph":%d,"generation":%u,"ordinal":%llu,"aside":%d,)"
               R"("counted":%d,"t":%llu%s)",
               kind, f.launch, f.kernel->id, d.gridDim_x, d.gridDim_y, d.gridDim_z, d.blockDim_x, d.blockDim_y,
               d.blockDim_z, f.cluster[0], f.cluster[1], f.cluster[2], static_cast<void*>(d.hStream), f.context,
               static_cast<int>(d.device), f.graph, f.generation, static_cast<u64>(f.ordinal), f.aside, f.counted,
               now(), more.c_str());
}

}  // namespace

void start(const Options& options) {
    const char* passes[] = {"floor", "blocks", "accesses", "filters"};
    log_.event(R"("e":"start","version":1,"pid":%d,"pass":"%s","granule":%u,"arena":%llu,"ranged":%d)", getpid(),
               passes[static_cast<int>(options.pass)], 1u << options.granule_shift,
               static_cast<u64>(options.arena_bytes), options.patch_in_ranges);
}

void failed(const char* reason) { log_.event(R"("e":"failed","why":%s)", quoted(reason).c_str()); }

void complaint(const char* text) { log_.event(R"("e":"complaint","text":%s)", quoted(text).c_str()); }

void end() { log_.event(R"("e":"end","t":%llu)", now()); }

void hung(const std::string& kernel) {
    log_.event(R"("e":"hung","kernel":%s,"t":%llu)", quoted(kernel.c_str()).c_str(), now());
}

void drain(uint64_t entries, uint64_t lost) {
    log_.event(R"("e":"drain","entries":%llu,"lost":%llu)", static_cast<u64>(entries), static_cast<u64>(lost));
}

void filters(uint32_t launch, const std::string& file, uint64_t first, uint64_t blocks) {
    log_.event(R"("e":"filters","launch":%u,"file":"%s","first":%llu,"blocks":%llu)", launch, file.c_str(),
               static_cast<u64>(first), static_cast<u64>(blocks));
}

void ranges(const std::string& pattern, uint64_t matched, const std::vector<std::pair<std::string, uint64_t>>& names,
            uint64_t unlisted) {
    std::string listed = list(names, [](const auto& name) {
        return "[" + quoted(name.first.c_str()) + "," + std::to_string(name.second) + "]";
    });
    log_.event(R"("e":"ranges","pattern":%s,"matched":%llu,"names":%s,"unlisted":%llu)",
               quoted(pattern.c_str()).c_str(), static_cast<u64>(matched), listed.c_str(), static_cast<u64>(unlisted));
}

void capture(bool on) { log_.event(R"("e":"capture","on":%d)", on); }

void kernel(const Kernel& k, const char* symbol, uint64_t code_address, uint64_t code_bytes) {
    const KernelCode& code = k.code;
    log_.event(R"("e":"kernel","id":%u,"name":%s,"symbol":%s,"scanned":%d,"fingerprint":"%016llx","registers":%u,)"
               R"("static_shared":%u,"parameters":[%u,%u],"tensor_load":%d,"tensor_store":%d,"tensor_reduce":%d,)"
               R"("texture":%d,"surface":%d,"launches":%d,"constants":%zu,"code":[%llu,%llu])",
               k.id, quoted(k.name.c_str()).c_str(), quoted(symbol).c_str(), k.scanned,
               static_cast<u64>(code.fingerprint), code.registers, code.static_shared_bytes, code.parameter_offset,
               code.parameter_bytes, code.tensor_load, code.tensor_store, code.tensor_reduce, code.texture,
               code.surface, code.launches, code.constants.size(), static_cast<u64>(code_address),
               static_cast<u64>(code_bytes));
}

void launch(const LaunchFields& fields) { place("launch", fields); }

void learn(const LaunchFields& fields) { place("learn", fields); }

void constants(uint32_t kernel, const Ranges& ranges) {
    log_.event(R"("e":"constants","kernel":%u,"ranges":%s)", kernel, pairs(ranges).c_str());
}

void captured(int kernel) {
    marks::write();
    log_.event(R"("e":"captured","kernel":%d,"t":%llu)", kernel, now());
}

void mark(const char* op, const char* module) {
    log_.event(R"("e":"mark","op":%s,"module":%s,"t":%llu)", quoted(op).c_str(), quoted(module).c_str(), now());
}

void graph(int number, CUgraphExec exec, Sanitizer_StreamHandle stream) {
    log_.event(R"("e":"graph","graph":%d,"exec":"%p","stream":"%p")", number, static_cast<void*>(exec),
               static_cast<void*>(stream));
}

void graph_end(uint32_t launch, uint32_t nodes) {
    log_.event(R"("e":"graph_end","launch":%u,"nodes":%u)", launch, nodes);
}

void nodes(uint32_t launch, uint32_t ended, uint64_t threads) {
    log_.event(R"("e":"nodes","launch":%u,"ended":%u,"threads":%llu)", launch, ended, static_cast<u64>(threads));
}

void unfinished(uint32_t launch) { log_.event(R"("e":"unfinished","launch":%u)", launch); }

void spinning(uint32_t launch, uint32_t kernel, double seconds) {
    log_.event(R"("e":"spinning","launch":%u,"kernel":%u,"seconds":%g)", launch, kernel, seconds);
}

void spinning_graph(uint32_t launch, int graph) {
    log_.event(R"("e":"spinning","launch":%u,"graph":%d)", launch, graph);
}

void spill(uint32_t launch, uint32_t accesses, uint32_t beyond) {
    log_.event(R"("e":"spill","launch":%u,"accesses":%u,"beyond":%u)", launch, accesses, beyond);
}

void spilled_page(uint32_t page, bool read, bool written, uint32_t until) {
    log_.event(R"("e":"spilled_page","page":%u,"read":%d,"written":%d,"until":%u)", page, read, written, until);
}

void changed(uint32_t launch, const Ranges& ranges) {
    log_.event(R"("e":"changed","launch":%u,"ranges":%s)", launch, pairs(ranges).c_str());
}

void owners(uint32_t id, uint32_t launch, const std::string& file, uint32_t granule, uint32_t clusters,
            const Ranges& regions, const std::string& refused) {
    log_.event(R"("e":"owners","id":%u,"launch":%u,"file":"%s","granule":%u,"clusters":%u,"regions":%s,"refused":%s)",
               id, launch, file.c_str(), granule, clusters, pairs(regions).c_str(), quoted(refused.c_str()).c_str());
}

void owned(uint32_t launch, uint32_t id, const std::vector<uint64_t>& bases) {
    std::string numbers = list(bases, [](uint64_t base) { return std::to_string(base); });
    log_.event(R"("e":"owned","launch":%u,"id":%u,"bases":%s)", launch, id, numbers.c_str());
}

void copy(const Sanitizer_MemcpyData& d, int graph) {
    marks::write();
    log_.event(R"("e":"copy","from":%llu,"to":%llu,"bytes":%llu,"width":%llu,"height":%llu,"depth":%llu,)"
               R"("from_pitch":%llu,"to_pitch":%llu,"direction":%d,"stream":"%p","graph":%d,"t":%llu)",
               static_cast<u64>(d.srcAddress), static_cast<u64>(d.dstAddress), static_cast<u64>(d.size),
               static_cast<u64>(d.width), static_cast<u64>(d.height), static_cast<u64>(d.depth),
               static_cast<u64>(d.srcPitch), static_cast<u64>(d.dstPitch), static_cast<int>(d.direction),
               static_cast<void*>(d.hApiStream), graph, now());
}

void set(const Sanitizer_MemsetData& d, int graph) {
    marks::write();
    log_.event(R"("e":"set","to":%llu,"width":%llu,"height":%llu,"to_pitch":%llu,"element":%u,"stream":"%p",)"
               R"("graph":%d,"t":%llu)",
               static_cast<u64>(d.address), static_cast<u64>(d.width), static_cast<u64>(d.height),
               static_cast<u64>(d.pitch), d.elementSize, static_cast<void*>(d.hStream), graph, now());
}

void array_copy(const CopySide& from, const CopySide& to, uint64_t width, uint64_t height, uint64_t depth,
                Sanitizer_StreamHandle stream) {
    marks::write();
    log_.event(R"("e":"array_copy","from":%llu,"from_array":%d,"from_device":%d,"from_bytes":%llu,"from_pitch":%llu,)"
               R"("to":%llu,"to_array":%d,"to_device":%d,"to_bytes":%llu,"to_pitch":%llu,"width":%llu,"height":%llu,)"
               R"("depth":%llu,"stream":"%p","graph":-1,"t":%llu)",
               static_cast<u64>(from.address), from.array, from.on_device, static_cast<u64>(from.bytes),
               static_cast<u64>(from.pitch), static_cast<u64>(to.address), to.array, to.on_device,
               static_cast<u64>(to.bytes), static_cast<u64>(to.pitch), static_cast<u64>(width),
               static_cast<u64>(height), static_cast<u64>(depth), static_cast<void*>(stream), now());
}

void value(uint64_t address, int bytes, bool writes, Sanitizer_StreamHandle stream) {
    marks::write();
    log_.event(R"("e":"value","to":%llu,"bytes":%d,"writes":%d,"stream":"%p","graph":-1,"t":%llu)",
               static_cast<u64>(address), bytes, writes, static_cast<void*>(stream), now());
}

void opaque(int node, int graph, const std::string& stream) {
    marks::write();
    log_.event(R"("e":"opaque","node":%d,"graph":%d,"stream":"%s")", node, graph, stream.c_str());
}

void alloc(const Sanitizer_ResourceMemoryData& d, bool pool) {
    log_.event(R"("e":"alloc","address":%llu,"bytes":%llu,"device":%d,"flags":%u,"pool":%d)",
               static_cast<u64>(d.address), static_cast<u64>(d.size), static_cast<int>(d.device), d.flags, pool);
}

void alloc_host(uint64_t address, uint64_t bytes) {
    log_.event(R"("e":"alloc","address":%llu,"bytes":%llu,"host":1)", static_cast<u64>(address),
               static_cast<u64>(bytes));
}

void alloc_mapped(uint64_t address, uint64_t bytes) {
    log_.event(R"("e":"alloc","address":%llu,"bytes":%llu,"mapped":1)", static_cast<u64>(address),
               static_cast<u64>(bytes));
}

void free(const Sanitizer_ResourceMemoryData& d) {
    log_.event(R"("e":"free","address":%llu,"bytes":%llu,"device":%d,"flags":%u)", static_cast<u64>(d.address),
               static_cast<u64>(d.size), static_cast<int>(d.device), d.flags);
}

void free_address(uint64_t address) { log_.event(R"("e":"free","address":%llu)", static_cast<u64>(address)); }

void free_host(uint64_t address, uint64_t bytes) {
    log_.event(R"("e":"free","address":%llu,"bytes":%llu,"host":1)", static_cast<u64>(address),
               static_cast<u64>(bytes));
}

void map(uint64_t address, uint64_t bytes, uint64_t handle, uint64_t offset) {
    log_.event(R"("e":"map","address":%llu,"bytes":%llu,"handle":%llu,"offset":%llu)", static_cast<u64>(address),
               static_cast<u64>(bytes), static_cast<u64>(handle), static_cast<u64>(offset));
}

void unmap(uint64_t address) { log_.event(R"("e":"unmap","address":%llu)", static_cast<u64>(address)); }

void physical(uint64_t handle) { log_.event(R"("e":"physical","handle":%llu)", static_cast<u64>(handle)); }

void exported(uint64_t handle, int file) {
    log_.event(R"("e":"exported","handle":%llu,"file":%d)", static_cast<u64>(handle), file);
}

void imported(uint64_t handle, int file) {
    log_.event(R"("e":"imported","handle":%llu,"file":%d)", static_cast<u64>(handle), file);
}

}  // namespace events

}  // namespace tileprof
