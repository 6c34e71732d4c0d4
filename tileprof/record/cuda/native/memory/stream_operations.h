// Memory operations of streams: words that a stream writes or waits for, without a kernel.
#pragma once

#include <vector>

#include "driver/api.h"

namespace tileprof {

// CUgraphNodeType, whose name older versions of cuda.h lack.
constexpr int kBatchMemOpNode = 12;

// The driver's functions with memory operations.
const std::vector<Sanitizer_CallbackId>& memory_operations();

// Writes an event per word after such a call; an operation that is not understood is an event for all memory.
void memory_operation(uint32_t cbid, const Sanitizer_CallbackData& data);

// Handles a driver call that has returned successfully.
bool has_happened(const Sanitizer_CallbackData& data);

// A capturing stream executes nothing now; the node of its graph is seen when it runs.
bool is_capturing(CUstream stream);

}  // namespace tileprof
