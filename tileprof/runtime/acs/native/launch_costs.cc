// Measures the costs of launches on this machine's first GPU and prints them as JSON. It is a separate program, not
// part of the library.
//
// Kernels have one block and spin for a given time. All times are in nanoseconds per launch, the median of some runs.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace {

using Handle = void*;

struct KernelNode {
    Handle function;
    unsigned grid[3], block[3], shared_bytes;
    void** parameters;
    void** extra;
    Handle kernel, context;
};

constexpr int kStreams = 32, kLaunches = 512, kRounds = 9, kNodes = 2048, kThreads = 8;
constexpr int kAwaited = 64;  // number of kernels for which a thread waits, one after another
constexpr uint64_t kKernelNs = 10000;  // duration of these kernels

constexpr char kSpin[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u64 ns) {\n"
    "  .reg .u64 %a<4>; .reg .pred %p;\n"
    "  ld.param.u64 %a1, [ns];\n"
    "  mov.u64 %a2, %globaltimer;\n"
    "again:\n"
    "  mov.u64 %a3, %globaltimer;\n"
    "  sub.u64 %a3, %a3, %a2;\n"
    "  setp.lt.u64 %p, %a3, %a1;\n"
    "  @%p bra again;\n"
    "  ret;\n}\n";

Handle library;

template <class F>
F symbol(const char* name) {
    void* found = dlsym(library, name);
    if (found == nullptr) fprintf(stderr, "libcuda.so.1 has no symbol %s\n", name), exit(1);
    return reinterpret_cast<F>(found);
}

void check(int result, const char* what) {
    if (result != 0) fprintf(stderr, "%s: error %d of the driver\n", what, result), exit(1);
}
#define CHECK(call) check(call, #call)

double now_ns() {
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(const std::function<double()>& run) {
    run();
    std::vector<double> found;
    for (int i = 0; i < kRounds; ++i) found.push_back(run());
    std::nth_element(found.begin(), found.begin() + kRounds / 2, found.end());
    return found[kRounds / 2];
}

}  // namespace

int main() {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return fprintf(stderr, "%s\n", dlerror()), 1;
    auto launch = symbol<int (*)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle,
                                 void**, void**)>("cuLaunchKernel");
    auto synchronize = symbol<int (*)()>("cuCtxSynchronize");
    auto wait_for = symbol<int (*)(Handle)>("cuStreamSynchronize");
    auto set_current = symbol<int (*)(Handle)>("cuCtxSetCurrent");
    auto event_record = symbol<int (*)(Handle, Handle)>("cuEventRecord");
    auto stream_wait = symbol<int (*)(Handle, Handle, unsigned)>("cuStreamWaitEvent");
    int device = 0;
    char name[256] = "";
    Handle context = nullptr, module = nullptr, spin = nullptr;
    CHECK(symbol<int (*)(unsigned)>("cuInit")(0));
    CHECK(symbol<int (*)(int*, int)>("cuDeviceGet")(&device, 0));
    CHECK(symbol<int (*)(char*, int, int)>("cuDeviceGetName")(name, sizeof name, device));
    CHECK(symbol<int (*)(Handle*, int)>("cuDevicePrimaryCtxRetain")(&context, device));
    CHECK(set_current(context));
    CHECK(symbol<int (*)(Handle*, const void*)>("cuModuleLoadData")(&module, kSpin));
    CHECK(symbol<int (*)(Handle*, Handle, const char*)>("cuModuleGetFunction")(&spin, module, "spin"));
    Handle streams[kStreams], event = nullptr;
    for (Handle& stream : streams) CHECK(symbol<int (*)(Handle*, unsigned)>("cuStreamCreate")(&stream, 1));
    CHECK(symbol<int (*)(Handle*, unsigned)>("cuEventCreate")(&event, 2));

    auto one = [&](Handle stream, uint64_t ns) {
        void* parameters[] = {&ns};
        CHECK(launch(spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr));
    };
    // Host time of launches that take the streams in turn, while the GPU keeps up.
    const double alone = median([&] {
        CHECK(synchronize());
        double begin = now_ns();
        for (int i = 0; i < kLaunches; ++i) one(streams[i % kStreams], 0);
        double host = now_ns() - begin;
        CHECK(synchronize());
        return host / kLaunches;
    });
    const double in_one_stream = median([&] {
        CHECK(synchronize());
        double begin = now_ns();
        for (int i = 0; i < kLaunches; ++i) one(streams[0], 0);
        double host = now_ns() - begin;
        CHECK(synchronize());
        return host / kLaunches;
    });
    // Runs `work(t)` on this many threads at the same time; returns the nanoseconds until all have finished.
    auto at_once = [&](int count, const std::function<void(int)>& work) {
        CHECK(synchronize());
        std::atomic<int> ready{0};
        std::atomic<bool> go{false};
        std::vector<std::thread> threads;
        for (int t = 0; t < count; ++t)
            threads.emplace_back([&, t] {
                CHECK(set_current(context));
                ++ready;
                while (!go) std::this_thread::yield();
                work(t);
            });
        while (ready < count) std::this_thread::yield();  // with few cores, the last thread must also start
        double begin = now_ns();
        go = true;
        for (std::thread& thread : threads) thread.join();
        double host = now_ns() - begin;
        CHECK(synchronize());
        return host;
    };
    const double together = median([&] {
        auto work = [&](int t) {
            for (int i = 0; i < kLaunches; ++i) one(streams[t * (kStreams / kThreads) + i % (kStreams / kThreads)], 0);
        };
        return at_once(kThreads, work) / (kThreads * kLaunches);
    });
    // Beyond the kernel's own time, for a thread that launches a kernel and waits for its end.
    auto launch_and_wait = [&](int threads) {
        return median([&] {
            auto work = [&](int t) {
                for (int i = 0; i < kAwaited; ++i) {
                    one(streams[t], kKernelNs);
                    CHECK(wait_for(streams[t]));
                }
            };
            return at_once(threads, work) / kAwaited - static_cast<double>(kKernelNs);
        });
    };
    const double awaited = launch_and_wait(1), awaited_together = launch_and_wait(kThreads);
    const double record = median([&] {
        CHECK(synchronize());
        double begin = now_ns();
        for (int i = 0; i < kLaunches; ++i) CHECK(event_record(event, streams[i % kStreams]));
        double host = now_ns() - begin;
        CHECK(synchronize());
        return host / kLaunches;
    });
    const double wait = median([&] {
        CHECK(synchronize());
        one(streams[0], 4000000);  // the awaited event has not happened yet
        CHECK(event_record(event, streams[0]));
        double begin = now_ns();
        for (int i = 0; i < kLaunches; ++i) CHECK(stream_wait(streams[1 + i % (kStreams - 1)], event, 0));
        double host = now_ns() - begin;
        CHECK(synchronize());
        return host / kLaunches;
    });
    // The GPU's time for the independent kernels of a graph of as many branches as there are streams.
    Handle graph = nullptr, executable = nullptr;
    CHECK(symbol<int (*)(Handle*, unsigned)>("cuGraphCreate")(&graph, 0));
    std::vector<Handle> nodes(kNodes);
    uint64_t ns = 0;
    void* parameters[] = {&ns};
    for (int i = 0; i < kNodes; ++i) {
        KernelNode node{spin, {1, 1, 1}, {32, 1, 1}, 0, parameters, nullptr, nullptr, nullptr};
        CHECK(symbol<int (*)(Handle*, Handle, const Handle*, size_t, const KernelNode*)>("cuGraphAddKernelNode_v2")(
            &nodes[i], graph, i < kStreams ? nullptr : &nodes[i - kStreams], i < kStreams ? 0 : 1, &node));
    }
    CHECK(symbol<int (*)(Handle*, Handle, unsigned long long)>("cuGraphInstantiateWithFlags")(&executable, graph, 0));
    auto graph_launch = symbol<int (*)(Handle, Handle)>("cuGraphLaunch");
    const double in_graph = median([&] {
        CHECK(synchronize());
        double begin = now_ns();
        CHECK(graph_launch(executable, streams[0]));
        CHECK(synchronize());
        return (now_ns() - begin) / kNodes;
    });
    printf(
        "{\"name\": \"%s\", \"host_issue_ns\": %.1f, \"host_issue_one_stream_ns\": %.1f, "
        "\"host_issue_shared_ns\": %.1f, "
        "\"launch_and_wait_ns\": %.1f, \"launch_and_wait_shared_ns\": %.1f, "
        "\"event_record_ns\": %.1f, "
        "\"event_wait_ns\": %.1f, \"graph_issue_ns\": %.1f}\n",
        name, alone, in_one_stream, together, awaited, awaited_together, record, wait, in_graph);
    return 0;
}
