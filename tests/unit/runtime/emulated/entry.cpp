// The kernel's own text, its entry for a fiber, and names of its barriers for reports.
#include "kernel.cu"

unsigned char memory[1];

extern "C" void enter(const void* arguments) { persistent(*static_cast<const Arguments*>(arguments)); }

extern const machine::Name NAMES[] = {
    {"A_FULL", A_FULL, A_SLOTS, 8}, {"A_FREE", A_FREE, A_SLOTS, 8}, {"B_FULL", B_FULL, B_SLOTS, 8}, {"B_FREE", B_FREE, B_SLOTS, 8},
    {"SUMS_FULL", SUMS_FULL, BUFFERS, 8}, {"SUMS_FREE", SUMS_FREE, BUFFERS, 8}, {"STORED", STORED, POST_SLOTS, 8},
    {"POSTED", POSTED, POST_SLOTS, 8}, {"AWAITED", AWAITED, 1, 4}, {"LOADED", LOADED, 1, 4}, {nullptr, 0, 0, 0}};
extern const bool BFLOATS = BFLOAT16;
extern const unsigned long long TIMEOUT = TIMEOUT_NS;
