// What each lane of a warp records of an access that all lanes make: as little as covers the same bytes. Functions of
// one lane's values and of what the lane before it touches; the part of a warp is in accesses.cuh.
#pragma once

#include "records/facts.h"

namespace tileprof {

TILEPROF_HOST_DEVICE bool has_before(uint32_t lanes, uint32_t lane) {
    return lane != 0 && (lanes >> (lane - 1) & 1) != 0;
}

// Whether a lane goes on where the lane before it ends.
TILEPROF_HOST_DEVICE bool goes_on(uint32_t lanes, uint32_t lane, uint64_t address, uint64_t before, uint32_t bytes) {
    return has_before(lanes, lane) && address - before == bytes;
}

// Lanes behind this one that go on, one after another; `on` has a bit for each lane that goes on.
TILEPROF_HOST_DEVICE uint32_t followers(uint32_t on, uint32_t lane) {
    uint32_t others = lane == 31 ? ~0u : ~(on >> (lane + 1));
#ifdef __CUDA_ARCH__
    return __ffs(others) - 1;
#else
    return static_cast<uint32_t>(__builtin_ctz(others));
#endif
}

// The bytes from its address on that a lane records: those of all lanes that go on behind it, if it does not go on
// itself. A lane that touches the same granules as the one before it, and has no followers, leaves them to that.
TILEPROF_HOST_DEVICE uint32_t share(uint32_t lanes, uint32_t lane, uint32_t on, uint32_t shift, uint64_t address,
                                    uint64_t before, uint32_t bytes) {
    if (on >> lane & 1) return 0;
    uint32_t behind = followers(on, lane);
    bool again = behind == 0 && has_before(lanes, lane) && address >> shift == before >> shift &&
                 (address + bytes - 1) >> shift == (before + bytes - 1) >> shift;
    return again ? 0 : bytes * (behind + 1);
}

}  // namespace tileprof
