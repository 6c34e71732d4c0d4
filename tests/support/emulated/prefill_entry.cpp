// The source of the prefill kernel, its entry for a fiber, and names of its barriers for reports.
#include "kernel.cu"

unsigned char memory[1];

extern "C" void enter(const void* arguments) { prefill(*static_cast<const Parameters*>(arguments)); }

extern const machine::Name NAMES[] = {
    {"W_FULL", W_FULL}, {"W_FREE", W_FREE}, {"A_FULL", A_FULL}, {"A_FREE", A_FREE}, {nullptr, 0}};
extern const bool BFLOATS = BFLOAT16;
extern const unsigned long long TIMEOUT = TIMEOUT_NS;
