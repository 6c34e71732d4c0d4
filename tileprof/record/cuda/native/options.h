// The recording's options, from environment variables that record/cuda/recorded_run.py sets; they are read once.
#pragma once

#include <stdint.h>

#include <optional>
#include <regex>
#include <string>

namespace tileprof {

enum class Pass { kFloor, kBlocks, kAccesses, kFilters };

// Bloom filters of the granules that blocks touch.
struct FilterOptions {
    // log2 of the bits of a filter, and of the bytes that count as one address
    uint8_t bits_shift = 0, granule_shift = 0;
    uint8_t hashes = 0;                         // bits that are set per granule; 0: no filters
    bool alone = false;                         // accesses are only inserted, not recorded
    uint64_t bytes = 256ull << 20;              // TILEPROF_FILTER_BYTES: memory for filters between two drains

    // Returns an empty string, or an error. `least_granule_shift`: that of recorded addresses.
    std::string read(const std::string& from, uint32_t least_granule_shift);
};

struct Options {
    std::string raw_folder;             // TILEPROF_RAW: a folder, in which each process makes its own
    std::string patches;                // TILEPROF_PATCHES: the fatbin
    std::string sanitizer;              // TILEPROF_SANITIZER: libsanitizer-public.so
    Pass pass = Pass::kAccesses;        // TILEPROF_PASS: floor, blocks, filters or accesses
    uint32_t granule_shift = 5;         // TILEPROF_GRANULE: bytes, a power of two from 1 to 4096
    uint64_t arena_bytes = 1ull << 30;  // TILEPROF_ARENA
    FilterOptions filters;              // TILEPROF_FILTERS: bits, hashes and granule, such as 8192,2,512
    bool replay = true;                 // TILEPROF_REPLAY: 0 turns write attribution by replay off
    bool verify = false;                // TILEPROF_VERIFY: 1 compares memory before and after every launch
    bool capturing = true;  // TILEPROF_CAPTURE: 0 waits for tileprof_capture or cuProfilerStart; Regions changes it
    std::optional<std::regex> nvtx;  // TILEPROF_NVTX: record only in ranges whose name has a match (nvtx.cpp)
    // TILEPROF_PROOFS: a socket; code is patched only when a kernel is launched whose accesses do not follow from its
    // code and parameters (launches/unpatched.h)
    std::string proofs;
    bool patch_in_ranges = false;  // TILEPROF_PATCH=range: code is patched, and launches are seen, only while capturing
    uint64_t skip = 0;  // TILEPROF_SKIP, TILEPROF_COUNT: matching launches to skip and to record
    uint64_t count = UINT64_MAX;
    std::optional<std::regex> kernel;  // TILEPROF_KERNEL: record only kernels whose name has a match
    std::optional<std::regex> exclude;  // TILEPROF_EXCLUDE: leave out kernels whose name has a match
    std::optional<std::regex> spinning;  // TILEPROF_SPINNING: kernels that wait for other launches, GPUs or processes,
    std::optional<std::regex> include;  // TILEPROF_INCLUDE: except these
    uint64_t wait_ns = 60000000000ull;  // TILEPROF_WAIT: how many seconds to wait for a launch

    // Whether launches are followed and code is patched now.
    bool sees_work() const { return capturing || !patch_in_ranges; }
    // Whether code is left unpatched where proofs allow it.
    bool leaves_unpatched() const {
        return !proofs.empty() && pass == Pass::kAccesses && !patch_in_ranges && filters.hashes == 0;
    }

    // Returns an empty string, or an error.
    std::string read_environment();
};

}  // namespace tileprof
