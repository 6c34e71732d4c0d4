// The blocks of the made-up program of tileprof/examples/cuda/bloom.cu: a line of JSON with its kernel, the pages that
// it reads and writes, and its rounds of arithmetic for each.
//
//     bloom_blocks seed
#define main program_main
#include "bloom.cu"
#undef main

int main(int, char** given) {
    for (const Work& work : program_of(std::atoi(given[1]), 24, 192)) {
        std::printf("[%d, %d, %d, [", work.kernel, work.to, work.rounds);
        for (int i = 0; i < work.reads; ++i) std::printf("%s%d", i ? ", " : "", work.from[i]);
        std::printf("]]\n");
    }
}
