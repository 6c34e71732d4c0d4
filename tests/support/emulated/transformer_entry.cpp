// The source of the transformer kernel, its entry for a fiber, and names of its barriers for reports.
#include "kernel.cu"

unsigned char memory[1];

extern "C" void enter(const void* arguments) { transformer(*static_cast<const Parameters*>(arguments)); }

extern const machine::Name NAMES[] = {{"WEIGHTS_FULL", WEIGHTS_FULL},   {"WEIGHTS_FREE", WEIGHTS_FREE},
                                      {"WEIGHTS_READY", WEIGHTS_READY}, {"RECORD_FULL", RECORD_FULL},
                                      {"RECORD_FREE", RECORD_FREE},     {nullptr, 0}};
extern const bool BFLOATS = BFLOAT16;
extern const unsigned long long TIMEOUT = TIMEOUT_NS;
