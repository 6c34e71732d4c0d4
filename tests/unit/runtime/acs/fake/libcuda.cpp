// A driver for tests: the entry points that programs and the library under test use. Kernels are functions of this
// file, streams are threads, and delays before kernels are random. Memory is the host's.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Words = uint32_t*;
constexpr int kInvalid = 1, kNotFound = 500, kUnjoined = 904, kIsolation = 905, kNotReady = 600, kIllegalAddress = 700;

struct Kernel {
    const char* name;
    std::vector<std::pair<size_t, size_t>> layout;
    std::function<void(const char*)> run;
};

template <class T>
T at(const char* block, size_t offset) {
    T value;
    memcpy(&value, block + offset, sizeof value);
    return value;
}

// Nanoseconds of this thread's processor time.
void pass(long ns) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns);
    while (std::chrono::steady_clock::now() < until) {
    }
}

Kernel kernels[] = {
    {"combine",
     {{0, 8}, {8, 8}, {16, 8}, {24, 4}, {28, 4}},  // out, a, b, n, scalar
     [](const char* p) {
         auto out = at<Words>(p, 0), a = at<Words>(p, 8), b = at<Words>(p, 16);
         auto n = at<uint32_t>(p, 24), scalar = at<uint32_t>(p, 28);
         for (uint32_t i = 0; i < n; ++i) out[i] = out[i] * 3 + a[i] * 5 + b[(i * 7) % n] * 11 + scalar;
     }},
    {"scale",
     {{0, 8}, {8, 4}, {12, 4}},  // x, n, factor
     [](const char* p) {
         auto x = at<Words>(p, 0);
         auto n = at<uint32_t>(p, 8), factor = at<uint32_t>(p, 12);
         for (uint32_t i = 0; i < n; ++i) x[i] = x[i] * factor + 1;
     }},
    {"copy",
     {{0, 8}, {8, 8}, {16, 4}},  // out, in, n
     [](const char* p) { memmove(at<Words>(p, 0), at<Words>(p, 8), 4ull * at<uint32_t>(p, 16)); }},
    {"spin",
     {{0, 8}},
     [](const char* p) {
         if (const uint64_t ns = at<uint64_t>(p, 0)) usleep(static_cast<useconds_t>(ns / 1000));
     }},
    {"tileprof_sleep",  // the library's own
     {{0, 4}, {4, 4}},  // ns, salt
     [](const char* p) { pass(at<uint32_t>(p, 4) % (at<uint32_t>(p, 0) + 1)); }},
    {"gather",
     {{0, 8}, {8, 8}, {16, 8}, {24, 4}},  // out, in, index, n; no table has this kernel
     [](const char* p) {
         auto out = at<Words>(p, 0), in = at<Words>(p, 8), index = at<Words>(p, 16);
         auto n = at<uint32_t>(p, 24);
         for (uint32_t i = 0; i < n; ++i) out[i] += in[index[i] % n];
     }},
};

// protects everything below; never destroyed, like everything that threads wait for
std::mutex& lock = *new std::mutex;
std::condition_variable& changed = *new std::condition_variable;  // an operation has ended
std::mt19937_64 generator(getenv("FAKE_SEED") ? strtoull(getenv("FAKE_SEED"), nullptr, 10) : 1);
uint64_t delay_us() {
    static const uint64_t most = getenv("FAKE_DELAY") ? strtoull(getenv("FAKE_DELAY"), nullptr, 10) : 100;
    return most == 0 ? 0 : generator() % (most + 1);
}

struct Operation {
    std::function<void()> run;
    std::vector<std::shared_ptr<Operation>> after;
    uint64_t delay = 0;
    bool awaited = false, done = false;
};
using Pointer = std::shared_ptr<Operation>;

void wait_for(std::unique_lock<std::mutex>& held, const Pointer& operation) {
    if (!operation || operation->done) return;
    operation->awaited = true;
    changed.wait(held, [&] { return operation->done; });
}

struct Node {
    const Kernel* kernel;
    std::vector<char> parameters;
    std::vector<int> after;
};
struct Graph {
    std::vector<Node> nodes;
};
struct Executable {
    Graph graph;
};

struct Stream {
    // its own, since waking all streams for each launch takes most of the time of a program
    std::condition_variable more;
    std::deque<Pointer> queue;
    Pointer last;
    bool blocking = true;
    Graph* capture = nullptr;
    bool origin = false;
    std::vector<int> frontier;
};
struct Event {
    Pointer last;
    Graph* capture = nullptr;
    std::vector<int> frontier;
};

std::vector<Stream*>& streams() {
    static auto* all = new std::vector<Stream*>;
    return *all;
}

void work(Stream* stream) {
    std::unique_lock<std::mutex> held(lock);
    while (true) {
        stream->more.wait(held, [&] { return !stream->queue.empty(); });
        Pointer next = stream->queue.front();
        for (const Pointer& other : next->after) wait_for(held, other);
        held.unlock();
        if (next->delay != 0) usleep(static_cast<useconds_t>(next->delay));
        if (next->run) next->run();
        held.lock();
        next->done = true;
        next->after.clear();
        stream->queue.pop_front();
        if (next->awaited) changed.notify_all();
    }
}

Stream* made(bool blocking) {
    auto* stream = new Stream;
    stream->blocking = blocking;
    streams().push_back(stream);
    std::thread(work, stream).detach();
    return stream;
}

Stream* legacy() {
    static Stream* stream = made(true);
    return stream;
}
Stream* named(void* handle) {
    return reinterpret_cast<uintptr_t>(handle) <= 2 ? legacy() : static_cast<Stream*>(handle);
}

Pointer put(Stream* stream, std::function<void()> run, uint64_t delay = 0, std::vector<Pointer> after = {}) {
    auto operation = std::make_shared<Operation>();
    operation->run = std::move(run);
    operation->delay = delay;
    operation->after = std::move(after);
    // The legacy stream and the blocking ones wait for each other.
    if (stream == legacy()) {
        for (Stream* other : streams())
            if (other != stream && other->blocking && other->last && !other->last->done)
                operation->after.push_back(other->last);
    } else if (stream->blocking && legacy()->last && !legacy()->last->done) {
        operation->after.push_back(legacy()->last);
    }
    stream->last = operation;
    stream->queue.push_back(operation);
    stream->more.notify_one();
    return operation;
}

std::map<uint64_t, size_t>& memory() {
    static std::map<uint64_t, size_t> all;
    return all;
}

const Kernel* kernel_of(void* function) {
    return reinterpret_cast<const Kernel*>(reinterpret_cast<uintptr_t>(function) & ~uintptr_t{1});
}

// FAKE_ISSUE_NS: time that a launch costs its thread.
void take_time() {
    static const long ns = getenv("FAKE_ISSUE_NS") ? atol(getenv("FAKE_ISSUE_NS")) : 0;
    if (ns != 0) pass(ns);
}

// attribute 8, of all functions: the value that a launch adds to the first word that it writes
std::atomic<uint32_t> added{0};

// FAKE_FAIL_AT: the number of a launch, from 1. It and all later ones fail as after an illegal access.
int failure() {
    static const long fails = getenv("FAKE_FAIL_AT") ? atol(getenv("FAKE_FAIL_AT")) : 0;
    static std::atomic<long> launches{0};
    return fails != 0 && ++launches >= fails ? kIllegalAddress : 0;
}

int launch(void* function, void* handle, void** parameters, unsigned threads) {
    take_time();
    if (threads > 1024) return kInvalid;
    if (int failed = failure()) return failed;
    const Kernel* kernel = kernel_of(function);
    std::vector<char> block(64);
    for (size_t i = 0; i < kernel->layout.size(); ++i)
        memcpy(block.data() + kernel->layout[i].first, parameters[i], kernel->layout[i].second);
    std::lock_guard<std::mutex> held(lock);
    Stream* stream = named(handle);
    if (stream->capture != nullptr) {
        stream->capture->nodes.push_back({kernel, block, stream->frontier});
        stream->frontier = {static_cast<int>(stream->capture->nodes.size()) - 1};
        return 0;
    }
    put(
        stream,
        [kernel, block, more = added.load()] {
            kernel->run(block.data());
            // The first address that a kernel writes is its first parameter; the library's own kernel has no pointer
            // there.
            if (more != 0 && kernel->layout[0].second == 8) *at<Words>(block.data(), 0) += more;
        },
        delay_us());
    return 0;
}

int copy(void* to, const void* from, size_t bytes, void* handle, bool wait) {
    std::unique_lock<std::mutex> held(lock);
    Pointer done = put(named(handle), [=] { memmove(to, from, bytes); });
    if (wait) wait_for(held, done);
    return 0;
}

// Runs all nodes in a random order that the edges allow.
void run_graph(const Graph& graph, uint64_t seed) {
    std::mt19937_64 mine(seed);
    std::vector<size_t> missing, ready;
    std::vector<std::vector<size_t>> children(graph.nodes.size());
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
        missing.push_back(graph.nodes[i].after.size());
        for (int parent : graph.nodes[i].after) children[parent].push_back(i);
        if (missing[i] == 0) ready.push_back(i);
    }
    while (!ready.empty()) {
        std::swap(ready[mine() % ready.size()], ready.back());
        const size_t next = ready.back();
        ready.pop_back();
        graph.nodes[next].kernel->run(graph.nodes[next].parameters.data());
        for (size_t child : children[next])
            if (--missing[child] == 0) ready.push_back(child);
    }
}

struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    void* stream;
    void* attributes;
    unsigned count;
};
struct KernelNode {
    void* function;
    unsigned grid[3], block[3], shared;
    void** parameters;
    void** extra;
    void* kernel;
    void* context;
};

std::vector<char> block_of(const KernelNode& node) {
    const Kernel* kernel = kernel_of(node.function);
    std::vector<char> block(64);
    for (size_t i = 0; i < kernel->layout.size(); ++i)
        memcpy(block.data() + kernel->layout[i].first, node.parameters[i], kernel->layout[i].second);
    return block;
}

}  // namespace

EXPORT int cuInit(unsigned) { return 0; }
EXPORT int cuDeviceGet(int* device, int) { return *device = 0, 0; }
EXPORT int cuDeviceGetName(char* name, int, int) { return strcpy(name, "NVIDIA H200"), 0; }
EXPORT int cuDevicePrimaryCtxRetain(void** context, int) { return *context = reinterpret_cast<void*>(0x10), 0; }
EXPORT int cuCtxSetCurrent(void*) { return 0; }
EXPORT int cuModuleLoadData(void** module, const void*) { return *module = reinterpret_cast<void*>(0x20), 0; }
EXPORT int cuCtxGetCurrent(void** context) { return *context = reinterpret_cast<void*>(0x10), 0; }
EXPORT int cuCtxSynchronize() {
    std::unique_lock<std::mutex> held(lock);
    for (size_t i = 0; i < streams().size(); ++i) wait_for(held, streams()[i]->last);
    return 0;
}
EXPORT int cuStreamCreate(void** stream, unsigned flags) {
    std::lock_guard<std::mutex> held(lock);
    return *stream = made(flags == 0), 0;
}
EXPORT int cuStreamSynchronize(void* handle) {
    std::unique_lock<std::mutex> held(lock);
    wait_for(held, put(named(handle), nullptr));
    return 0;
}
// FAKE_QUERY: answers "idle" or "busy", whatever the stream does; "random" answers either.
EXPORT int cuStreamQuery(void* handle) {
    static std::minstd_rand random;
    const char* answer = getenv("FAKE_QUERY");
    std::lock_guard<std::mutex> held(lock);
    for (const Stream* other : streams())
        if (other->capture != nullptr) fprintf(stderr, "asked while a graph is captured\n"), abort();  // would end it
    const Stream* stream = named(handle);
    if (answer == nullptr) return !stream->last || stream->last->done ? 0 : kNotReady;
    return strcmp(answer, "idle") == 0 || (strcmp(answer, "random") == 0 && random() / 64 % 2 == 0) ? 0 : kNotReady;
}
EXPORT int cuStreamWaitEvent(void* handle, Event* event, unsigned) {
    std::lock_guard<std::mutex> held(lock);
    Stream* stream = named(handle);
    if (event->capture != nullptr) {
        if (stream->capture == nullptr)
            stream->capture = event->capture, stream->origin = false, stream->frontier.clear();
        if (stream->capture != event->capture) return kIsolation;
        std::set<int> all(stream->frontier.begin(), stream->frontier.end());
        all.insert(event->frontier.begin(), event->frontier.end());
        stream->frontier.assign(all.begin(), all.end());
        return 0;
    }
    if (stream->capture != nullptr) return event->last ? kIsolation : 0;
    if (event->last && !event->last->done) put(stream, nullptr, 0, {event->last});
    return 0;
}
EXPORT int cuStreamIsCapturing(void* handle, int* status) {
    std::lock_guard<std::mutex> held(lock);
    return *status = named(handle)->capture != nullptr, 0;
}
EXPORT int cuThreadExchangeStreamCaptureMode(int*) { return 0; }
EXPORT int cuEventCreate(Event** event, unsigned) { return *event = new Event, 0; }
std::atomic<int> records{0};
EXPORT int fakeRecords() { return records; }
EXPORT int cuIpcGetEventHandle(void*, Event*) { return 0; }
EXPORT int cuEventRecord(Event* event, void* handle) {
    ++records;
    std::lock_guard<std::mutex> held(lock);
    Stream* stream = named(handle);
    event->capture = stream->capture;
    event->frontier = stream->frontier;
    event->last = stream->capture != nullptr ? nullptr : put(stream, nullptr);
    return 0;
}
EXPORT int cuEventQuery(Event* event) {
    std::lock_guard<std::mutex> held(lock);
    return event->last && !event->last->done ? kNotReady : 0;
}
EXPORT int cuEventSynchronize(Event* event) {
    std::unique_lock<std::mutex> held(lock);
    wait_for(held, event->last);
    return 0;
}
EXPORT int cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned x, unsigned y, unsigned z, unsigned,
                          void* stream, void** parameters, void**) {
    return launch(function, stream, parameters, x * y * z);
}
EXPORT int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** parameters, void**) {
    return launch(function, config->stream, parameters, config->block[0] * config->block[1] * config->block[2]);
}
EXPORT int cuModuleGetFunction(void** function, void*, const char* name) {
    for (Kernel& kernel : kernels)
        if (strcmp(kernel.name, name) == 0) return *function = &kernel, 0;
    return kNotFound;
}
EXPORT int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
    int result = cuModuleGetFunction(kernel, library, name);
    if (result == 0)
        // another handle for the same event
        *kernel = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(*kernel) | 1);
    return result;
}
EXPORT int cuLibraryEnumerateKernels(void**, unsigned, void*) { return kInvalid; }
EXPORT int cuKernelGetFunction(void** function, void* kernel) {
    return *function = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(kernel) & ~uintptr_t{1}), 0;
}
EXPORT int cuFuncGetName(const char** name, void* function) {
    if ((reinterpret_cast<uintptr_t>(function) & 1) != 0) return kInvalid;  // a CUkernel is not a CUfunction
    return *name = kernel_of(function)->name, 0;
}
EXPORT int cuFuncGetParamInfo(void* function, size_t i, size_t* offset, size_t* size) {
    const Kernel* kernel = kernel_of(function);
    if (i >= kernel->layout.size()) return kInvalid;
    *offset = kernel->layout[i].first;
    *size = kernel->layout[i].second;
    return 0;
}
// FAKE_SET_US: time that the call takes.
EXPORT int cuFuncSetAttribute(void*, int attribute, int value) {
    static const long us = getenv("FAKE_SET_US") ? atol(getenv("FAKE_SET_US")) : 0;
    if (us != 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
    if (attribute == 8) added = static_cast<uint32_t>(value);
    return 0;
}
EXPORT int cuKernelSetAttribute(int attribute, int value, void*, int) {
    return cuFuncSetAttribute(nullptr, attribute, value);
}
EXPORT int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    std::lock_guard<std::mutex> held(lock);
    *address = reinterpret_cast<uint64_t>(aligned_alloc(512, (bytes + 511) / 512 * 512));
    memset(reinterpret_cast<void*>(*address), 0, bytes);
    memory()[*address] = bytes;
    return 0;
}
EXPORT int cuMemFree_v2(uint64_t address) {
    cuCtxSynchronize();
    std::lock_guard<std::mutex> held(lock);
    memory().erase(address);
    free(reinterpret_cast<void*>(address));
    return 0;
}
EXPORT int cuMemGetAddressRange_v2(uint64_t* base, size_t* bytes, uint64_t address) {
    std::lock_guard<std::mutex> held(lock);
    auto next = memory().upper_bound(address);
    if (next == memory().begin()) return kInvalid;
    --next;
    if (address >= next->first + next->second) return kInvalid;
    *base = next->first;
    *bytes = next->second;
    return 0;
}
EXPORT int cuPointerGetAttribute(void* value, int attribute, uint64_t) {
    if (attribute != 2) return kInvalid;
    return *static_cast<unsigned*>(value) = 2, 0;  // device memory
}
EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
    return copy(reinterpret_cast<void*>(to), from, bytes, nullptr, true);
}
EXPORT int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
    return copy(to, reinterpret_cast<void*>(from), bytes, nullptr, true);
}
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
    return copy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes, stream, false);
}
EXPORT int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
    return copy(to, reinterpret_cast<void*>(from), bytes, stream, true);
}
EXPORT int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void* handle) {
    std::lock_guard<std::mutex> held(lock);
    put(named(handle), [=] { memset(reinterpret_cast<void*>(to), value, bytes); });
    return 0;
}
EXPORT int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void* handle) {
    std::lock_guard<std::mutex> held(lock);
    put(named(handle), [=] { std::fill_n(reinterpret_cast<uint32_t*>(to), count, value); });
    return 0;
}
EXPORT int cuMemsetD16Async(uint64_t to, unsigned short value, size_t count, void* handle) {
    std::lock_guard<std::mutex> held(lock);
    put(named(handle), [=] { std::fill_n(reinterpret_cast<uint16_t*>(to), count, value); });
    return 0;
}
EXPORT int cuStreamBeginCapture_v2(void* handle, int) {
    std::lock_guard<std::mutex> held(lock);
    Stream* stream = named(handle);
    stream->capture = new Graph;
    stream->origin = true;
    stream->frontier.clear();
    return 0;
}
EXPORT int cuStreamEndCapture(void* handle, Graph** graph) {
    std::lock_guard<std::mutex> held(lock);
    Stream* stream = named(handle);
    Graph* captured = stream->capture;
    if (captured == nullptr || !stream->origin) return kInvalid;
    std::vector<bool> joined(captured->nodes.size());
    for (int node : stream->frontier) joined[node] = true;
    for (int node = static_cast<int>(joined.size()) - 1; node >= 0; --node)
        if (joined[node])
            for (int parent : captured->nodes[node].after) joined[parent] = true;
    int result = 0;
    for (Stream* other : streams())
        if (other->capture == captured) {
            for (int node : other->frontier)
                if (!joined[node]) result = kUnjoined;
            other->capture = nullptr;
            other->frontier.clear();
        }
    return *graph = captured, result;
}
EXPORT int cuGraphCreate(Graph** graph, unsigned) { return *graph = new Graph, 0; }
EXPORT int cuGraphAddKernelNode_v2(void** node, Graph* graph, void* const* parents, size_t count,
                                   const KernelNode* made) {
    std::vector<int> after;
    for (size_t i = 0; i < count; ++i) after.push_back(static_cast<int>(reinterpret_cast<uintptr_t>(parents[i])) - 1);
    graph->nodes.push_back({kernel_of(made->function), block_of(*made), after});
    return *node = reinterpret_cast<void*>(graph->nodes.size()), 0;
}
EXPORT int cuGraphKernelNodeSetAttribute(void*, int, const void*) { return 0; }
EXPORT int cuGraphInstantiateWithFlags(Executable** executable, Graph* graph, unsigned long long) {
    return *executable = new Executable{*graph}, 0;
}
EXPORT int cuGraphExecKernelNodeSetParams_v2(Executable* executable, void* node, const KernelNode* made) {
    std::lock_guard<std::mutex> held(lock);
    executable->graph.nodes[reinterpret_cast<uintptr_t>(node) - 1].parameters = block_of(*made);
    return 0;
}
EXPORT int cuGraphLaunch(Executable* executable, void* handle) {
    std::lock_guard<std::mutex> held(lock);
    const uint64_t seed = generator();
    put(named(handle), [graph = executable->graph, seed] { run_graph(graph, seed); }, delay_us());
    return 0;
}
EXPORT int cuGraphDestroy(Graph* graph) { return delete graph, 0; }
EXPORT int cuGraphExecDestroy(Executable* executable) { return delete executable, 0; }

#include <dlfcn.h>
EXPORT int cuGetProcAddress_v2(const char* symbol, void** function, int, uint64_t, int* status) {
    static void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    const std::string name = symbol;
    *function = nullptr;
    for (const char* suffix : {"_v2", ""})
        if (*function == nullptr) *function = dlsym(self, (name + suffix).c_str());
    if (status != nullptr) *status = 0;
    return *function == nullptr ? kNotFound : 0;
}
EXPORT int cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}
