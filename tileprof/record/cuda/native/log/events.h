// The event log, with one function per kind of event; a second function for the same kind has a suffix
// ("alloc_host"). record/cuda/records/events.py has the fields and their units, and a test compares it with
// events.cpp. Only these functions write events, apart from the hooks inside Python programs, whose lines are passed
// on unchanged.
#pragma once

#include <stdint.h>

#include <string>
#include <utility>
#include <vector>

#include "driver/api.h"
#include "options.h"

namespace tileprof {

struct Kernel;

namespace events {

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

// ---- the process

void start(const Options& options);
void failed(const char* reason);
void complaint(const char* text);
void end();
void hung(const std::string& kernel);
void drain(uint64_t entries, uint64_t lost);
void filters(uint32_t launch, const std::string& file, uint64_t first, uint64_t blocks);
// `names`: the names of opened ranges, and how often each was opened.
void ranges(const std::string& pattern, uint64_t matched, const std::vector<std::pair<std::string, uint64_t>>& names,
            uint64_t unlisted);
void capture(bool on);

// ---- kernels and launches

void kernel(const Kernel& kernel, const char* symbol, uint64_t code_address, uint64_t code_bytes);

// The parameters of a launch without patches, whose accesses follow from them.
struct Parameters {
    int64_t place = -1;  // in parameters.bin; -1: none
    uint64_t bytes = 0;
    std::vector<uint32_t> pointers;  // 8-byte words of them that are addresses in device memory
};
struct LaunchFields {
    uint32_t launch = 0;
    const Kernel* kernel = nullptr;
    const Sanitizer_LaunchData* data = nullptr;
    const uint32_t* cluster = nullptr;  // x, y, z; at least 1
    int context = 0;                    // its number
    int graph = -1;
    uint32_t generation = 0;
    uint64_t ordinal = 0;
    bool aside = false;
    bool counted = true;
    std::vector<std::string> unpatched;
    Parameters parameters;
};
void launch(const LaunchFields& fields);
void learn(const LaunchFields& fields);
void constants(uint32_t kernel, const Ranges& ranges);
void captured(int kernel);
void mark(const char* op, const char* module);  // see launches/marks.h
void graph(int number, CUgraphExec exec, Sanitizer_StreamHandle stream);
void graph_end(uint32_t launch, uint32_t nodes);
void nodes(uint32_t launch, uint32_t ended, uint64_t threads);
void unfinished(uint32_t launch);
void spinning(uint32_t launch, uint32_t kernel, double seconds);
void spinning_graph(uint32_t launch, int graph);
void spill(uint32_t launch, uint32_t accesses, uint32_t beyond);
void spilled_page(uint32_t page, bool read, bool written, uint32_t until);
void changed(uint32_t launch, const Ranges& ranges);
void owners(uint32_t id, uint32_t launch, const std::string& file, uint32_t granule, uint32_t clusters,
            const Ranges& regions, const std::string& refused);
void owned(uint32_t launch, uint32_t id, const std::vector<uint64_t>& bases);

// ---- copies and fills

void copy(const Sanitizer_MemcpyData& data, int graph);
void set(const Sanitizer_MemsetData& data, int graph);

// One side of an array copy: the handle of an array, or the bytes from the first to the end.
struct CopySide {
    uint64_t address = 0, bytes = 0, pitch = 0;
    bool array = false, on_device = false;
};
void array_copy(const CopySide& from, const CopySide& to, uint64_t width, uint64_t height, uint64_t depth,
                Sanitizer_StreamHandle stream);
void value(uint64_t address, int bytes, bool writes, Sanitizer_StreamHandle stream);
// `node`: its CUgraphNodeType, or -1 outside of graphs; `stream` as text.
void opaque(int node, int graph, const std::string& stream);

// ---- memory

void alloc(const Sanitizer_ResourceMemoryData& data, bool pool);
void alloc_host(uint64_t address, uint64_t bytes);
void alloc_mapped(uint64_t address, uint64_t bytes);
void free(const Sanitizer_ResourceMemoryData& data);
void free_address(uint64_t address);
void free_host(uint64_t address, uint64_t bytes);
void map(uint64_t address, uint64_t bytes, uint64_t handle, uint64_t offset);
void unmap(uint64_t address);
void physical(uint64_t handle);
void exported(uint64_t handle, int file);
void imported(uint64_t handle, int file);

}  // namespace events

// A stream's handle as events name it.
std::string text_of(Sanitizer_StreamHandle stream);

}  // namespace tileprof
