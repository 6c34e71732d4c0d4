#include "options.h"

#include <stdio.h>
#include <stdlib.h>

namespace tileprof {

namespace {

std::string text(const char* name) {
    const char* value = getenv(name);
    return value == nullptr ? "" : value;
}

uint64_t number(const char* name, uint64_t otherwise) {
    const char* value = getenv(name);
    return value == nullptr || *value == 0 ? otherwise : strtoull(value, nullptr, 10);
}

std::string pattern(const char* name, std::optional<std::regex>* out) {
    std::string value = text(name);
    if (value.empty()) return "";
    try {
        out->emplace(value);
    } catch (const std::regex_error& error) {
        return std::string(name) + "=" + value + " is not a regular expression: " + error.what();
    }
    return "";
}

}  // namespace

std::string FilterOptions::read(const std::string& from, uint32_t least_granule_shift) {
    if (from.empty()) return "";
    unsigned long long bits = 0, bits_per_granule = 0, granule = 0;
    auto is_power = [](unsigned long long n) { return n != 0 && (n & (n - 1)) == 0; };
    if (sscanf(from.c_str(), "%llu,%llu,%llu", &bits, &bits_per_granule, &granule) != 3 || !is_power(bits) ||
        !is_power(granule) || bits < 32 || bits > 1ull << 31 || bits_per_granule < 1 || bits_per_granule > 255 ||
        granule < 1ull << least_granule_shift || granule > 1ull << 31)
        return "TILEPROF_FILTERS=" + from + "; expected bits, hashes and a granule no smaller than the recording's";
    bits_shift = static_cast<uint8_t>(__builtin_ctzll(bits));
    granule_shift = static_cast<uint8_t>(__builtin_ctzll(granule));
    hashes = static_cast<uint8_t>(bits_per_granule);
    return "";
}

std::string Options::read_environment() {
    raw_folder = text("TILEPROF_RAW");
    patches = text("TILEPROF_PATCHES");
    sanitizer = text("TILEPROF_SANITIZER");
    if (raw_folder.empty() || patches.empty() || sanitizer.empty())
        return "TILEPROF_RAW, TILEPROF_PATCHES and TILEPROF_SANITIZER must be set; run tileprof record";
    std::string pass_name = text("TILEPROF_PASS");
    if (pass_name == "floor") {
        pass = Pass::kFloor;
    } else if (pass_name == "blocks") {
        pass = Pass::kBlocks;
    } else if (pass_name == "filters") {
        pass = Pass::kFilters;
    } else if (!pass_name.empty() && pass_name != "accesses") {
        return "TILEPROF_PASS=" + pass_name + "; expected floor, blocks, filters or accesses";
    }
    uint64_t granule = number("TILEPROF_GRANULE", 32);
    if (granule == 0 || granule > 4096 || (granule & (granule - 1)) != 0)
        return "TILEPROF_GRANULE must be a power of two from 1 to 4096";
    granule_shift = static_cast<uint32_t>(__builtin_ctzll(granule));
    arena_bytes = number("TILEPROF_ARENA", arena_bytes);
    std::string problem = filters.read(text("TILEPROF_FILTERS"), granule_shift);
    if (!problem.empty()) return problem;
    filters.alone = pass == Pass::kFilters;
    filters.bytes = number("TILEPROF_FILTER_BYTES", filters.bytes);
    replay = number("TILEPROF_REPLAY", 1) != 0;
    verify = number("TILEPROF_VERIFY", 0) != 0;
    capturing = number("TILEPROF_CAPTURE", 1) != 0;
    std::string when = text("TILEPROF_PATCH");
    if (!when.empty() && when != "load" && when != "range")
        return "TILEPROF_PATCH=" + when + "; expected load or range";
    patch_in_ranges = when == "range";
    proofs = text("TILEPROF_PROOFS");
    skip = number("TILEPROF_SKIP", 0);
    count = number("TILEPROF_COUNT", UINT64_MAX);
    if (std::string wait = text("TILEPROF_WAIT"); !wait.empty())
        wait_ns = static_cast<uint64_t>(strtod(wait.c_str(), nullptr) * 1e9);
    problem = pattern("TILEPROF_KERNEL", &kernel);
    if (problem.empty()) problem = pattern("TILEPROF_EXCLUDE", &exclude);
    if (problem.empty()) problem = pattern("TILEPROF_NVTX", &nvtx);
    if (problem.empty()) problem = pattern("TILEPROF_SPINNING", &spinning);
    return problem.empty() ? pattern("TILEPROF_INCLUDE", &include) : problem;
}

}  // namespace tileprof
