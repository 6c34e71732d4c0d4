// What the device patches write and the host reads: one layout, mirrored in raw.py and tested against it.
//
// Every patch appends 32-byte entries to one arena in device memory. An index, `table`, says which entry last
// described a key, so that a repeated access finds its entry and only sets bits in it. The index may forget
// (two keys share a slot, two warps race): then a key has two entries and the reader takes their union. So
// nothing depends on the index being right, there is no probing, no lock and no fence, and the arena is
// already compact: its used prefix is all the host copies.
//
//     key  63..60 kind   59..48 generation   47..0 window | address | SM
//     block       linear block id in the grid
//     launch      launch id, unique in the process
//     generation  0, but in CUDA graphs: there a kernel node runs with callback data that was set for another node
//                 (seen with 13.4.92: data set last for the same function or module wins), so all kernel nodes of a
//                 graph launch share one header and one id, and are told apart by how many of them had ended
//     payload     by kind, below
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace tileprof {

enum Kind : uint32_t {
    // window = address >> (granule_shift + 5); payload: bits read, bits written, bits updated atomically,
    // first touch (low 32 bits of %globaltimer). Bit i is granule i of the window.
    kAccess = 0,
    // Low key bits: SM (12 bits) and the address of the kernel's entry, >> 4 (36 bits).
    // payload: begin (lo, hi), end (lo, hi) of the block, %globaltimer in ns.
    kBlock = 1,
    // Low key bits: SM and an address in the code that ends, as in kBlock. Lanes of a warp that exit together, where
    // their block has no entry that the index remembers, or each exit is kept.
    // payload: how many lanes, 0, end (lo, hi).
    kExit = 2,
    // A tensor-map load, in two adjacent entries. Low key bits: address of the tensor map; in the tail the name of
    // its contents, or its address again if it cannot change.
    kTensor = 3,      // payload: coordinates 0 to 3
    kTensorTail = 4,  // payload: coordinate 4, mask and im2col arguments, flags (below), first touch
    // 16 bytes of the kernel parameters that contain a tensor map, or of its page, or of the map. Low key bits: their
    // address. block: one of MapPart. The contents of a map that may change are in five adjacent entries.
    kMap = 5,
    // A bulk copy. Low key bits: address. payload: bytes, mode, mask (0: none), first touch.
    kRange = 6,
};

enum MapPart : uint32_t {
    kMapBeside = 0,  // bytes of the parameters
    kMapLoaded = 1,  // a map that was loaded through, with its contents at one of the loads
    kMapContents = 2,  // the contents of a map that may change
    kMapName = 3,  // precedes four of these. Low key bits: a name of the contents; payload: address of the map
};

constexpr uint32_t kSmBits = 12;

enum Mode : uint32_t { kRead = 0, kWrite = 1, kAtomic = 2 };

constexpr uint32_t kKindShift = 60;
constexpr uint32_t kGenerationShift = 48;
constexpr uint32_t kLastGeneration = (1u << (kKindShift - kGenerationShift)) - 1;
constexpr uint64_t kLowMask = (1ull << kGenerationShift) - 1;

// payload[2] of kTensorTail
constexpr uint32_t kTensorDims = 0xff;  // number of dimensions
constexpr uint32_t kTensorModeShift = 8;  // Sanitizer_LoadMode
constexpr uint32_t kTensorMulticast = 1u << 16;

struct alignas(32) Entry {
    uint64_t key;
    uint32_t block;
    uint32_t launch;
    uint32_t payload[4];
};
static_assert(sizeof(Entry) == 32, "raw.py mirrors this layout");

// When the arena is full, accesses go here without their block: one bit per 2 MiB page of the address space, folded.
// This is always a superset.
constexpr uint32_t kPageShift = 21;
constexpr uint32_t kPages = 1u << 20;
struct Spill {
    uint32_t read[kPages / 32];
    uint32_t written[kPages / 32];
};

constexpr uint32_t kKeepAll = 0xffffffffu;
constexpr uint32_t kClaimed = 0xffffffffu;  // a slot of the index whose entry is being written

// Threads of an SM take single entries from a piece of the arena by its counter (pieces.h), because the counter of
// the whole arena, from which pieces are taken, serves about one thread per 6 ns. A zeroed counter has no entries
// left.
constexpr uint32_t kPiece = 64, kCounters = 256;
constexpr uint32_t kCounterWords = 16;  // one line of L2 each, after that of the arena's counter

// One per launch; its address is the launch's callback data.
struct Fact;
struct alignas(64) Header {
    // The fields that every access needs, in two loads.
    Entry* arena;
    Fact* facts;
    uint32_t launch;
    uint8_t granule_shift;
    uint8_t filter_granule_shift;  // at least granule_shift
    uint8_t filter_bits_shift;
    uint8_t filter_hashes;  // 0: this launch has no filters
    uint16_t in_graph;
    uint8_t filters_only;  // accesses leave no entries
    uint8_t keeps_exits;  // grids that the launch's kernels launch have its header, and blocks of the same numbers
    uint32_t table_mask;
    uint32_t* table;
    // number of used entries, may exceed capacity; after it, how often any `beyond` grew; counters
    unsigned long long* count;
    Spill* spill;
    uint64_t capacity;
    uint32_t spilled;  // number of accesses that found the arena full
    uint32_t maps_taken;  // number of a graph's nodes whose descriptors were copied; 1 outside of graphs
    uint32_t end_bit;  // clusters whose id has this bit equal to end_value end at entry; kKeepAll: none
    uint32_t end_value;
    uint32_t generation;  // number of the graph's kernel nodes that have ended
    uint32_t filter_blocks;  // blocks of the launch; grids that its kernel launches may have more
    unsigned long long exited;  // number of threads of the current node that have ended
    uint64_t parameters_begin;  // where tensor maps do not change, outside of graphs; 0 while unknown
    uint64_t parameters_end;
    uint32_t beyond;  // number of accesses outside of the addresses that fit into keys
    // number of bits of a slot of the index that hold the entry; the others are low bits of its launch
    uint32_t tag_shift;
    uint32_t* filters;  // filters of reads, one per block, followed by those of writes and updates
};
static_assert(sizeof(Header) == 128, "headers are an array in device memory");
static_assert(offsetof(Header, in_graph) == 24 && offsetof(Header, filters_only) == 26 &&
                  offsetof(Header, table_mask) == 28,
              "entries.cuh takes them apart");
static_assert(offsetof(Header, parameters_begin) % 16 == 0, "read with parameters_end");

}  // namespace tileprof
