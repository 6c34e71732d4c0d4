// The library's options and its counts, one file each.
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
    int threads = 0;    // 1: a thread of the library decides and issues, 0: the program's own thread
    int workers = 0;    // threads that each launch a kernel and wait for its end; 0: events order kernels on the GPU
    int window = 128;
    int segment = 256;  // maximum number of launches of a captured or checked segment
    int orders = 2;     // number of orders in which a segment is checked, beside stream order
    uint64_t seed = 0;
    uint64_t rest = 0;  // number of launches between two decisions whether to spread launches; 0: never
    int delay_us = 0;   // half of the longest sleep before each placed launch: for tests of the order
    uint64_t memory_bytes = 8ull << 30;  // maximum number of bytes that are copied for a check

    std::string read(const char* path);  // Returns "" or an error.
};

// Written as JSON when the process ends.
struct Counts {
    static constexpr size_t kMostListed = 1 << 16;
    uint64_t launches = 0, placed = 0, unknown = 0, barriers = 0, waits = 0, records = 0, missed = 0, spread = 0;
    uint64_t graphs = 0, graph_launches = 0, graph_kernels = 0, updated = 0, segments = 0, checked = 0, unchecked = 0,
             differing = 0;
    uint64_t captured = 0, moves = 0, rested = 0;
    uint64_t probed = 0;  // launches that also ran on other memory
    uint64_t queued = 0;  // launches that the library's thread made
    std::map<std::string, uint64_t> reasons;  // why launches counted as touching all memory
    std::map<std::string, uint64_t> calls;    // calls around which everything was ordered
    std::map<std::string, uint64_t> differences;
    // time in which the program waited for the library's thread, by its call
    std::map<std::string, uint64_t> awaited_ns;
    std::map<int, uint64_t> lanes;
    std::vector<uint64_t> unknown_at;  // indices of the launches, from 0: at most kMostListed
    uint64_t capture_at = 0;           // launches before the last capture

    void write(const std::string& path) const;
};

}  // namespace tileprof::acs
