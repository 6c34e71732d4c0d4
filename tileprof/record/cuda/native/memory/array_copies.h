// Copies from and to CUDA arrays, of which Compute Sanitizer says nothing (seen with 13.4.92): read off the driver's
// calls. As nodes of a graph they are reported, without a size.
#pragma once

#include <vector>

#include "driver/api.h"

namespace tileprof {

// The driver's functions that may copy arrays.
const std::vector<Sanitizer_CallbackId>& array_copies();

// When such a call has returned: an event, if an array took part.
void array_copy(uint32_t cbid, const Sanitizer_CallbackData& data);

}  // namespace tileprof
