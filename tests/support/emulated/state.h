// The machine's state: threads, warps, blocks, pending events; how a thread sleeps and wakes up, and the messages about
// faults.
#pragma once

#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "fiber.h"

extern "C" void enter(const void* arguments);
extern const machine::Name NAMES[];
extern const bool BFLOATS;
extern const unsigned long long TIMEOUT;

namespace machine {
namespace {

constexpr u32 THREADS = 384, WARPS = THREADS / 32;
constexpr u32 SHARED_END = 228 * 1024;
constexpr u64 STACK_BYTES = 64 * 1024 + 9 * 64;  // with 64 KiB, all stacks would fall into the same cache sets
constexpr u32 MOST_REPEATS = 256;  // reads of one word by one thread, above which it counts as polling
constexpr int MOST_IDLE = 64;  // how often in a row all polling threads may find no change

// The number of each thread's stores that another thread knows of.
struct Clock {
    u16 known[THREADS] = {};

    void join(const Clock& other) {
        for (u32 i = 0; i < THREADS; ++i) known[i] = std::max(known[i], other.known[i]);
    }
};

struct Store {
    void* to;
    Chunk value;
    u32 bytes;
    u16 number;
};

struct Product {
    u64 a, b;
    int width;
    float* sums;
    u32 rows[4];  // of a, where it is in registers, and rows of b run along its columns
    bool in_registers;
};

struct Fiber {
    Context context;
    u32 block, thread;
    Clock clock;
    std::vector<Store> held;
    u16 stores = 0;
    std::vector<Product> open;  // not yet committed
    bool done = false;
    bool acquired = false, wrote = false;  // since its last proxy fence: stores of other threads, or of its own block
    const void* polled = nullptr;
    u32 seen = 0, repeats = 0;
    bool napped = false;
    const char* waits_for = "";
    u32 waits_at = 0, waits_parity = 0;
    int mine;  // its value for a collective
    u32 address;
    const u32* squares;
    u32* taken;
    float value;
    float* sums;
    const u32* a;
    u32 b[2];
};

// One of several launches in a row. Its blocks may begin once all blocks of the previous launch have triggered or
// ended. `front_ended` are threads that wait until all of it has ended; then all see its stores.
struct Launch {
    const void* parameters;
    u32 untriggered, running;  // blocks that have neither triggered nor ended, and blocks that have not ended
    std::vector<Fiber*> front_ended;
};

struct Group {
    std::vector<Product> products[32];
};

struct Warp {
    u32 ready = 0;  // one bit per lane
    u32 arrived = 0;
    const char* collective = nullptr;
    int result;
    std::deque<std::unique_ptr<Group>> groups;
    bool starved = false;
    u64 priority;

    Warp() = default;
    Warp(Warp&&) = default;
};

struct Barrier {
    u32 expected, pending;
    std::int64_t bytes = 0;
    u32 phase = 0;
    Clock gathering, passed;
    std::vector<Fiber*> waiting;
};

struct Block {
    std::vector<unsigned char> memory;
    std::unordered_map<u32, Barrier> barriers;
    std::unordered_map<u32, Clock> words;
    std::unordered_map<u32, std::vector<Fiber*>> meetings;
    u32 running = THREADS;
    u32 held = 0;
    bool triggered = false;
};

// How a run chooses; see Schedule in kernel_on_cpu.py.
struct Options {
    u64 seed;
    int order;  // order of warps: 0 at random, 1 in turn, 2 by priorities that sometimes change
    int events;  // events: 0 at random, 1 at once, 2 when nothing else can run
    int event_odds;  // 1 in event_odds steps is an event
    int drain_odds;  // 1 in drain_odds steps releases a held store; 0: none
    int starved_cluster, starved_block, starved_warp;  // the role that runs only when no other can; -1: none
    int yield_odds;  // at 1 in yield_odds waits that could pass at once, others run first; 0: none
};

struct Poller {
    Fiber* fiber;
    const void* address;
};

std::mt19937_64 dice;
Options options;
std::vector<Fiber> fibers;  // reserved before the first is made: others point to them
std::vector<Warp> warps;
std::deque<Block> blocks;
std::deque<Launch> launches;
std::vector<std::vector<Fiber*>> cluster_meetings;
std::vector<u32> ready;  // warps with a waiting lane
std::vector<std::function<void()>> events;
std::vector<Poller> pollers;
std::vector<Fiber*> holders;
Context scheduler;
Fiber* now;
u32 split, blocks_each;  // blocks per cluster and per launch
u64 time_ns;
bool progress, failed;
std::string failure;
int (*beside)(void*);
void* beside_given;
const unsigned char* flags_begin;
const unsigned char* flags_end;
unsigned char* stacks;
u64 stacks_bytes;
float values_of_halves[65536];

u64 below(u64 most) { return dice() % most; }

bool one_in(int odds) { return odds > 0 && below(odds) == 0; }

Block& block_of(const Fiber& fiber) { return blocks[fiber.block]; }
Warp& warp_of(const Fiber& fiber) { return warps[fiber.block * WARPS + fiber.thread / 32]; }

u32 launch_of(const Fiber& fiber) { return fiber.block / blocks_each; }

Fiber& lane_of(const Fiber& fiber, u32 lane) { return fibers[fiber.block * THREADS + fiber.thread / 32 * 32 + lane]; }

std::string text(const char* format, ...) {
    char line[400];
    va_list more;
    va_start(more, format);
    vsnprintf(line, sizeof line, format, more);
    va_end(more);
    return line;
}

std::string name_of(u32 offset) {
    const u32 base = (SHARED_BEGIN + 1023) & ~1023u;
    const Name* found = nullptr;
    for (const Name* name = NAMES; name->name != nullptr; ++name)
        if (offset >= base + name->begin && (found == nullptr || name->begin > found->begin)) found = name;
    if (found != nullptr) return text("%s[%u]", found->name, (offset - base - found->begin) / 8);
    return text("shared memory at %u", offset);
}

std::string who(const Fiber& fiber) {
    return text("block %u warp %u lane %u", fiber.block, fiber.thread / 32, fiber.thread % 32);
}

void report(const std::string& what) {
    if (!failed) failure = now != nullptr ? who(*now) + ": " + what : what;
    failed = true;
    if (now != nullptr) switch_context(now->context, scheduler);  // for good
}

void wake(Fiber& fiber) {
    Warp& warp = warp_of(fiber);
    if (warp.ready == 0) ready.push_back(fiber.block * WARPS + fiber.thread / 32);
    warp.ready |= 1u << fiber.thread % 32;
}

void wake_all(std::vector<Fiber*>& sleeping) {
    for (Fiber* fiber : sleeping) wake(*fiber);
    sleeping.clear();
}

void sleep(const char* waits_for, u32 at = 0, u32 parity = 0) {
    now->waits_for = waits_for, now->waits_at = at, now->waits_parity = parity;
    switch_context(now->context, scheduler);
}

}  // namespace
}  // namespace machine
