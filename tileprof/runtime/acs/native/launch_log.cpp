#include "launch_log.h"

#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

namespace tileprof::acs {

namespace {

uint64_t now_ns() {
    timespec t{};
    clock_gettime(CLOCK_REALTIME, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}

void put_hex(std::string* out, const void* bytes, size_t count) {
    static const char digits[] = "0123456789abcdef";
    const auto* from = static_cast<const unsigned char*>(bytes);
    for (size_t i = 0; i < count; ++i) {
        *out += digits[from[i] >> 4];
        *out += digits[from[i] & 15];
    }
}

}  // namespace

std::string LaunchLog::open(const std::string& folder) {
    file_ = fopen((folder + "/launches-" + std::to_string(getpid())).c_str(), "w");
    if (file_ == nullptr) return "cannot write to " + folder;
    fprintf(file_, "stack %lu\n", getauxval(AT_RANDOM));  // an address at the bottom of the first thread's
    return "";
}

// begin end symbol grid block shared stream bytes parameters, one line per launch
CUresult LaunchLog::launch(const Launch& launch, const Function& function) {
    std::string line = std::to_string(now_ns());
    const bool whole = function.known && parameters_.read(function, launch.parameters, launch.extra);
    CUresult result = issue(launch, launch.stream, launch.parameters, launch.extra);
    line += " " + std::to_string(now_ns()) + " " + (function.known ? function.symbol : "?");
    const Shape& s = launch.shape;
    for (unsigned value : {s.grid[0], s.grid[1], s.grid[2], s.block[0], s.block[1], s.block[2], s.shared_bytes})
        line += " " + std::to_string(value);
    const char* reason = immovable(launch);
    line +=
        std::string(" ") + (reason != nullptr || !whole ? "0" : "1") + " " + std::to_string(parameters_.bytes) + " ";
    if (whole) put_hex(&line, parameters_.words.data(), parameters_.words.size() * 8);
    line += ".\n";
    fputs(line.c_str(), file_);
    return result;
}

}  // namespace tileprof::acs
