// Runs a kernel's threads as fibers of one CPU thread, in an order that a seed chooses, and what they start asynchronously at the worst moments.
//
// A thread runs until it waits, or lets others go first. Loads, stores to other blocks and products are events, which happen at a random moment, or as late or early as
// can be. A store to global memory is held back until a release by a thread that knows of it: which those are is what the vector clocks of a block say, an entry a thread.
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

Index thread_index, block_index, grid_size;

namespace {

constexpr u32 THREADS = 384, WARPS = THREADS / 32;
constexpr u32 SHARED_END = 228 * 1024;
constexpr u64 STACK_BYTES = 64 * 1024;
constexpr int MOST_IDLE = 64;  // times in a row that all who poll may find nothing new

// How many of each thread's stores somebody knows of.
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
};

struct Fiber {
    Context context;
    u32 block, thread;
    Clock clock;
    std::vector<Store> held;
    u16 stores = 0;
    std::vector<Product> open;  // not yet committed
    bool done = false;
    bool acquired = false, wrote = false;  // since its last proxy fence: another's stores, or its own block's
    const void* polled = nullptr;
    u32 seen = 0, repeats = 0;
    bool napped = false;
    const char* waits_for = "";
    u32 waits_at = 0, waits_parity = 0;
    int mine;               // what it brings to a collective
    u32 address;
    const u32* squares;
};

struct Group {
    std::vector<Product> products[32];
};

struct Warp {
    u32 ready = 0;  // a bit a lane
    u32 arrived = 0;
    const char* collective = nullptr;
    int result;
    std::deque<std::unique_ptr<Group>> groups;
    bool starved = false;
    u64 priority;
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
};

// How a run chooses: see Options of machine.py.
struct Options {
    u64 seed;
    int order;          // of warps: 0 at random, 1 in turn, 2 by priorities that change now and then
    int events;         // 0 at random, 1 at once, 2 when nothing else can be done
    int event_odds;     // one in so many steps is an event's
    int drain_odds;     // one in so many steps lets go of a held store; 0 none
    int starved_cluster, starved_block, starved_warp;  // which run when no others can; -1: any
    int yield_odds;     // one in so many of the waits that could be passed lets others go first; 0 none
};

struct Poller {
    Fiber* fiber;
    const void* address;
};

std::mt19937_64 dice;
Options options;
std::deque<Fiber> fibers;
std::deque<Warp> warps;
std::deque<Block> blocks;
std::vector<std::vector<Fiber*>> cluster_meetings;
std::vector<u32> ready;  // warps of which a lane is
std::vector<std::function<void()>> events;
std::vector<Poller> pollers;
std::vector<Fiber*> holders;
Context scheduler;
Fiber* now;
const void* parameters;
u32 split;
u64 time_ns;
bool progress, failed;
std::string failure;
const unsigned char* flags_begin;
const unsigned char* flags_end;
unsigned char* stacks;
u64 stacks_bytes;
float values_of_halves[65536];

u64 below(u64 most) { return dice() % most; }

bool one_in(int odds) { return odds > 0 && below(odds) == 0; }

Block& block_of(const Fiber& fiber) { return blocks[fiber.block]; }
Warp& warp_of(const Fiber& fiber) { return warps[fiber.block * WARPS + fiber.thread / 32]; }

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

std::string who(const Fiber& fiber) { return text("block %u warp %u lane %u", fiber.block, fiber.thread / 32, fiber.thread % 32); }

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

void learn(Fiber& fiber, const Clock& clock) {
    if (block_of(fiber).held > 0) fiber.clock.join(clock);
}

void put(const Store& store) { std::memcpy(store.to, &store.value, store.bytes); }

// What `clock` knows of becomes visible to all.
void release_stores(u32 number, const Clock& clock) {
    Block& block = blocks[number];
    for (u32 thread = 0; block.held > 0 && thread < THREADS; ++thread) {
        Fiber& fiber = fibers[number * THREADS + thread];
        auto known = std::stable_partition(fiber.held.begin(), fiber.held.end(), [&](const Store& s) { return s.number > clock.known[thread]; });
        for (auto store = known; store != fiber.held.end(); ++store, --block.held) put(*store);
        fiber.held.erase(known, fiber.held.end());
    }
}

void let_go_of_one() {
    while (!holders.empty()) {
        const u64 i = below(holders.size());
        Fiber& fiber = *holders[i];
        if (fiber.held.empty()) {
            holders[i] = holders.back();
            holders.pop_back();
            continue;
        }
        const Store store = fiber.held.front();
        put(store);
        fiber.held.erase(fiber.held.begin());
        --block_of(fiber).held;
        return;
    }
}

// The block and the offset that an address of the current block's cluster names.
Block& owner(u32 address, u32& offset) {
    const u32 rank = address >> 24;
    offset = address & 0xFFFFFF;
    const u32 number = rank == 0 ? now->block : now->block / split * split + rank - 1;
    Block& block = blocks[number];
    if (block.running == 0) report(text("reaches into block %u, which has ended", number));
    return block;
}

unsigned char* bytes_of(Block& block, u32 offset, u32 bytes) {
    if (offset < SHARED_BEGIN || offset + bytes > SHARED_END) {
        report(text("shared memory from %u to %u does not exist", offset, offset + bytes));
        return block.memory.data();
    }
    return block.memory.data() + offset;
}

Barrier* barrier_at(Block& block, u32 offset) {
    const auto found = block.barriers.find(offset);
    if (found == block.barriers.end()) {
        report(text("no barrier has been made at %u", offset));
        return nullptr;
    }
    return &found->second;
}

void pass_if_complete(Barrier& barrier) {
    if (barrier.pending > 0 || barrier.bytes != 0) return;
    ++barrier.phase;
    barrier.pending = barrier.expected;
    barrier.passed = barrier.gathering;
    barrier.gathering = Clock();
    progress = true;
    wake_all(barrier.waiting);
}

void complete_bytes(Block& block, u32 offset, u32 bytes) {
    if (block.running == 0) return report("an asynchronous copy ends in a block that has ended");
    if (Barrier* barrier = barrier_at(block, offset)) {
        barrier->bytes -= bytes;
        pass_if_complete(*barrier);
    }
}

// The last lane to come does what there is to do; the others wait for it.
template <class Work>
void collective(const char* name, Work&& work) {
    Fiber& self = *now;
    Warp& warp = warp_of(self);
    if (warp.arrived != 0 && warp.collective != name) report(text("is at %s, lanes of its warp at %s", name, warp.collective));
    warp.collective = name;
    warp.arrived |= 1u << self.thread % 32;
    if (warp.arrived != ~0u) return sleep(name);
    warp.arrived = 0;
    work(warp);
    for (u32 lane = 0; lane < 32; ++lane)
        if (lane != self.thread % 32) wake(lane_of(self, lane));
    if (one_in(options.yield_odds)) yield();
}

// Somebody reads a word until it changes.
void poll(const void* address, u32 value, u32 name) {
    Fiber& self = *now;
    const bool same = self.polled == address && self.seen == value;
    self.repeats = same ? self.repeats + 1 : 0;
    if (same && (self.napped || self.repeats > 8)) {
        pollers.push_back({&self, address});
        sleep("a word that does not change", name);
    }
    self.napped = false;
}

void changed(const void* address) {
    progress = true;
    for (u64 i = 0; i < pollers.size();)
        if (pollers[i].address == address) {
            wake(*pollers[i].fiber);
            pollers[i] = pollers.back();
            pollers.pop_back();
        } else {
            ++i;
        }
}

// Products.

u32 swizzled(u32 address) { return address ^ (address >> 7 & 7) << 4; }

u32 start_of(u64 descriptor) { return (descriptor & 0x3FFF) << 4; }

void check_descriptor(u64 descriptor) {
    if (descriptor >> 62 != 1 || (descriptor >> 32 & 0x3FFF) != 64 || (descriptor >> 49 & 7) != 0)
        report(text("a descriptor %llx that the machine does not know", static_cast<unsigned long long>(descriptor)));
}

// Row `row`, element `k` of an operand that is K-major with 128-byte swizzle.
float element(Block& block, u32 start, u32 row, u32 k) {
    u16 half;
    std::memcpy(&half, bytes_of(block, swizzled(start + row * 128 + 2 * k), 2), 2);
    return values_of_halves[half];
}

// A warp's sixteen rows of one wgmma.
void compute(Block& block, u32 warp, const Group& group, u64 number) {
    const Product& first = group.products[0][number];
    float a[16][16], b[16][256], sums[16][256] = {};
    const u32 a_at = start_of(first.a), b_at = start_of(first.b);
    for (u32 row = 0; row < 16; ++row)
        for (u32 k = 0; k < 16; ++k) a[row][k] = element(block, a_at, warp % 4 * 16 + row, k);
    for (int column = 0; column < first.width; ++column)
        for (u32 k = 0; k < 16; ++k) b[k][column] = element(block, b_at, column, k);
    for (u32 row = 0; row < 16; ++row)
        for (u32 k = 0; k < 16; ++k)
            for (int column = 0; column < first.width; ++column) sums[row][column] += a[row][k] * b[k][column];
    for (u32 lane = 0; lane < 32; ++lane) {
        float* to = group.products[lane][number].sums;
        for (int eight = 0; eight < first.width / 8; ++eight)
            for (u32 i = 0; i < 4; ++i) to[4 * eight + i] += sums[lane / 4 + i / 2 * 8][8 * eight + lane % 4 * 2 + i % 2];
    }
}

void compute_group(u32 number) {
    Warp& warp = warps[number];
    const std::unique_ptr<Group> group = std::move(warp.groups.front());
    warp.groups.pop_front();
    Block& block = blocks[number / WARPS];
    for (u64 i = 0; i < group->products[0].size(); ++i) compute(block, number % WARPS, *group, i);
    progress = true;
    for (u32 lane = 0; lane < 32; ++lane) {
        Fiber& fiber = fibers[number * 32 + lane];
        if (std::strcmp(fiber.waits_for, "products") == 0) wake(fiber);
    }
}

// Loads. A row of 128 bytes of the box after the other.
void copy_box(Block& block, u32 to, const Map& map, const int (&at)[4]) {
    u32 counts[4];
    for (u32 i = 0; i < 4; ++i) counts[i] = (map.box[i] + map.steps[i] - 1u) / map.steps[i];
    u32 row = 0;
    for (u32 w = 0; w < counts[3]; ++w)
        for (u32 z = 0; z < counts[2]; ++z)
            for (u32 y = 0; y < counts[1]; ++y, ++row) {
                const std::int64_t outer[3] = {at[1] + std::int64_t(y) * map.steps[1], at[2] + std::int64_t(z) * map.steps[2],
                                               at[3] + std::int64_t(w) * map.steps[3]};
                const u16* from = reinterpret_cast<const u16*>(map.address);
                bool inside = true;
                for (u32 i = 0; i < 3; ++i) {
                    inside &= outer[i] >= 0 && u64(outer[i]) < map.sizes[i + 1];
                    from += outer[i] * std::int64_t(map.strides[i]) / 2;
                }
                for (u32 chunk = 0; chunk < 8; ++chunk) {
                    u16 halves[8];
                    for (u32 i = 0; i < 8; ++i) {
                        const std::int64_t x = at[0] + std::int64_t(8 * chunk + i);
                        halves[i] = inside && x >= 0 && u64(x) < map.sizes[0] ? from[x] : 0;
                    }
                    std::memcpy(bytes_of(block, swizzled(to + row * 128 + chunk * 16), 16), halves, 16);
                }
            }
}

u32 bytes_of_box(const Map& map) {
    u32 rows = 1;
    for (u32 i = 1; i < 4; ++i) rows *= (map.box[i] + map.steps[i] - 1u) / map.steps[i];
    return rows * 128;
}

// The scheduler.

void run_fiber(Fiber& fiber) {
    now = &fiber;
    thread_index = {fiber.thread};
    block_index = {fiber.block};
    switch_context(scheduler, fiber.context);
    now = nullptr;
}

void first_steps() {
    enter(parameters);
    now->done = true;
    progress = true;
    --block_of(*now).running;
    switch_context(now->context, scheduler);
}

void run_event() {
    const u64 i = options.events == 0 ? below(events.size()) : options.events == 1 ? 0 : events.size() - 1;
    const std::function<void()> event = std::move(events[i]);
    if (i + 1 < events.size()) events[i] = std::move(events.back());
    events.pop_back();
    event();
}

// The place in `ready` of the warp to run; -1 where only starved ones are, and other things can be done.
int choose() {
    int best = -1;
    u64 most = 0;
    const u64 start = options.order == 0 ? below(ready.size()) : 0;
    for (u64 i = 0; i < ready.size(); ++i) {
        const u64 place = (start + i) % ready.size();
        const Warp& warp = warps[ready[place]];
        if (warp.starved) continue;
        if (options.order != 2) return int(place);
        if (best < 0 || warp.priority > most) best = int(place), most = warp.priority;
    }
    if (best < 0 && events.empty()) return int(start);
    return best;
}

void run_warp(int place) {
    const u32 number = ready[place];
    ready.erase(ready.begin() + place);
    Warp& warp = warps[number];
    const u32 mask = warp.ready, turn = below(32);
    warp.ready = 0;
    if (options.order == 2 && one_in(256)) warp.priority = dice();
    for (u32 i = 0; i < 32 && !failed; ++i) {
        const u32 lane = (turn + i) % 32;
        if (mask >> lane & 1) run_fiber(fibers[number * 32 + lane]);
    }
}

std::string stuck() {
    std::unordered_map<std::string, int> lines;
    std::string all = "nobody can go on:";
    for (u32 i = 0; i < fibers.size(); ++i) {
        const Fiber& fiber = fibers[i];
        if (fiber.done) continue;
        const std::string where = fiber.waits_at != 0 ? " " + name_of(fiber.waits_at) + text(" parity %u", fiber.waits_parity) : "";
        const std::string line = text("block %u warp %u waits for ", fiber.block, fiber.thread / 32) + fiber.waits_for + where;
        if (lines[line]++ == 0) all += "\n  " + line;
    }
    return all;
}

void step() {
    if (one_in(options.drain_odds)) let_go_of_one();
    const bool eventful = !events.empty() && (options.events == 1 || (options.events == 0 && one_in(options.event_odds)));
    const int place = eventful || ready.empty() ? -1 : choose();
    if (place >= 0) return run_warp(place);
    if (!events.empty()) run_event();
}

void schedule() {
    int idle = 0;
    u64 alive = blocks.size();
    while (alive > 0 && !failed) {
        if (ready.empty() && events.empty()) {
            alive = 0;
            for (const Block& block : blocks) alive += block.running > 0;
            if (alive == 0) break;
            idle = progress ? 0 : idle + 1;
            progress = false;
            if (pollers.empty() || idle > MOST_IDLE) return report(stuck());
            if (idle > 1) time_ns += TIMEOUT / 16;
            for (const Poller& poller : pollers) wake(*poller.fiber);
            pollers.clear();
        }
        step();
    }
    for (Fiber& fiber : fibers)
        for (const Store& store : fiber.held) put(store);
}

void set_up(u32 number_of_blocks) {
    const u64 bytes = u64(number_of_blocks) * THREADS * STACK_BYTES;
    if (bytes > stacks_bytes) {
        if (stacks != nullptr) munmap(stacks, stacks_bytes);
        stacks = static_cast<unsigned char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        stacks_bytes = bytes;
    }
    fibers.clear(), warps.clear(), blocks.clear(), cluster_meetings.clear(), ready.clear(), events.clear(), pollers.clear(), holders.clear();
    now = nullptr, time_ns = 0, progress = true, failed = false, failure.clear();
    grid_size = {number_of_blocks};
    cluster_meetings.resize(number_of_blocks / split);
    for (u32 b = 0; b < number_of_blocks; ++b) {
        blocks.emplace_back().memory.assign(SHARED_END, 0xFF);  // not a number, in every type
        for (u32 w = 0; w < WARPS; ++w) {
            Warp& warp = warps.emplace_back();
            warp.priority = dice();
            const auto meant = [](int wanted, u32 is) { return wanted < 0 || u32(wanted) == is; };
            const bool any = options.starved_cluster >= 0 || options.starved_block >= 0 || options.starved_warp >= 0;
            warp.starved = any && meant(options.starved_cluster, b / split) && meant(options.starved_block, b) && meant(options.starved_warp, w);
        }
        for (u32 t = 0; t < THREADS; ++t) {
            Fiber& fiber = fibers.emplace_back();
            fiber.block = b, fiber.thread = t;
            make_context(fiber.context, stacks + (u64(b) * THREADS + t) * STACK_BYTES, STACK_BYTES, first_steps);
        }
    }
    for (Fiber& fiber : fibers) wake(fiber);
}

float value_of_half(u16 half) {
    if (BFLOATS) {
        const u32 bits = u32(half) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    const float size = exponent == 31 ? (mantissa ? NAN : INFINITY) : exponent ? std::ldexp(float(1024 + mantissa), exponent - 25) : std::ldexp(float(mantissa), -24);
    return half >> 15 ? -size : size;
}

}  // namespace

void fail(const char* what) { report(what); }

void yield() {
    wake(*now);
    sleep("its turn");
}

u64 clock() { return ++time_ns; }

void sync_warp() {
    collective("__syncwarp", [](Warp&) {
        if (block_of(*now).held == 0) return;
        Clock all;
        for (u32 lane = 0; lane < 32; ++lane) all.join(lane_of(*now, lane).clock);
        for (u32 lane = 0; lane < 32; ++lane) lane_of(*now, lane).clock = all;
    });
}

bool any(bool mine) {
    now->mine = mine;
    collective("__any_sync", [](Warp& warp) {
        warp.result = 0;
        for (u32 lane = 0; lane < 32; ++lane) warp.result |= lane_of(*now, lane).mine;
    });
    return warp_of(*now).result != 0;
}

int least(int mine) {
    now->mine = mine;
    collective("__reduce_min_sync", [](Warp& warp) {
        warp.result = now->mine;
        for (u32 lane = 0; lane < 32; ++lane) warp.result = std::min(warp.result, lane_of(*now, lane).mine);
    });
    return warp_of(*now).result;
}

void store_matrices(u32 address, const u32* squares) {
    now->address = address, now->squares = squares;
    collective("stmatrix", [](Warp&) {
        for (u32 square = 0; square < 4; ++square)
            for (u32 lane = 0; lane < 32; ++lane) {
                const u32 row = lane_of(*now, 8 * square + lane / 4).address;
                if (row % 16 != 0) report("stmatrix to a row that 16 does not divide");
                std::memcpy(shared(row + lane % 4 * 4, 4), lane_of(*now, lane).squares + square, 4);
            }
    });
}

void sync_block(u32 barrier, u32 threads) {
    std::vector<Fiber*>& here = block_of(*now).meetings[barrier];
    here.push_back(now);
    if (here.size() < threads) return sleep("bar.sync");
    Clock all;
    for (const Fiber* fiber : here) all.join(fiber->clock);
    for (Fiber* fiber : here) {
        fiber->clock = all;
        if (fiber != now) wake(*fiber);
    }
    here.clear();
}

void sync_cluster() {
    std::vector<Fiber*>& here = cluster_meetings[now->block / split];
    here.push_back(now);
    if (here.size() < THREADS * split) return sleep("the cluster");
    progress = true;
    here.pop_back();
    wake_all(here);
    yield();
}

u32 rank() { return now->block % split; }

unsigned char* shared(u32 address, u32 bytes) {
    if (address % bytes != 0) report(text("a shared access of %u bytes at %u", bytes, address));
    u32 offset;
    Block& block = owner(address, offset);
    return bytes_of(block, offset, bytes);
}

u32 map_rank(u32 address, u32 rank) {
    if (address >> 24 != 0 || rank >= split) report("an address that cannot be another block's");
    return address | (rank + 1) << 24;
}

void store_async(u32 address, Chunk value, u32 barrier) {
    u32 offset, barrier_offset;
    Block& block = owner(address, offset);
    if (&block != &owner(barrier, barrier_offset)) report("a store to one block that another's barrier counts");
    events.emplace_back([&block, offset, barrier_offset, value] {
        std::memcpy(bytes_of(block, offset, sizeof value), &value, sizeof value);
        complete_bytes(block, barrier_offset, sizeof value);
    });
}

u32 load_word(u32 address) {
    u32 value;
    const unsigned char* word = shared(address, 4);
    std::memcpy(&value, word, 4);
    poll(word, value, address);
    std::memcpy(&value, word, 4);
    now->polled = word, now->seen = value;
    learn(*now, block_of(*now).words[address]);
    now->acquired = true;
    return value;
}

void store_word(u32 address, u32 value) {
    unsigned char* word = shared(address, 4);
    std::memcpy(word, &value, 4);
    block_of(*now).words[address] = now->clock;
    changed(word);
    if (one_in(options.yield_odds)) yield();
}

void barrier_init(u32 barrier, u32 arrivals) {
    shared(barrier, 8);
    const auto [place, made] = block_of(*now).barriers.try_emplace(barrier);
    if (!made) report("makes the barrier " + name_of(barrier) + " again");
    place->second.expected = place->second.pending = arrivals;
}

void barrier_arrive(u32 address, u32 bytes, bool release) {
    u32 offset;
    Block& block = owner(address, offset);
    Barrier* barrier = barrier_at(block, offset);
    if (barrier->pending == 0) report("arrives at " + name_of(offset) + ", where all have arrived");
    --barrier->pending;
    barrier->bytes += bytes;
    if (release && block.held > 0) barrier->gathering.join(now->clock);
    pass_if_complete(*barrier);
    if (one_in(options.yield_odds)) yield();
}

bool barrier_wait(u32 barrier_address, u32 parity) {
    Barrier& barrier = *barrier_at(block_of(*now), barrier_address);
    if (one_in(options.yield_odds)) yield();
    while ((barrier.phase & 1) == parity) {
        barrier.waiting.push_back(now);
        sleep("", barrier_address, parity);
    }
    learn(*now, barrier.passed);
    now->wrote = true;
    return true;
}

bool is_global(const void* address) {
    const auto* byte = static_cast<const unsigned char*>(address);
    return byte < stacks || byte >= stacks + stacks_bytes;
}

void hold(void* to, const void* value, u32 bytes) {
    if (now->held.empty()) holders.push_back(now);
    now->held.push_back({to, {}, bytes, ++now->stores});
    std::memcpy(&now->held.back().value, value, bytes);
    now->clock.known[now->thread] = now->stores;
    now->wrote = true;
    ++block_of(*now).held;
}

int load_acquire(const int* address) {
    if (one_in(options.yield_odds)) yield();
    poll(address, *address, 0);
    const int value = *address;
    now->polled = address, now->seen = value;
    now->acquired = true;
    return value;
}

int add_release(int* address, int value) {
    const auto* byte = reinterpret_cast<const unsigned char*>(address);
    if (now->wrote && byte >= flags_begin && byte < flags_end) report("posts what TMA will read without a proxy fence before");
    release_stores(now->block, now->clock);
    const int before = *address;
    *address += value;
    changed(address);
    if (one_in(options.yield_odds)) yield();
    return before;
}

void nap() {
    now->napped = true;
    yield();
}

void fence_proxy() { now->acquired = now->wrote = false; }

void load_tensor(u32 to, const Map& map, u32 barrier, const int (&at)[4], u32 targets, bool others_write) {
    if (to % 128 != 0) report("a load to where 128 does not divide");
    if (others_write && now->acquired) report("loads what others wrote without a proxy fence since it has learnt of it");
    const u32 base = now->block / split * split;
    struct Place {
        int at[4];
    } place;
    std::memcpy(place.at, at, sizeof place.at);
    for (u32 rank = 0; rank < split; ++rank) {
        if ((targets >> rank & 1) == 0) continue;
        Block& block = blocks[base + rank];
        events.emplace_back([&block, to, map, barrier, place] {
            if (block.running == 0) return report("a load into a block that has ended");
            copy_box(block, to, map, place.at);
            events.emplace_back([&block, barrier, bytes = bytes_of_box(map)] { complete_bytes(block, barrier, bytes); });
        });
    }
    if (one_in(options.yield_odds)) yield();
}

void multiply(float* sums, int width, u64 a, u64 b) {
    check_descriptor(a), check_descriptor(b);
    now->open.push_back({a, b, width, sums});
}

void commit() {
    collective("wgmma.commit_group", [](Warp& warp) {
        auto group = std::make_unique<Group>();
        for (u32 lane = 0; lane < 32; ++lane) {
            group->products[lane].swap(lane_of(*now, lane).open);
            const auto& mine = group->products[lane];
            const auto& first = group->products[0];
            bool same = mine.size() == first.size();
            for (u64 i = 0; same && i < mine.size(); ++i) same = mine[i].a == first[i].a && mine[i].b == first[i].b;
            if (!same) report("lanes of a warp multiply different things");
        }
        warp.groups.push_back(std::move(group));
        const u32 number = now->block * WARPS + now->thread / 32;
        events.emplace_back([number] { compute_group(number); });
    });
}

void wait_groups(u32 pending) {
    collective("wgmma.wait_group", [](Warp&) {});
    while (warp_of(*now).groups.size() > pending) sleep("products");
    now->waits_for = "";
}

u16 to_half(float value) {
    u32 bits;
    std::memcpy(&bits, &value, sizeof bits);
    const u16 sign = bits >> 16 & 0x8000;
    if (value != value) return 0x7FFF;
    const float size = std::fabs(value);
    if (size >= 65520.0f) return sign | 0x7C00;
    if (size < 6.103515625e-05f) return sign | u16(std::nearbyint(size * 16777216.0f));
    bits &= 0x7FFFFFFF;
    bits += 0xFFF + (bits >> 13 & 1);
    return sign | u16((bits - 0x38000000) >> 13);
}

float from_half(u16 half) { return values_of_halves[half]; }

extern "C" __attribute__((visibility("default"))) const char* run_kernel(
    const void* arguments, u32 number_of_blocks, u32 blocks_of_a_cluster, const Options* how, const void* flags, u64 flag_bytes) {
    if (values_of_halves[0x3C00 + 1] == 0)
        for (u32 i = 0; i < 65536; ++i) values_of_halves[i] = value_of_half(i);
    options = *how;
    dice.seed(options.seed);
    parameters = arguments;
    split = blocks_of_a_cluster;
    flags_begin = static_cast<const unsigned char*>(flags), flags_end = flags_begin + flag_bytes;
    set_up(number_of_blocks);
    schedule();
    if (!failed && !events.empty()) report("something asynchronous is still under way at the end");
    return failed ? failure.c_str() : nullptr;
}

}  // namespace machine
