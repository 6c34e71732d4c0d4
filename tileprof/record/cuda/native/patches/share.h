// Which part of an access by all lanes each lane of a warp records: as little as covers the same bytes. The functions
// take the values of one lane and of the lane before it; the communication within a warp is in accesses.cuh.
#pragma once

#include "records/facts.h"

namespace tileprof {

TILEPROF_HOST_DEVICE bool has_before(uint32_t lanes, uint32_t lane) {
    return lane != 0 && (lanes >> (lane - 1) & 1) != 0;
}

// Whether a lane begins where the lane before it ends.
TILEPROF_HOST_DEVICE bool goes_on(uint32_t lanes, uint32_t lane, uint64_t address, uint64_t before, uint32_t bytes) {
    return has_before(lanes, lane) && address - before == bytes;
}

// Number of consecutive lanes behind this one that continue it; `on` has a bit for each continuing lane.
TILEPROF_HOST_DEVICE uint32_t followers(uint32_t on, uint32_t lane) {
    uint32_t others = lane == 31 ? ~0u : ~(on >> (lane + 1));
#ifdef __CUDA_ARCH__
    return __ffs(others) - 1;
#else
    return static_cast<uint32_t>(__builtin_ctz(others));
#endif
}

// Returns how many bytes from its address a lane records: those of all lanes that continue it, if it does not
// continue another lane itself. A lane that touches the same granules as the one before it and is not continued
// leaves them to that lane.
TILEPROF_HOST_DEVICE uint32_t share(uint32_t lanes, uint32_t lane, uint32_t on, uint32_t shift, uint64_t address,
                                    uint64_t before, uint32_t bytes) {
    if (on >> lane & 1) return 0;
    uint32_t behind = followers(on, lane);
    bool again = behind == 0 && has_before(lanes, lane) && address >> shift == before >> shift &&
                 (address + bytes - 1) >> shift == (before + bytes - 1) >> shift;
    return again ? 0 : bytes * (behind + 1);
}

}  // namespace tileprof
