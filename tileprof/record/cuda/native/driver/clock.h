// The monotonic clock, and pauses.
#pragma once

#include <stdint.h>
#include <time.h>

namespace tileprof {

constexpr uint64_t kMs = 1000000;  // in nanoseconds

inline uint64_t clock_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}

inline void nap(uint64_t ns) {
    timespec t{static_cast<time_t>(ns / 1000000000ull), static_cast<long>(ns % 1000000000ull)};
    nanosleep(&t, nullptr);
}

}  // namespace tileprof
