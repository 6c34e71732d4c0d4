// The source of the decoder, and its entry for a fiber. The machine's blocks have more threads than the decoder's.
#include "kernel.cu"

unsigned char memory[1];

extern "C" void enter(const void* arguments) {
    if (threadIdx.x < CONSUMERS + 32) decoder(*static_cast<const Parameters*>(arguments));
}

extern const machine::Name NAMES[] = {{"FULL", FULL_AT}, {"FREE", FREE_AT}, {nullptr, 0}};
extern const bool BFLOATS = BFLOAT16;
extern const unsigned long long TIMEOUT = TIMEOUT_NS;
