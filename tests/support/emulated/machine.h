// A GPU of a few clusters on one CPU thread: the interface that the replacements of ptx.cuh and cuda.h use. See
// machine.cpp.
#pragma once

#include <stdint.h>

namespace machine {

using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

struct Index {
    u32 x;
};

struct Chunk {
    u32 words[4];
};

// The thread that runs.
extern Index thread_index, block_index, grid_size;

// Sets the names by which reports call shared memory from this address on, one per eight bytes.
struct Name {
    const char* name;
    u32 begin;
};

constexpr u32 SHARED_BEGIN = 1040;  // not at a multiple of 1024: the kernel aligns it

void fail(const char* what);
void yield();  // others may run first
u64 clock();

// Collectives of the 32 lanes of a warp.
void sync_warp();
bool any(bool mine);
int least(int mine);
u32 from_lane(u32 mine, u32 lane);
void store_matrices(u32 address, const u32* squares);
float exchange(float value, u32 mask);
void load_matrices(u32 address, bool transposed, u32* squares);
void multiply_rows(float* sums, const u32* a, u32 b_low, u32 b_high);  // sixteen rows, eight columns, sixteen of k

void sync_block(u32 barrier, u32 threads);
void sync_cluster();
u32 rank();

// Programmatic launch: allows the next launch to begin, as far as this block is concerned; waits for the previous one.
void trigger_launch();
void wait_for_launch();

// Shared memory. Addresses above 2^24 belong to another block of the cluster.
unsigned char* shared(u32 address, u32 bytes);
u32 map_rank(u32 address, u32 rank);
void store_async(u32 address, Chunk value, u32 barrier);
u32 load_word(u32 address);
void store_word(u32 address, u32 value);
void learn_of_others();  // a value that the thread reads may tell it of other threads' stores

void barrier_init(u32 barrier, u32 arrivals);
void barrier_arrive(u32 barrier, u32 bytes, bool release);
bool barrier_wait(u32 barrier, u32 parity);

// Global memory. Stores are held back until a release that covers them, or until a random moment.
bool is_global(const void* address);
void hold(void* to, const void* value, u32 bytes);
int load_acquire(const int* address);
int add_release(int* address, int value);
int add_relaxed(int* address, int value);
void store_release(int* address, int value);
u64 load_acquire_outside(const u64* address);  // memory that a thread of the CPU shares
void store_release_outside(u64* address, u64 value);
void store_relaxed_outside(u64* address, u64 value);
void nap();
void fence_proxy();

// A tensor map, as HostArguments encodes it: sizes, box and steps in elements of two bytes, strides in bytes.
struct Map {
    u64 address, sizes[4], strides[3];
    u16 box[4], steps[4];
    u64 swizzle;  // bytes of a row that are swizzled, 0 for none
    u64 unused[5];
};
static_assert(sizeof(Map) == 128);

void load_tensor(u32 to, const Map& map, u32 barrier, const int (&at)[4], u32 blocks, bool others_write);

void load_bulk(u32 to, const void* from, u32 bytes, u32 barrier, bool others_write);

void multiply(float* sums, int width, u64 a, u64 b);
void multiply_registers(float* sums, const u32* a, u64 b);  // 64 columns, along which the rows of b run
void commit();
void wait_groups(u32 pending);

u16 to_half(float value);
float from_half(u16 half);

}  // namespace machine
