// Memory operations of streams: words that a stream writes, or waits for, with no kernel.
#pragma once

#include <vector>

#include "driver/api.h"

namespace tileprof {

// CUgraphNodeType, whose name older versions of cuda.h lack.
constexpr int kBatchMemOpNode = 12;

// The driver's functions that do so.
const std::vector<Sanitizer_CallbackId>& memory_operations();

// When such a call has returned: an event for each word; for what is not understood one that stands for all memory.
void memory_operation(uint32_t cbid, const Sanitizer_CallbackData& data);

// A call of the driver's has returned, and has worked.
bool has_happened(const Sanitizer_CallbackData& data);

// A capturing stream does nothing now; its graph has a node that is seen when it runs.
bool is_capturing(CUstream stream);

}  // namespace tileprof
