// The ranges that a program marks with NVTX 3, and which of their names match --nvtx.
#pragma once

namespace tileprof {

// Reports a matching range to the recorder: 1 when one has been opened, -1 when one is about to be closed. Called in
// the thread of the range, with no lock held, because Python listens and takes its own lock.
using RangeListener = void (*)(int change);

// Writes an event with the number of ranges that matched and the names that were seen.
void report_ranges();

}  // namespace tileprof
