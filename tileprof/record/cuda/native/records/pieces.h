// How the threads of an SM share a piece of the arena: by the value of its counter before a thread adds 1 to it. The
// low half counts up to 0, and an entry is that far before `begin + kPiece`; the high half is `begin`. The thread
// that gets 0 takes the next piece and stores it in the counter; threads that arrive before it has done so take an
// entry from the whole arena.
#pragma once

#include "records/facts.h"
#include "records/records.h"

namespace tileprof {

TILEPROF_HOST_DEVICE bool piece_serves(uint64_t was) {
    uint32_t left = 0u - static_cast<uint32_t>(was);
    return left != 0 && left < kPiece;
}

TILEPROF_HOST_DEVICE uint64_t piece_entry(uint64_t was) {
    return (was >> 32) + kPiece + static_cast<uint32_t>(was) - (1ull << 32);
}

TILEPROF_HOST_DEVICE bool piece_refills(uint64_t was) { return static_cast<uint32_t>(was) == 0; }

// The counter of a fresh piece, whose first entry belongs to the thread that took it.
TILEPROF_HOST_DEVICE uint64_t piece_at(uint64_t begin) { return begin << 32 | (1u - kPiece); }

// The counter of a full arena, which no number of threads can make wrap around.
constexpr uint64_t kSpent = 1;

}  // namespace tileprof
