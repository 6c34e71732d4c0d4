// Measures the cost of launches from kernels on a GPU as their number grows, and when warps that decide at the same
// time read the controller's words. These are constants of the simulation of spawning, measured without any of SPAWN's
// programs.
//
//     nvcc -O3 -std=c++17 -arch=sm_90 -rdc=true -I SPAWN spawn_costs.cu -lcudadevrt -o spawn_costs
//     nvcc ... -DDECISIONS ... -o spawn_decisions
//     spawn_costs REPEATS        launches: children of threads, and children of children
//     spawn_decisions REPEATS    decisions: nothing is launched; and reads of one word by many warps
//
// Prints a line of JSON for each repeat. Times in nanoseconds.
#include <chrono>

#ifdef DECISIONS
namespace spawn_costs {
__device__ void note(int items);
}
#define SPAWN_CHILD(kernel, blocks, threads, control, item, items) (spawn_costs::note(items))
#define SPAWN_PARENT(kernel, blocks, threads, ...) kernel<<<blocks, threads>>>(__VA_ARGS__)
#endif

#include "programs.cuh"

namespace {

constexpr int THREADS = 256, WARP = 32;

template <class T>
T quantile(std::vector<T> all, double share) {
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(all.size() - 1));
    std::nth_element(all.begin(), at, all.end());
    return *at;
}

double timed_us(const std::function<void()>& work) {
    CHECK(cudaDeviceSynchronize());
    const auto begin = std::chrono::steady_clock::now();
    work();
    CHECK(cudaDeviceSynchronize());
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

template <class T>
void print_quantiles(const char* key, const std::vector<T>& all, u64 from) {
    std::printf(", \"%s\": [", key);
    for (const double share : {0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0})
        std::printf(share > 0 ? ", %lld" : "%lld", static_cast<long long>(quantile(all, share) - from));
    std::printf("]");
}

#ifndef DECISIONS

struct Times {
    u64 *arrive, *leave, *child, *grandchild;
};

struct Last {
    u64* at;
    __device__ void operator()(int) const { *at = spawn::time_ns(); }
};

struct Child {
    Control* control;
    Times times;
    int number, below;
    __device__ void operator()(int i) const {
        if (i == 0) times.child[number] = spawn::time_ns();
        if (i < below) spawn::each(control, 1, Last{times.grandchild + number * WARP + i});
    }
};

// Threads of a warp below `lanes` launch a child of one block each; threads of the child below `below` launch too.
__global__ void launch(Control* control, Times times, int lanes, int below) {
    const int number = works::thread_number() / WARP * lanes + threadIdx.x % WARP;
    if (static_cast<int>(threadIdx.x % WARP) >= lanes) return;
    times.arrive[number] = spawn::time_ns();
    spawn::each(control, below > 0 ? WARP : 1, Child{control, times, number, below});
    times.leave[number] = spawn::time_ns();
}

void launches(int warps, int lanes, int below, int repeats) {
    const int count = warps * lanes;
    Buffer<u64> arrive(count), leave(count), child(count), grandchild(count * WARP);
    for (int i = -1; i < repeats; ++i) {
        Control rule = {};
        rule.rule = spawn::ALWAYS, rule.window_log2 = 16;
        Buffer<Control> control(std::vector<Control>{rule});
        grandchild.fill(0);
        const double us = timed_us([&] {
            SPAWN_PARENT(launch, (warps * WARP + THREADS - 1) / THREADS, std::min(warps * WARP, THREADS), control.at,
                         Times{arrive.at, leave.at, child.at, grandchild.at}, lanes, below);
        });
        CHECK(cudaGetLastError());
        if (i < 0) continue;
        const auto arrived = arrive.get();
        const u64 from = *std::min_element(arrived.begin(), arrived.end());
        std::printf("{\"warps\": %d, \"lanes\": %d, \"below\": %d, \"us\": %.1f, \"refused\": %u", warps, lanes, below,
                    us, control.get()[0].refused);
        print_quantiles("leave", leave.get(), from), print_quantiles("child", child.get(), from);
        if (below > 0) {
            std::vector<u64> started;
            for (const u64 when : grandchild.get())
                if (when > 0) started.push_back(when);
            print_quantiles("grandchild", started, from);
        }
        std::printf("}\n");
    }
    std::fflush(stdout);
}

#else

// Times of each thread at its site.
struct Site {
    u64 arrive, decide, end;
    int sm, launched;
};
__device__ Site* sites;

struct Nothing {
    __device__ void operator()(int i) const {
        if (i == 0) sites[works::thread_number()].decide = spawn::time_ns();
    }
};

__global__ void decide(Control* control, int items) {
    Site& site = sites[works::thread_number()];
    asm volatile("mov.u32 %0, %smid;" : "=r"(site.sm));
    site.launched = 0;
    site.arrive = spawn::time_ns();
    spawn::each(control, items, Nothing{});
    site.end = spawn::time_ns();
}

void decisions(spawn::Rule chosen, int warps, int items, int repeats) {
    Buffer<Site> all(warps * WARP);
    CHECK(cudaMemcpyToSymbol(sites, &all.at, sizeof all.at));
    for (int i = -1; i < repeats; ++i) {
        Control rule = {};
        rule.rule = chosen, rule.window_log2 = 16, rule.least = 32, rule.untried = 1024;
        rule.costs = {45000, 400};
        Buffer<Control> control(std::vector<Control>{rule});
        const double us = timed_us([&] { SPAWN_PARENT(decide, warps * WARP / THREADS, THREADS, control.at, items); });
        CHECK(cudaGetLastError());
        if (i < 0) continue;
        std::vector<Site> of_warps;
        int launched = 0;
        const auto of_threads = all.get();
        for (const Site& site : of_threads) launched += site.launched;
        for (std::size_t t = 0; t < of_threads.size(); t += WARP) of_warps.push_back(of_threads[t]);
        std::vector<u64> arrive, took;
        for (const Site& site : of_warps) arrive.push_back(site.arrive), took.push_back(site.decide - site.arrive);
        const u64 from = *std::min_element(arrive.begin(), arrive.end());
        std::printf("{\"decisions\": \"%s\", \"warps\": %d, \"items\": %d, \"us\": %.1f, \"launched\": %d",
                    chosen == spawn::BY_WARP ? "warp" : "spawn", warps, items, us, launched);
        print_quantiles("arrive", arrive, from), print_quantiles("took", took, 0);
        if (i < 2 && warps <= 2048) {
            std::printf(", \"sites\": [");
            for (std::size_t w = 0; w < of_warps.size(); ++w)
                std::printf("%s[%d, %d, %d, %d]", w > 0 ? ", " : "", of_warps[w].sm,
                            static_cast<int>(of_warps[w].arrive - from), static_cast<int>(of_warps[w].decide - from),
                            of_warps[w].launched);
            std::printf("]");
        }
        std::printf("}\n");
    }
    std::fflush(stdout);
}

// Warps read one word again and again, each read after the one before; with `add`, all lanes add to it in between.
__global__ void read_word(int* word, u64* took, int reads, bool add) {
    const u64 begin = spawn::time_ns();
    int at = 0;
    for (int i = 0; i < reads; ++i) {
        at = spawn::seen(word[at & 1]);
        if (add) atomicAdd(word + 1, 2);
    }
    if (threadIdx.x % WARP == 0) took[works::thread_number() / WARP] = spawn::time_ns() - begin + (at & 1);
}

void reads(int warps, bool add, int repeats) {
    constexpr int READS = 64;
    Buffer<int> word(32);
    Buffer<u64> took(warps);
    word.fill(0);
    for (int i = -1; i < repeats; ++i) {
        read_word<<<(warps * WARP + THREADS - 1) / THREADS, std::min(warps * WARP, THREADS)>>>(word.at, took.at, READS,
                                                                                               add);
        CHECK(cudaDeviceSynchronize());
        if (i < 0) continue;
        std::printf("{\"reads\": %d, \"warps\": %d, \"add\": %d", READS, warps, add);
        print_quantiles("took", took.get(), 0);
        std::printf("}\n");
    }
    std::fflush(stdout);
}
#endif

}  // namespace

#ifdef DECISIONS
__device__ void spawn_costs::note(int) {
    Site& site = sites[works::thread_number()];
    site.decide = spawn::time_ns(), site.launched = 1;
}
#endif

int main(int count, char** arguments) {
    const int repeats = count > 1 ? std::atoi(arguments[1]) : 5;
    CHECK(cudaDeviceSetLimit(cudaLimitDevRuntimePendingLaunchCount, MOST_PENDING));
    CHECK(cudaDeviceSetLimit(cudaLimitStackSize, STACK_BYTES));
#ifdef DECISIONS
    for (const auto& [rule, items] :
         {std::pair(spawn::SPAWN, 32), std::pair(spawn::SPAWN, 64), std::pair(spawn::BY_WARP, 64)})
        for (const int warps : {64, 128, 256, 512, 1024, 2048, 4096}) decisions(rule, warps, items, repeats);
    for (const bool add : {false, true})
        for (const int warps : {1, 8, 132, 528, 1056, 2112, 4224}) reads(warps, add, std::min(repeats, 3));
#else
    for (const int warps : {1, 8, 32, 128, 512, 2048}) launches(warps, 1, 0, repeats);
    for (const int warps : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048}) launches(warps, 32, 0, repeats);
    for (const int below : {1, 8, 32}) launches(8, 32, below, repeats), launches(32, 32, below, repeats);
#endif
}
