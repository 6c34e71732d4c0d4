// The library's options and its counts: one file each.
#pragma once

#include <stdint.h>

#include <map>
#include <string>
#include <vector>

namespace tileprof::acs {

enum class Mode { kLog, kStreams, kGraph, kCheck };

// Read from the file that TILEPROF_ACS names: one name and value per line.
struct Options {
    Mode mode = Mode::kStreams;
    std::string table, folder;
    int lanes = 8;
    int threads = 0;    // 1: a thread of the library's decides and issues, 0: the program's own
    int workers = 0;    // that each launch a kernel and wait for its end; 0: events order kernels on the GPU
    int window = 128;
    int segment = 256;  // launches that a captured or checked segment holds at most
    int orders = 2;     // in which a segment is checked, beside stream order
    uint64_t seed = 0;
    uint64_t rest = 0;  // launches after which it is judged whether spreading them is worth it; 0: never
    int delay_us = 0;   // half of the longest sleep before each launch that is placed: for tests of the order
    uint64_t memory_bytes = 8ull << 30;  // copied for a check, at most

    std::string read(const char* path);  // "" or what is wrong
};

// Written as JSON when the process ends.
struct Counts {
    static constexpr size_t kMostListed = 1 << 16;
    uint64_t launches = 0, placed = 0, unknown = 0, barriers = 0, waits = 0, records = 0, missed = 0, spread = 0;
    uint64_t graphs = 0, graph_launches = 0, graph_kernels = 0, updated = 0, segments = 0, checked = 0, unchecked = 0,
             differing = 0;
    uint64_t captured = 0, moves = 0, rested = 0;
    uint64_t probed = 0;  // launches that ran on other memory, too
    uint64_t queued = 0;  // launches that the library's thread made
    std::map<std::string, uint64_t> reasons;  // why launches stood for all memory
    std::map<std::string, uint64_t> calls;    // that everything was ordered around
    std::map<std::string, uint64_t> differences;
    std::map<std::string, uint64_t> awaited_ns;  // in which the program waited for the library's thread, by its call
    std::map<int, uint64_t> lanes;
    std::vector<uint64_t> unknown_at;  // which launches, the first being 0: kMostListed of them
    uint64_t capture_at = 0;           // launches before the last capture

    void write(const std::string& path) const;
};

}  // namespace tileprof::acs
