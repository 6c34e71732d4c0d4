// Blocks of a made-up program, several kernels long and with addresses that are known at run time only, under three
// schedulers: kernel after kernel, the exact graph, and Bloom filters. The same results; every dependency of the exact
// graph held; how many the filters invent, and what they cost.
//
//     program [workers per SM [seed [limit ms [kernels [blocks [repeats]]]]]]
//
// A line of JSON for each scheduler: its best time, and how many of its repeats were wrong.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include <tileprof/bloom.cuh>

using namespace tileprof::bloom;

#ifndef BLOOM_LAUNCH  // a harness may run blocks itself
#define BLOOM_LAUNCH(kernel, blocks, threads, ...) kernel<<<blocks, threads>>>(__VA_ARGS__)
#define BLOOM_SHARED __shared__
#define BLOOM_BLOCK static_cast<int>(blockIdx.x)
#define BLOOM_GRID static_cast<int>(gridDim.x)
#endif
#ifndef BLOOM_HOLD  // a harness may delay threads at random
#define BLOOM_HOLD()
#endif
#ifndef BLOOM_BITS
#define BLOOM_BITS 2048
#endif
#ifndef BLOOM_THREADS
#define BLOOM_THREADS 128
#endif

#define CHECK(call)                                                                                  \
    do {                                                                                             \
        const cudaError_t error = call;                                                              \
        if (error != cudaSuccess)                                                                    \
            std::printf("%s: %s\n", #call, cudaGetErrorString(error)), std::fflush(stdout), exit(1); \
    } while (false)

using TheFilter = Filter<BLOOM_BITS, 2, 512>;

#ifndef BLOOM_WINDOW
#define BLOOM_WINDOW 512
#endif

constexpr int PAGE = 1024, OPERANDS = 3, WINDOW = BLOOM_WINDOW;  // words of a page, 4 KB
enum Mode { KERNELS, EXACT, FILTERS };

struct Work {
    int kernel, reads, from[OPERANDS], to;  // pages
    int rounds;                             // steps of arithmetic, so that blocks have different durations
};

struct Tables {
    const Work* works;
    const Range* ranges;         // OPERANDS + 1 per block
    const int *parent_at, *parents;
    const int* kernel_begin;     // the first block of a block's kernel
    u32* memory;
    int *order, *clock;          // when each block began and ended, by a common counter
};

TILEPROF_DEVICE u32 stirred(u32 x, u32 with) { return (x ^ x >> 15 ^ with) * 0x2C1B3C6Du + 0x9E3779B9u; }

__global__ void run(Mode mode, Scheduler<TheFilter> scheduler, Tables tables) {
    BLOOM_SHARED int block;
    while (true) {
        if (lane() == 0) block = scheduler.take();
        meet();
        if (block < 0) return;
        const Work work = tables.works[block];
        BLOOM_HOLD();
        if (mode == FILTERS) {
            scheduler.begin(block, tables.ranges + (OPERANDS + 1) * block, work.reads + 1);
        } else if (mode == EXACT) {
            for (int i = tables.parent_at[block] + lane(); i < tables.parent_at[block + 1]; i += lanes())
                scheduler.wait(scheduler.ended + tables.parents[i], block);
            meet();
        } else {
            const int before = tables.kernel_begin[block];
            for (int other = (before > 0 ? tables.kernel_begin[before - 1] : 0) + lane(); other < before;
                 other += lanes())
                scheduler.wait(scheduler.ended + other, block);
            meet();
        }
        if (lane() == 0) tables.order[2 * block] = take_next(tables.clock);
        BLOOM_HOLD();
        for (int i = lane(); i < PAGE; i += lanes()) {
            u32 value = work.kernel;
            for (int operand = 0; operand < work.reads; ++operand)
                value = stirred(value, tables.memory[work.from[operand] * PAGE + (i * 7 + operand) % PAGE]);
            for (int round = 0; round < work.rounds; ++round) value = stirred(value, round);
            tables.memory[work.to * PAGE + i] = value;
        }
        BLOOM_HOLD();
        meet();
        if (lane() == 0) tables.order[2 * block + 1] = take_next(tables.clock);
        scheduler.end(block);
        meet();
    }
}

// Counts all pairs of blocks within a window: those that filters report, those that conflict, and conflicts that
// filters miss.
__global__ void survey(Footprint<TheFilter>* all, Tables tables, int blocks, int step, u64* three) {
    for (int block = BLOOM_BLOCK; step == 0 && block < blocks; block += BLOOM_GRID) {
        const Range* ranges = tables.ranges + (OPERANDS + 1) * block;
        for (int i = 0; i <= tables.works[block].reads; ++i)
            (ranges[i].writes ? all[block].written : all[block].read).insert(ranges[i]);
    }
    u64 hits = 0, exact = 0, missed = 0;
    for (int block = BLOOM_BLOCK; step == 1 && block < blocks; block += BLOOM_GRID)
        for (int other = (block > WINDOW ? block - WINDOW : 0) + lane(); other < block; other += lanes()) {
            const bool hit = all[other].meets(tables.ranges + (OPERANDS + 1) * block, tables.works[block].reads + 1);
            bool conflicts = false;
            for (int i = tables.parent_at[block]; i < tables.parent_at[block + 1]; ++i)
                conflicts |= tables.parents[i] == other;
            hits += hit, exact += conflicts, missed += conflicts && !hit;
        }
    add_count(three, hits), add_count(three + 1, exact), add_count(three + 2, missed);
}

// The time of an insertion and of a look-up in each running block, with a shared ring of `size` filters. Writes 2 +
// BLOOM_THREADS numbers per block.
__global__ void price(Footprint<TheFilter>* ring, int size, const Range* ranges, u64* all) {
    constexpr int TIMES = 200;
    u64* out = all + (2 + BLOOM_THREADS) * BLOOM_BLOCK;
    u64 begin = time_ns();
    for (int n = 0; n < TIMES; ++n) {
        TheFilter& filter = ring[(n * BLOOM_GRID + BLOOM_BLOCK) % size].written;
        filter.clear();
        meet();
        filter.insert(ranges[n % 64]);
        meet();
    }
    if (lane() == 0) out[0] = (time_ns() - begin) / TIMES;
    begin = time_ns();
    int hits = 0;
    for (int n = 0; n < TIMES; ++n) hits += ring[(n + lane() + BLOOM_BLOCK) % size].meets(ranges + 64 + n % 64, 1);
    if (lane() == 0) out[1] = (time_ns() - begin) / TIMES;
    out[2 + lane()] = hits;
}

namespace {

struct Dice {
    u64 state;
    int below(int most) { return static_cast<int>(mixed(++state, 77) % most); }
};

// Kernels of several shapes, one after the other, over buffers that are reused.
std::vector<Work> program_of(u64 seed, int kernels, int blocks) {
    Dice dice = {seed << 32};
    const int buffers = 5;
    std::vector<Work> works;
    for (int kernel = 0; kernel < kernels; ++kernel) {
        const int shape = dice.below(4), from = dice.below(buffers), second = dice.below(buffers);
        int to = dice.below(buffers);
        while (to == from || to == second) to = (to + 1) % buffers;  // blocks of a kernel do not depend on each other
        const int used = blocks / 2 + dice.below(blocks / 2), turned = 2 * dice.below(blocks);
        for (int b = 0; b < used; ++b) {
            const auto page = [&](int buffer, int at) { return buffer * blocks + (at + blocks) % blocks; };
            Work work = {kernel, 1, {page(from, b), 0, 0}, page(to, b), 1 + dice.below(40)};
            if (shape == 1)
                work.reads = 3, work.from[0] = page(from, b - 1), work.from[1] = page(from, b),
                work.from[2] = page(from, b + 1);  // a stencil
            if (shape == 2) work.reads = 2, work.from[1] = page(second, used - 1 - b);  // reversed
            if (shape == 3)
                work.reads = 2, work.from[0] = page(from, dice.below(blocks)),
                work.to = page(to, turned + (b % 2 ? -b : b));  // gather and scatter
            if (shape == 3) work.from[1] = page(second, dice.below(blocks));
            works.push_back(work);
        }
    }
    return works;
}

bool conflict(const Work& before, const Work& after) {
    for (int i = 0; i < after.reads; ++i)
        if (after.from[i] == before.to) return true;
    for (int i = 0; i < before.reads; ++i)
        if (before.from[i] == after.to) return true;
    return before.to == after.to;
}

template <class T>
T* on_device(const std::vector<T>& from) {
    T* at = nullptr;
    CHECK(cudaMalloc(reinterpret_cast<void**>(&at), std::max<std::size_t>(1, from.size()) * sizeof(T)));
    CHECK(cudaMemcpy(at, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    return at;
}

template <class T>
std::vector<T> from_device(const T* at, std::size_t count) {
    std::vector<T> to(count);
    CHECK(cudaMemcpy(to.data(), at, count * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
}

}  // namespace

int main(int count, char** arguments) {
    const auto number = [&](int at, int otherwise) { return count > at ? std::atoi(arguments[at]) : otherwise; };
    const int per_sm = number(1, 2), seed = number(2, 1), limit_ms = number(3, 2000), kernels = number(4, 24),
              blocks = number(5, 192), repeats = number(6, 3);
    int sms = 1;
    CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    const std::vector<Work> works = program_of(seed, kernels, blocks);
    const int total = static_cast<int>(works.size()), pages = 5 * blocks;
    std::vector<int> parent_at = {0}, parents, kernel_begin;
    for (int b = 0; b < total; ++b) {
        kernel_begin.push_back(b > 0 && works[b].kernel == works[b - 1].kernel ? kernel_begin.back() : b);
        for (int other = 0; other < b; ++other)
            if (conflict(works[other], works[b])) parents.push_back(other);
        parent_at.push_back(static_cast<int>(parents.size()));
    }
    std::vector<u32> fresh(static_cast<std::size_t>(pages) * PAGE);
    std::iota(fresh.begin(), fresh.end(), 1u);
    std::vector<Range> ranges(static_cast<std::size_t>(total) * (OPERANDS + 1));
    for (int b = 0; b < total; ++b)
        for (int i = 0; i <= works[b].reads; ++i)
            ranges[(OPERANDS + 1) * b + i] = {
                0x7F0000000000ull + u64(i < works[b].reads ? works[b].from[i] : works[b].to) * PAGE * 4, PAGE * 4,
                u32(i == works[b].reads)};
    Tables tables = {on_device(works),
                     on_device(ranges),
                     on_device(parent_at),
                     on_device(parents),
                     on_device(kernel_begin),
                     nullptr,
                     nullptr,
                     nullptr};
    std::vector<u32> right;
    int failures = 0;
    for (const Mode mode : {KERNELS, EXACT, FILTERS}) {
        double best_us = 1e30;
        std::vector<int> order, late;
        std::vector<u64> counts;
        std::vector<u32> memory;
        int wrong = 0;
        for (int repeat = 0; repeat < repeats; ++repeat) {
            tables.memory = on_device(fresh);
            tables.order = on_device(std::vector<int>(2 * total));
            tables.clock = on_device(std::vector<int>(1));
            Scheduler<TheFilter> scheduler = {on_device(std::vector<Footprint<TheFilter>>(WINDOW)),
                                              on_device(std::vector<int>(total)),
                                              on_device(std::vector<int>(total)),
                                              on_device(std::vector<int>(1)),
                                              WINDOW,
                                              total,
                                              on_device(std::vector<u64>(2)),
                                              on_device(std::vector<int>(2)),
                                              u64(limit_ms) * 1'000'000};
            CHECK(cudaDeviceSynchronize());
            const auto begin = std::chrono::steady_clock::now();
            BLOOM_LAUNCH(run, sms * per_sm, BLOOM_THREADS, mode, scheduler, tables);
            CHECK(cudaDeviceSynchronize());
            best_us = std::min(
                best_us, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
            order = from_device(tables.order, 2 * total), late = from_device(scheduler.late, 2),
            counts = from_device(scheduler.counts, 2);
            memory = from_device(tables.memory, fresh.size());
            for (void* at : {(void*)tables.memory, (void*)tables.order, (void*)tables.clock, (void*)scheduler.ring,
                             (void*)scheduler.inserted, (void*)scheduler.ended, (void*)scheduler.next,
                             (void*)scheduler.counts, (void*)scheduler.late})
                cudaFree(at);
            if (mode == KERNELS && right.empty()) right = memory;
            long missed = 0;
            for (int b = 0; b < total; ++b)
                for (int i = parent_at[b]; i < parent_at[b + 1]; ++i)
                    missed += order[2 * parents[i] + 1] > order[2 * b];
            // Those that were asked about had not ended: of them, the exact ones are a part of what was found.
            const bool good = missed == 0 && late[0] == 0 && memory == right;
            failures += !good, wrong += !good;
            if (repeat == repeats - 1 || (!good && wrong == 1))
                std::printf(
                    "{\"mode\": \"%s\", \"right\": %s, \"missed\": %ld, \"late\": %d, \"us\": %.1f, "
                    "\"blocks\": %d, \"edges\": %zu, \"asked\": %llu, \"found\": %llu, \"bits\": %d, \"runs\": %d, \"wrong\": %d}\n",
                    mode == KERNELS ? "kernels"
                    : mode == EXACT ? "exact"
                                    : "filters",
                    good ? "true" : "false", missed, late[0], best_us, total, parents.size(),
                    static_cast<unsigned long long>(counts[0]), static_cast<unsigned long long>(counts[1]), BLOOM_BITS,
                    repeat + 1, wrong);
        }
    }
    auto* all = on_device(std::vector<Footprint<TheFilter>>(total));
    auto* three = on_device(std::vector<u64>(3));
    for (const int step : {0, 1}) BLOOM_LAUNCH(survey, sms, BLOOM_THREADS, all, tables, total, step, three);
    CHECK(cudaDeviceSynchronize());
    const auto pairs = from_device(three, 3);
    failures += pairs[2] != 0;
    std::printf("{\"found_pairs\": %llu, \"exact_pairs\": %llu, \"missed_pairs\": %llu}\n",
                static_cast<unsigned long long>(pairs[0]), static_cast<unsigned long long>(pairs[1]),
                static_cast<unsigned long long>(pairs[2]));
    // The cost of single operations: in one block with few filters, and in all workers with the filters of a window.
    const auto priced = [&](int priced_blocks, int size) {
        auto* ring = on_device(std::vector<Footprint<TheFilter>>(size));
        auto* out = on_device(std::vector<u64>(std::size_t(2 + BLOOM_THREADS) * priced_blocks));
        BLOOM_LAUNCH(price, priced_blocks, BLOOM_THREADS, ring, size, tables.ranges, out);
        CHECK(cudaDeviceSynchronize());
        const auto numbers = from_device(out, (2 + BLOOM_THREADS) * priced_blocks);
        u64 sums[2] = {};
        for (int b = 0; b < priced_blocks; ++b)
            for (int i = 0; i < 2; ++i) sums[i] += numbers[(2 + BLOOM_THREADS) * b + i];
        return std::pair(sums[0] / priced_blocks, sums[1] / priced_blocks);
    };
    const auto [insert_ns, look_up_ns] = priced(1, 8);
    const auto [busy_insert_ns, busy_look_up_ns] = priced(sms * per_sm, WINDOW);
    std::printf(
        "{\"insert_ns\": %llu, \"look_up_ns\": %llu, \"busy_insert_ns\": %llu, \"busy_look_up_ns\": %llu, "
        "\"threads\": %d}\n",
        static_cast<unsigned long long>(insert_ns), static_cast<unsigned long long>(look_up_ns),
        static_cast<unsigned long long>(busy_insert_ns), static_cast<unsigned long long>(busy_look_up_ns),
        BLOOM_THREADS);
    return failures != 0;
}
