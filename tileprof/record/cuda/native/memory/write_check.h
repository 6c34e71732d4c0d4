// The write check (write_check.cpp), around an API call that launches a kernel. The caller has waited for the GPU.
#pragma once

#include <stdint.h>

namespace tileprof {

void remember_memory();
// Writes an event with the ranges of device memory that changed since `before`.
void report_changes(uint32_t launch);

}  // namespace tileprof
