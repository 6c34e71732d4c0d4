// The records of the probe's patches, per thread block that enters and per group of its threads that exits.
#pragma once
#include <stdint.h>

struct Seen {
    uint64_t grid, pc, source;
    uint32_t block, blocks;
    uint32_t left, unused;  // threads that exit; 0: the block enters
};

struct Buffer {
    uint64_t source;  // the call that set this as callback data
    unsigned long long* count;
    Seen* seen;
    uint64_t capacity;
};
