// Ranges that a program marks with NVTX 3, and which of them have names that --nvtx asks for.
#pragma once

namespace tileprof {

// Tells the recorder about a matching range: 1 when one has been opened, -1 when one is about to be closed. Called in
// the thread that does it, with no lock held: Python listens, and takes its own.
using RangeListener = void (*)(int change);

// An event with how many ranges matched, and the names that were seen.
void report_ranges();

}  // namespace tileprof
