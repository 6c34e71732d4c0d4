// Measures rounds of few launches one after another, as SPAWN's programs have them, and items of a quick sort by where
// its counters lie in the L2. The simulation of spawning is compared with these.
//
//     nvcc -O3 -std=c++17 -arch=sm_90 -rdc=true -I SPAWN spawn_rounds.cu -lcudadevrt -o spawn_rounds
//     spawn_rounds REPEATS
//
// A round: the host fills memory, launches a kernel and reads what it wrote. Of `all_warps` warps the first `warps`
// launch a child of one block in each of their first `lanes` threads, warp w after w * `apart_us`, and then go on for
// `hold_us`; a child takes `child_us`. Prints a line of JSON for each kind of round: quantiles of microseconds (least,
// 10, 25, 50, 75, 90%, greatest) of the round, from the first warp's begin to the last one's end and to the last
// child's, and from the later of these to the next round's first warp. Then a line for each sort: nanoseconds of an
// item of `threads` threads of one warp on the SM of a block, with counters in front of an array or at its end.
#include <chrono>

#include "programs.cuh"

namespace {

constexpr int THREADS = 256, WARP = 32, NOT_COUNTED = 8;

struct Times {
    u64 arrive, leave, child;
};

struct Busy {
    u64 ns;
    u64* last;
    __device__ void operator()(int) const {
        const u64 begin = spawn::time_ns();
        while (spawn::time_ns() - begin < ns) {
        }
        atomicMax(last, spawn::time_ns());
    }
};

struct Kind {
    int all_warps, warps, lanes;
    double apart_us = 0, hold_us = 0, child_us = 0;
};

__global__ void parent(Control* control, Times* times, int warps, int lanes, u64 apart_ns, u64 hold_ns, u64 child_ns) {
    const int warp = works::thread_number() / WARP, lane = threadIdx.x % WARP;
    const u64 begin = spawn::time_ns();
    if (lane == 0) atomicMin(&times->arrive, begin);
    if (warp < warps) {
        while (spawn::time_ns() - begin < apart_ns * warp) {
        }
        if (lane < lanes) spawn::each(control, 1, Busy{child_ns, &times->child});
        __syncwarp();
        const u64 launched = spawn::time_ns();
        while (hold_ns > 0 && spawn::time_ns() - launched < hold_ns) {
        }
    }
    if (lane == 0) atomicMax(&times->leave, spawn::time_ns());
}

double now_us() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::micro>(now).count();
}

void print_quantiles(const char* key, std::vector<double> all) {
    std::sort(all.begin(), all.end());
    std::printf(", \"%s\": [", key);
    for (const double share : {0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0})
        std::printf(share > 0 ? ", %.1f" : "%.1f", all[static_cast<std::size_t>(share * (all.size() - 1))]);
    std::printf("]");
}

u64 nanoseconds(double us) { return static_cast<u64>(1e3 * us); }

void rounds(const Kind& kind, int repeats) {
    Control rule = {};
    rule.rule = spawn::ALWAYS, rule.window_log2 = 16;
    Buffer<Control> control(std::vector<Control>{rule});
    Buffer<int> size(1);
    Buffer<Times> times(std::vector<Times>(repeats + NOT_COUNTED, Times{~u64(0), 0, 0}));
    std::vector<double> us, leave, child, next;
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < repeats + NOT_COUNTED; ++i) {
        const double begin = now_us();
        size.fill(0);
        SPAWN_PARENT(parent, (kind.all_warps * WARP + THREADS - 1) / THREADS, std::min(kind.all_warps * WARP, THREADS),
                     control.at, times.at + i, kind.warps, kind.lanes, nanoseconds(kind.apart_us),
                     nanoseconds(kind.hold_us), nanoseconds(kind.child_us));
        size.get();
        if (i >= NOT_COUNTED) us.push_back(now_us() - begin);
    }
    CHECK(cudaGetLastError());
    const auto all = times.get();
    for (int i = NOT_COUNTED; i + 1 < repeats + NOT_COUNTED; ++i) {
        const Times& one = all[i];
        leave.push_back(1e-3 * static_cast<double>(one.leave - one.arrive));
        child.push_back(one.child ? 1e-3 * static_cast<double>(one.child - one.arrive) : 0);
        next.push_back(1e-3 * static_cast<double>(all[i + 1].arrive - std::max(one.leave, one.child)));
    }
    std::printf("{\"all_warps\": %d, \"warps\": %d, \"lanes\": %d, \"apart_us\": %g, \"hold_us\": %g, \"child_us\": %g",
                kind.all_warps, kind.warps, kind.lanes, kind.apart_us, kind.hold_us, kind.child_us);
    print_quantiles("us", us), print_quantiles("leave_us", leave), print_quantiles("child_end_us", child);
    print_quantiles("next_us", next);
    std::printf("}\n");
    std::fflush(stdout);
}

__global__ void sort_items(const int* from, int* to, int* low, int* high, int keys, int block, int threads, u64* took) {
    const int t = threadIdx.x, each = keys / threads;
    if (static_cast<int>(blockIdx.x) != block || t >= threads) return;
    const works::Partition item{from + t * each, to, low + t, high + t, t * each, (t + 1) * each, 1 << 19};
    const u64 begin = spawn::time_ns();
    for (int i = 0; i < each; ++i) item(i);
    took[t] = spawn::time_ns() - begin;
}

void sorts(int keys) {
    constexpr int REPEATS = 2, SMS = 132;
    const int used = std::min(keys, 1 << 16);
    inputs::Dice dice(5);
    std::vector<int> values(keys);
    for (int& key : values) key = dice.below(1 << 20);
    Buffer<int> here(values), there(keys), low(keys), high(keys);
    Buffer<u64> took(WARP);
    for (const int threads : {1, 2, 4, WARP})
        for (const int block : {0, 1, 2, 11, 40, 77})
            for (const int at : {0, keys - 64}) {
                if (threads > 1 && block > 2) continue;
                double best = 1e30;
                for (int repeat = 0; repeat < REPEATS; ++repeat) {
                    low.fill(0), high.fill(0);
                    sort_items<<<SMS, WARP>>>(here.at, there.at, low.at + at, high.at + at, used, block, threads,
                                              took.at);
                    CHECK(cudaDeviceSynchronize());
                    const auto ns = took.get();
                    best = std::min(best, static_cast<double>(*std::max_element(ns.begin(), ns.begin() + threads)));
                }
                std::printf("{\"keys\": %d, \"threads\": %d, \"block\": %d, \"counters_at\": %d, \"item_ns\": %.1f}\n",
                            keys, threads, block, at, best / (used / threads));
            }
    std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
    const int repeats = count > 1 ? std::atoi(arguments[1]) : 40;
    CHECK(cudaDeviceSetLimit(cudaLimitDevRuntimePendingLaunchCount, MOST_PENDING));
    CHECK(cudaDeviceSetLimit(cudaLimitStackSize, STACK_BYTES));
    for (const int warps : {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512})
        rounds({std::max(warps, 1), warps, 1}, repeats);
    for (const int lanes : {2, 4, 8, 16, 32}) rounds({1, 1, lanes}, repeats);
    for (const int warps : {2, 4, 8, 16, 32}) rounds({warps, warps, 32}, repeats);
    for (const int warps : {0, 1, 8, 32, 128}) rounds({2048, warps, 1}, repeats);
    for (const int warps : {1, 8, 32, 128})
        for (const double us : {20., 50., 100., 200., 400.}) rounds({warps, warps, 1, 0, us}, repeats);
    for (const double us : {50., 100., 200., 400.}) rounds({4, 4, 32, 0, us}, repeats);
    for (const int warps : {32, 128})
        for (const double us : {0.5, 1., 2., 4., 8., 16.}) rounds({warps, warps, 1, us}, repeats);
    for (const int warps : {1, 8, 32, 128})
        for (const double us : {5., 20., 50., 100., 200.}) rounds({warps, warps, 1, 0, 0, us}, repeats);
    for (const int log2 : {12, 14, 15, 16, 17, 18, 20}) sorts(1 << log2);
}
