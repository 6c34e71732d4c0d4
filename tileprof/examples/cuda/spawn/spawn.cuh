// Launches of child grids that are controlled by cost, as in SPAWN (Tang et al., "Controlled Kernel Launch for Dynamic
// Parallelism in GPUs", HPCA 2017, doi:10.1109/HPCA.2017.14). At a launch site a parent thread compares
//
//     a child     overhead of the launch + (child blocks that wait or run + its own) / throughput of child blocks
//     its own     items * time of a child's warp
//
// and launches if the child is expected to end first. Throughput and times are those of the last window of time in
// which children ended. Without any, it launches at most `untried` child blocks: the paper does not define this case,
// and on today's GPUs all parents have decided before the first child ends. The other rules serve for comparison. Needs
// device-side launches (nvcc -rdc=true) of CUDA 12 or newer.
//
// The rule BY_WARP is not in the paper. A warp ends with its slowest thread, so a site is worth launching only together
// with all larger ones of its warp. An item that a thread does itself takes much less time than a child's warp, whose
// start counts too. The rule launches the largest sites of a warp: as many as make the later of the warp and its
// children end first. Times of items are those that threads which kept their work have measured.
#pragma once

#include <cstdint>

#ifndef SPAWN_CHILD  // a harness may run grids by itself
#define SPAWN_CHILD(kernel, blocks, threads, ...) kernel<<<blocks, threads, 0, cudaStreamFireAndForget>>>(__VA_ARGS__)
#define SPAWN_PARENT(kernel, blocks, threads, ...) kernel<<<blocks, threads>>>(__VA_ARGS__)
#endif

// Whether threads may sleep (`__nanosleep`). Launches by several threads of a warp may never return while others of it
// sleep (docs/measured.md, "Launches that did not return"); with 1, threads of a warp launch one at a time, which takes
// longer.
#ifndef SPAWN_THREADS_SLEEP
#define SPAWN_THREADS_SLEEP 0
#endif

#ifndef SPAWN_SITE  // a harness may note which items have sites of their own
#define SPAWN_SITE(site, items) spawn::Unnoted site(items)
#endif

namespace spawn {

struct Unnoted {
    __device__ explicit Unnoted(int) {}
    __device__ void at(int) {}
};

using u32 = unsigned int;
using u64 = unsigned long long;

enum Rule { FLAT, ALWAYS, THRESHOLD, SPAWN, BY_WARP };

constexpr int CHILD_THREADS = 32;
constexpr int WINDOWS = 8;  // ring of windows; the last complete one is read
constexpr float ITEM_NS = 500;  // assumed time of an item until one is measured: about a load from memory
constexpr int ENDED_SHIFT = 40;  // a window's word: durations in nanoseconds below, number of ended children above

// What a launch costs, in nanoseconds: for a warp to launch at all, and more for each of its launches.
struct Costs {
    float first_ns, another_ns;
};

// In global memory. At first all members are zero but the first four.
struct Control {
    Rule rule;
    int threshold;  // least items with which THRESHOLD launches; SPAWN never launches fewer than `least`
    int least;
    Costs costs;
    u32 window_log2;  // log2 of the nanoseconds of a window
    int untried;  // most child blocks that SPAWN launches before one has ended
    int waiting;  // child blocks that were launched and have not ended
    // number of sites: children, own work, and own work because too many launches were pending
    u32 launched, kept, refused;
    u64 total;  // like a window's word, over all of time
    u64 begun_ns;  // time at which the first child began
    u64 own_items, own_ns;  // items that threads did themselves under BY_WARP, and their time
    u64 number[WINDOWS], window[WINDOWS];
};

// The children that ended recently: number, sum of durations, and the time in which they ended.
struct Throughput {
    float ended, lived_ns, over_ns;
};

__device__ inline int blocks_of(int items) { return (items + CHILD_THREADS - 1) / CHILD_THREADS; }

// The position of a site among those that its warp decides together: the number of sites with more items, and their
// child blocks.
struct Place {
    int rank, blocks;
    bool last;
};

__device__ inline Throughput throughput_of(u64 word, float over_ns) {
    return {static_cast<float>(word >> ENDED_SHIFT), static_cast<float>(word & ((1ull << ENDED_SHIFT) - 1)), over_ns};
}

// Returns whether a child is expected to end before the thread would by itself. `waiting`: child blocks in the system;
// `turn`: launches of the warp before this one.
__device__ inline bool worth_launching(Costs costs, const Throughput& throughput, int untried, int waiting, int turn,
                                       int items) {
    const int own = blocks_of(items);
    if (throughput.ended <= 0) return waiting + own <= untried;
    const float overhead = costs.first_ns + costs.another_ns * static_cast<float>(turn + 1);
    const float child_ns = overhead + static_cast<float>(waiting + own) * throughput.over_ns / throughput.ended;
    return child_ns < static_cast<float>(items) * throughput.lived_ns / throughput.ended;
}

// Returns when warp and children end, in nanoseconds. `kept` items stay with the slowest thread; `launched` sites of
// the warp have `blocks` child blocks.
__device__ inline float warp_end(Costs costs, const Throughput& throughput, float item_ns, int waiting, int launched,
                                 int blocks, int kept) {
    const float own_ns = static_cast<float>(kept) * item_ns;
    if (launched == 0) return own_ns;
    const float each_ns = throughput.ended > 0 ? throughput.over_ns / throughput.ended : costs.another_ns;
    const float queue_ns = static_cast<float>(waiting + blocks) * each_ns;
    return costs.first_ns + costs.another_ns * static_cast<float>(launched) + (own_ns > queue_ns ? own_ns : queue_ns);
}

constexpr int RANK_BITS = 6;  // 0 to 32 sites of a warp are launched

// Returns the better of a thread's two proposals: its site is the largest that the warp keeps, or, for the smallest of
// all, none is kept. The word has the time in units of 16 ns above, and the number of launched sites below.
__device__ inline u32 proposal(Costs costs, const Throughput& throughput, float item_ns, int waiting,
                               const Place& place, int items) {
    const auto word = [](float ns, int launched) {
        const float units = ns / 16 < 6.0e7f ? ns / 16 : 6.0e7f;  // at most a second
        return static_cast<u32>(units) << RANK_BITS | static_cast<u32>(launched);
    };
    const u32 keep = word(warp_end(costs, throughput, item_ns, waiting, place.rank, place.blocks, items), place.rank);
    if (!place.last) return keep;
    const int all = place.blocks + blocks_of(items);
    const u32 none = word(warp_end(costs, throughput, item_ns, waiting, place.rank + 1, all, 0), place.rank + 1);
    return none < keep ? none : keep;
}

#ifdef __CUDACC__
__device__ inline u64 time_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}

template <class T>
__device__ T seen(const T& word) {
    return *const_cast<const volatile T*>(&word);
}

// Returns the number of this warp's launches before this thread's own, among those that are decided together.
__device__ inline int turn_in_warp() { return __popc(__activemask() & ((1u << threadIdx.x % 32) - 1)); }

__device__ inline Place place_in_warp(u32 mask, int items) {
    const int lane = threadIdx.x % 32;
    Place place = {0, 0, false};
    for (u32 rest = mask; rest != 0; rest &= rest - 1) {
        const int other = __ffs(rest) - 1, theirs = __shfl_sync(mask, items, other);
        if (theirs > items || (theirs == items && other < lane)) ++place.rank, place.blocks += blocks_of(theirs);
    }
    place.last = place.rank == __popc(mask) - 1;
    return place;
}

#if SPAWN_THREADS_SLEEP
// Locks of launching warps, by a number that two of them hardly ever share.
constexpr int LOCKS = 1 << 14;
static __device__ int launching[LOCKS];

// Calls launch(), for one thread of a warp at a time unless all 32 have come together.
template <class Launch>
__device__ bool launched_by(Launch&& launch) {
    if (__activemask() == ~0u) {
        __syncwarp();
        return launch();
    }
    u64 grid;
    asm volatile("mov.u64 %0, %gridid;" : "=l"(grid));
    const u64 warp = grid * 0x9E3779B97F4A7C15ull + blockIdx.x * 8191ull + threadIdx.x / 32 * 131ull;
    int* lock = &launching[(warp >> 3) % LOCKS];
    while (true) {  // launches inside of the loop, behind which threads of a warp may meet
        if (atomicCAS(lock, 0, 1) == 0) {
            const bool launched = launch();
            __threadfence();
            atomicExch(lock, 0);
            return launched;
        }
        __nanosleep(100);
    }
}
#else
template <class Launch>
__device__ bool launched_by(Launch&& launch) {
    return launch();
}
#endif

__device__ inline u32 threads_together() { return __activemask(); }
__device__ inline u32 least_in_warp(u32 mask, u32 word) { return __reduce_min_sync(mask, word); }
#endif

// Returns the last complete window within the ring's time in which children ended; without any, all of time.
__device__ inline Throughput recent_throughput(const Control& control) {
    const u64 now = time_ns(), current = now >> control.window_log2;
    for (u64 back = 1; back < WINDOWS - 1; ++back) {
        const u32 slot = (current - back) % WINDOWS;
        if (seen(control.number[slot]) == current - back)
            return throughput_of(seen(control.window[slot]), static_cast<float>(1ull << control.window_log2));
    }
    const u64 begun = seen(control.begun_ns);
    return throughput_of(seen(control.total), begun != 0 && now > begun ? static_cast<float>(now - begun) : 1.0f);
}

// Returns whether a thread's site is among those that its warp launches: threads make proposals, and the earliest end
// wins.
__device__ inline bool warp_launches(const Control& control, int items) {
    const u32 mask = threads_together();
    const Place place = place_in_warp(mask, items);
    const u64 own = seen(control.own_items);
    const float item_ns = own > 0 ? static_cast<float>(seen(control.own_ns)) / static_cast<float>(own) : ITEM_NS;
    const u32 best = least_in_warp(
        mask, proposal(control.costs, recent_throughput(control), item_ns, seen(control.waiting), place, items));
    return items >= control.least && place.rank < static_cast<int>(best & ((1u << RANK_BITS) - 1));
}

__device__ inline bool launches(const Control& control, int items) {
    switch (control.rule) {
        case FLAT:
            return false;
        case ALWAYS:
            return true;
        case THRESHOLD:
            return items >= control.threshold;
        case BY_WARP:
            return warp_launches(control, items);
        default:
            return items >= control.least && worth_launching(control.costs, recent_throughput(control), control.untried,
                                                             seen(control.waiting), turn_in_warp(), items);
    }
}

// Counts the end of a child block. The first block in a window empties it. What others add at that moment may be lost,
// which hardly changes a mean.
__device__ inline void count_end(Control& control, u64 begin) {
    const u64 now = time_ns(), number = now >> control.window_log2, word = (1ull << ENDED_SHIFT) + (now - begin);
    const u32 slot = number % WINDOWS;
    if (seen(control.number[slot]) != number && atomicExch(&control.number[slot], number) != number)
        atomicExch(&control.window[slot], 0ull);
    atomicAdd(&control.window[slot], word);
    atomicAdd(&control.total, word);
    atomicSub(&control.waiting, 1);
}

template <class Item>
__global__ void child(Control* control, Item item, int items) {
    const bool first = threadIdx.x == 0;
    const u64 begin = first ? time_ns() : 0;
    if (first && seen(control->begun_ns) == 0) atomicCAS(&control->begun_ns, 0ull, begin);
    const int i = blockIdx.x * CHILD_THREADS + threadIdx.x;
    if (i < items) item(i);
    __syncwarp();
    if (first) count_end(*control, begin);
}

// A launch site: runs item(0), item(1), ... of a parent thread, in a child grid or in the thread itself.
template <class Item>
__device__ void each(Control* control, int items, Item item) {
    if (items <= 0) return;
    SPAWN_SITE(site, items);
    if (launches(*control, items)) {
        const int blocks = blocks_of(items);
        atomicAdd(&control->waiting, blocks);
        const bool launched = launched_by([&] {
            SPAWN_CHILD(child<Item>, blocks, CHILD_THREADS, control, item, items);
            return cudaGetLastError() == cudaSuccess;
        });
        if (launched) {
            atomicAdd(&control->launched, 1u);
            return;
        }
        atomicSub(&control->waiting, blocks);  // too many launches are pending
        atomicAdd(&control->refused, 1u);
    }
    atomicAdd(&control->kept, 1u);
    const bool timed = control->rule == BY_WARP && turn_in_warp() == 0;
    const u64 begin = timed ? time_ns() : 0;
    for (int i = 0; i < items; ++i) site.at(i), item(i);
    if (!timed) return;
    atomicAdd(&control->own_items, static_cast<u64>(items));
    atomicAdd(&control->own_ns, time_ns() - begin);
}

}  // namespace spawn
