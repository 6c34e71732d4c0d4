// The source of the kernel of experts, its entry for a fiber, and names of its barriers for reports.
#include "kernel.cu"

unsigned char memory[1];

extern "C" void enter(const void* arguments) { experts(*static_cast<const Arguments*>(arguments)); }

extern const machine::Name NAMES[] = {{"FULL", FULL_AT},           {"FREE", FREE_AT},     {"TASK_FULL", TASK_FULL_AT},
                                      {"TASK_FREE", TASK_FREE_AT}, {"STORED", STORED_AT}, {nullptr, 0}};
extern const bool BFLOATS = BFLOAT16;
extern const unsigned long long TIMEOUT = TIMEOUT_NS;
