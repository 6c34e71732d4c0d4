// Copies from and to CUDA arrays. Compute Sanitizer does not report them (seen with 13.4.92), so they are decoded
// from the driver's calls. As nodes of a graph they are reported, without a size.
#pragma once

#include <vector>

#include "driver/api.h"

namespace tileprof {

// The driver's functions that may copy arrays.
const std::vector<Sanitizer_CallbackId>& array_copies();

// Writes an event after such a call, if an array took part.
void array_copy(uint32_t cbid, const Sanitizer_CallbackData& data);

}  // namespace tileprof
