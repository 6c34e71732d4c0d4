// Copies from and to CUDA arrays, of which Compute Sanitizer says nothing (seen with 13.4.92): read off the driver's calls.
#pragma once

#include <vector>

#include "api.h"

namespace tileprof {

// The driver's functions that may copy arrays, now or as a graph's node.
const std::vector<Sanitizer_CallbackId>& array_copies();

// When such a call has returned: an event, if an array took part and what happens is `recorded`.
void array_copy(uint32_t cbid, const Sanitizer_CallbackData& data, bool recorded);

// Whether a graph may copy arrays: no callback says so when it is launched.
bool arrays_in_graphs();

}  // namespace tileprof
