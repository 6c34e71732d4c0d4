// The source of the kernel, its entry for a fiber, and names of its barriers for reports.
#include "kernel.cu"

unsigned char memory[1];

extern "C" void enter(const void* arguments) { persistent(*static_cast<const Arguments*>(arguments)); }

extern const machine::Name NAMES[] = {
#define NAME(name) {#name, name},
#include "names.h"
    {nullptr, 0}};
extern const bool BFLOATS = BFLOAT16;
extern const unsigned long long TIMEOUT = TIMEOUT_NS;
