// What each lane of a warp has to record of an access that all make together: as little as says the same bytes.
// Functions of what one lane knows, and of what the lane before it touches; the warp's part is in patches.cu.
#pragma once

#include "facts.h"

namespace tileprof {

TILEPROF_BOTH uint32_t ones(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __popc(bits);
#else
    return static_cast<uint32_t>(__builtin_popcount(bits));
#endif
}

TILEPROF_BOTH bool is_first(uint32_t lanes, uint32_t lane) { return (lanes & ((1u << lane) - 1)) == 0; }

TILEPROF_BOTH bool has_before(uint32_t lanes, uint32_t lane) { return lane != 0 && (lanes >> (lane - 1) & 1) != 0; }

// Whether a lane goes on where the lane before it ends; the first goes on by itself.
TILEPROF_BOTH bool goes_on(uint32_t lanes, uint32_t lane, uint64_t address, uint64_t before, uint32_t bytes) {
    return is_first(lanes, lane) || (has_before(lanes, lane) && address - before == bytes);
}

// The bytes from its address on that a lane records. `run`: all lanes go on; the first then records for all. A lane
// that touches the same granules as the one before it leaves them to that.
TILEPROF_BOTH uint32_t share(uint32_t lanes, uint32_t lane, bool run, uint32_t shift, uint64_t address, uint64_t before,
                             uint32_t bytes) {
    if (run) return is_first(lanes, lane) ? bytes * ones(lanes) : 0;
    bool again = has_before(lanes, lane) && address >> shift == before >> shift &&
                 (address + bytes - 1) >> shift == (before + bytes - 1) >> shift;
    return again ? 0 : bytes;
}

}  // namespace tileprof
