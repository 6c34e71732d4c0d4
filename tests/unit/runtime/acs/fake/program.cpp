// A random program. It finds the driver as the CUDA runtime does, launches kernels over views of buffers on several
// streams, copies, fills, records events, reads results and branches on them, frees and allocates, captures and replays
// graphs. It prints the checksum of all its memory, which must be that of stream order, in whatever order the launches
// ran.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

using GetProcAddress = int (*)(const char*, void**, int, uint64_t, int*);
GetProcAddress get_proc_address;

template <class F>
F found(const char* name) {
    void* function = nullptr;
    int status = 0;
    if (get_proc_address(name, &function, 13000, 0, &status) != 0 || function == nullptr)
        fprintf(stderr, "no %s\n", name), exit(3);
    return reinterpret_cast<F>(function);
}

#define CHECK(call)                                                                         \
    do {                                                                                    \
        if (int failed = (call)) fprintf(stderr, "%s: error %d\n", #call, failed), exit(4); \
    } while (0)

struct Config {
    unsigned grid[3], block[3], shared;
    void* stream;
    void* attributes;
    unsigned count;
};

struct Attribute {
    int id;
    char pad[4];
    char bytes[64];
};

int main(int argc, char** argv) {
    const uint64_t seed = strtoull(argv[1], nullptr, 10);
    const int steps = atoi(argv[2]);
    const std::string what =
        argc > 3 ? argv[3] : "all";  // or "plain": kernels alone; "loop": the same over and over; and others below
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return fprintf(stderr, "%s\n", dlerror()), 3;
    get_proc_address = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
    auto alloc = found<int (*)(uint64_t*, size_t)>("cuMemAlloc");
    auto release = found<int (*)(uint64_t)>("cuMemFree");
    auto to_device = found<int (*)(uint64_t, const void*, size_t)>("cuMemcpyHtoD");
    auto to_host = found<int (*)(void*, uint64_t, size_t)>("cuMemcpyDtoH");
    auto on_device = found<int (*)(uint64_t, uint64_t, size_t, void*)>("cuMemcpyDtoDAsync");
    auto fill = found<int (*)(uint64_t, unsigned char, size_t, void*)>("cuMemsetD8Async");
    auto fill_words = found<int (*)(uint64_t, unsigned, size_t, void*)>("cuMemsetD32Async");
    auto launch = found<int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                                void**, void**)>("cuLaunchKernel");
    auto launch_ex = found<int (*)(const Config*, void*, void**, void**)>("cuLaunchKernelEx");
    auto get_function = found<int (*)(void**, void*, const char*)>("cuModuleGetFunction");
    auto get_kernel = found<int (*)(void**, void*, const char*)>("cuLibraryGetKernel");
    auto set_attribute = found<int (*)(void*, int, int)>("cuFuncSetAttribute");
    auto stream_create = found<int (*)(void**, unsigned)>("cuStreamCreate");
    auto stream_wait = found<int (*)(void*, void*, unsigned)>("cuStreamWaitEvent");
    auto synchronize = found<int (*)(void*)>("cuStreamSynchronize");
    auto event_create = found<int (*)(void**, unsigned)>("cuEventCreate");
    auto event_record = found<int (*)(void*, void*)>("cuEventRecord");
    auto event_synchronize = found<int (*)(void*)>("cuEventSynchronize");
    auto begin_capture = found<int (*)(void*, int)>("cuStreamBeginCapture");
    auto end_capture = found<int (*)(void*, void**)>("cuStreamEndCapture");
    auto instantiate = found<int (*)(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags");
    auto graph_launch = found<int (*)(void*, void*)>("cuGraphLaunch");

    std::mt19937_64 random(seed);
    constexpr int kBuffers = 8;
    constexpr uint32_t kWords = 1024;
    uint64_t buffers[kBuffers];
    std::vector<uint32_t> host(kWords);
    for (uint64_t& buffer : buffers) {
        CHECK(alloc(&buffer, kWords * 4));
        for (uint32_t& word : host) word = static_cast<uint32_t>(random());
        CHECK(to_device(buffer, host.data(), kWords * 4));
    }
    void *functions[4], *streams[3] = {nullptr, nullptr, nullptr}, *event = nullptr;
    const char* names[] = {"combine", "scale", "copy", "gather"};
    for (int i = 0; i < 4; ++i)
        CHECK(i % 2 == 0 ? get_function(&functions[i], nullptr, names[i])
                         : get_kernel(&functions[i], nullptr, names[i]));
    CHECK(stream_create(&streams[1], 1));
    CHECK(stream_create(&streams[2], 0));
    CHECK(event_create(&event, 2));
    void* stream = streams[0];

    auto view = [&](uint32_t* words) {
        *words = 128u << random() % 4;
        return buffers[random() % kBuffers] + 512 * (random() % (8 - *words / 128 + 1));
    };
    unsigned launched = 0;
    auto kernel = [&] {
        uint32_t n = 128u << random() % 4, scalar = static_cast<uint32_t>(random() % 5), ignored = 0;
        auto place = [&] {
            uint64_t at = view(&ignored);
            uint64_t base = at;
            for (uint64_t buffer : buffers)
                if (at >= buffer && at < buffer + kWords * 4) base = buffer;
            return base + 512 * (random() % (8 - n / 128 + 1));
        };
        uint64_t out = place(), a = place(), b = place();
        int kind = static_cast<int>(random() % (what == "all" ? 13 : 12)) / 4;
        void* combine[] = {&out, &a, &b, &n, &scalar};
        void* scale[] = {&out, &n, &scalar};
        void* copy[] = {&out, &a, &n};
        void* gather[] = {&out, &a, &b, &n};
        void** parameters = kind == 0 ? combine : kind == 1 ? scale : kind == 2 ? copy : gather;
        const unsigned grid = n / 128;
        if (random() % 2 == 0) {
            CHECK(launch(functions[kind], grid, 1, 1, 128, 1, 1, 0, stream, parameters, nullptr));
        } else {
            Attribute attribute{8, {}, {}};  // a priority; the rest of its union keeps its earlier content
            memset(attribute.bytes + 4, static_cast<int>(++launched), sizeof attribute.bytes - 4);
            Config config{{grid, 1, 1}, {128, 1, 1}, 0, stream, &attribute, 1};
            CHECK(launch_ex(&config, functions[kind], parameters, nullptr));
        }
        out = a = b = n = 0xdead;  // parameters have been copied by then
    };
    auto other_stream = [&] {  // in order with the previous one, as programs do it
        void* next = streams[random() % 3];
        CHECK(event_record(event, stream));
        CHECK(stream_wait(next, event, 0));
        stream = next;
    };

    if (what == "loop" || what == "steps") {
        const std::mt19937_64 again = random;
        const bool waits = what == "loop";
        for (int round = 0; round < (waits ? 6 : 12); ++round) {
            random = again;
            if (round == 3 && waits) std::swap(buffers[0], buffers[1]);  // other addresses, the same program
            for (int step = 0; step < steps; ++step) kernel();
            if (waits) CHECK(synchronize(stream));
        }
    } else if (what == "still") {  // steps that leave the bytes that they found, but for the first one
        uint32_t n = 128, one = 1;
        for (int step = 0; step < steps; ++step) {
            uint64_t *a = &buffers[0], *b = &buffers[1], *c = &buffers[2], *d = &buffers[3];
            void *first[] = {b, a, &n}, *second[] = {c, b, &n}, *third[] = {d, &n, &one};
            CHECK(launch(functions[2], 1, 1, 1, 128, 1, 1, 0, stream, first, nullptr));
            CHECK(launch(functions[2], 1, 1, 1, 128, 1, 1, 0, stream, second, nullptr));
            CHECK(launch(functions[1], 1, 1, 1, 128, 1, 1, 0, stream, third, nullptr));
            if (step == 0) CHECK(synchronize(stream));
        }
    } else if (what == "threads") {  // three threads, each with a stream and buffers of its own
        auto work = [&](int number) {
            void* mine = nullptr;
            CHECK(stream_create(&mine, 1));
            uint64_t a = buffers[2 * number], b = buffers[2 * number + 1];
            uint32_t n = 128, factor = 3 + static_cast<uint32_t>(number);
            for (int step = 0; step < steps; ++step) {
                void *scale[] = {&a, &n, &factor}, *copy[] = {&b, &a, &n};
                CHECK(launch(functions[1], 1, 1, 1, 128, 1, 1, 0, mine, scale, nullptr));
                CHECK(launch(functions[2], 1, 1, 1, 128, 1, 1, 0, mine, copy, nullptr));
                if (step % 16 == number) CHECK(synchronize(mine));
                std::swap(a, b);
            }
            CHECK(synchronize(mine));
        };
        std::vector<std::thread> threads;
        for (int number = 0; number < 3; ++number) threads.emplace_back(work, number);
        for (std::thread& thread : threads) thread.join();
    } else if (what == "attributes") {  // that change what later launches do
        for (int step = 0; step < steps; ++step) {
            for (int i = 0; i < 4; ++i) kernel();
            CHECK(set_attribute(functions[step % 3], 8, step % 5 / 2));
        }
        CHECK(set_attribute(functions[0], 8, 0));
    } else if (what == "fork") {
        for (int step = 0; step < steps; ++step) kernel();
        for (int child = 0; child < 2; ++child) {
            const pid_t id = fork();
            if (id == 0) child == 0 ? exit(7) : _exit(8);
            int status = 0;
            if (waitpid(id, &status, 0) != id || WEXITSTATUS(status) != 7 + child) return 5;
            for (int step = 0; step < steps; ++step) kernel();
        }
    } else if (what == "leave") {  // without waiting for anything
        for (int step = 0; step < steps; ++step) kernel();
        printf("left\n");
        exit(6);
    } else if (what == "invalid") {  // a launch that no driver takes fails in its own call
        for (int step = 0; step < steps; ++step) {
            kernel();
            uint32_t n = 128, one = 1;
            void* scale[] = {&buffers[0], &n, &one};
            if (launch(functions[1], 1, 1, 1, 2048, 1, 1, 0, stream, scale, nullptr) != 1) return 5;
        }
    } else if (what == "idle") {  // milliseconds of CPU time while it sleeps for half a second
        for (int step = 0; step < steps; ++step) kernel();
        CHECK(synchronize(stream));
        const clock_t begin = clock();
        usleep(500000);
        fprintf(stderr, "%ld ms of CPU time\n", (clock() - begin) * 1000 / CLOCKS_PER_SEC);
        for (int step = 0; step < steps; ++step) kernel();
    } else if (what == "shared") {  // with another process: a record has been made when its call returns
        auto records = reinterpret_cast<int (*)()>(dlsym(library, "fakeRecords"));
        char handle[64];
        CHECK(found<int (*)(void*, void*)>("cuIpcGetEventHandle")(handle, event));
        for (int step = 0; step < steps; ++step) {
            for (int i = 0; i < 20; ++i) kernel();
            const int before = records();
            CHECK(event_record(event, stream));
            if (records() == before) return 5;
        }
    } else if (what == "pause" || what == "busy") {  // launches begin although nothing asks for their results
        const auto* first = reinterpret_cast<const volatile uint32_t*>(buffers[0]);  // memory is the host's here
        uint32_t n = 128, three = 3;
        void* scale[] = {&buffers[0], &n, &three};
        for (int step = 0; step < steps; ++step) {
            const uint32_t before = *first;
            std::atomic<bool> launched{false};
            std::thread other;  // that is, inside a call that does nothing, whenever the launch may begin
            if (what == "busy")
                other = std::thread([&] {
                    while (!launched) set_attribute(functions[1], 8, 0);
                    for (int i = 0; i < 5; ++i) set_attribute(functions[1], 8, 0);
                });
            CHECK(launch(functions[1], 1, 1, 1, 128, 1, 1, 0, stream, scale, nullptr));
            launched = true;
            if (what == "busy") other.join();
            for (int turn = 0; *first == before && turn < 60000; ++turn) usleep(1000);
            if (*first == before) return 5;
        }
    } else if (what == "time") {  // nanoseconds of this thread's per launch, the least of several rounds
        double least = 1e18;
        for (int round = 0; round < 20; ++round) {
            uint32_t n = 128, scalar = 3;
            const auto begin = std::chrono::steady_clock::now();
            for (int step = 0; step < steps; ++step) {
                uint64_t out = buffers[step % kBuffers], a = buffers[(step + 1) % kBuffers];
                void* parameters[] = {&out, &a, &a, &n, &scalar};
                CHECK(launch(functions[0], 1, 1, 1, 128, 1, 1, 0, stream, parameters, nullptr));
            }
            const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
            least = std::min(least, taken.count() / steps);
            CHECK(synchronize(stream));
        }
        fprintf(stderr, "%.0f ns per launch\n", least);
    } else {
        for (int step = 0; step < steps; ++step) {
            uint64_t choice = what == "all" ? random() % 40 : 0;
            uint32_t words = 0;
            if (choice < 30) {
                kernel();
            } else if (choice == 30) {
                uint64_t to = view(&words), from = view(&words);
                if (to + 512 <= from || from + 512 <= to) CHECK(on_device(to / 512 * 512, from, 512, stream));
            } else if (choice == 31) {
                CHECK(fill(view(&words), 7, 512, stream));
                CHECK(fill_words(view(&words), 9, 128, stream));
            } else if (choice == 32) {
                CHECK(synchronize(stream));
                CHECK(to_host(host.data(), view(&words), 4));
                random.discard(host[0] % 7);  // a branch on data
            } else if (choice == 33) {
                CHECK(event_record(event, stream));
                CHECK(event_synchronize(event));
            } else if (choice == 34 || choice == 35) {
                other_stream();
            } else if (choice == 36) {
                uint64_t& gone = buffers[random() % kBuffers];
                CHECK(synchronize(stream));
                CHECK(release(gone));
                CHECK(alloc(&gone, kWords * 4));
            } else if (stream == streams[1]) {
                void *graph = nullptr, *executable = nullptr;
                CHECK(begin_capture(stream, 0));
                for (int i = 0; i < 12; ++i) kernel();
                CHECK(end_capture(stream, &graph));
                CHECK(instantiate(&executable, graph, 0));
                for (int i = 0; i < 3; ++i) {
                    CHECK(graph_launch(executable, stream));
                    kernel();
                }
            }
        }
    }
    CHECK(synchronize(stream));
    uint64_t checksum = 1;
    for (uint64_t buffer : buffers) {
        CHECK(to_host(host.data(), buffer, kWords * 4));
        for (uint32_t word : host) checksum = checksum * 0x100000001b3ull + word;
    }
    printf("%016llx\n", static_cast<unsigned long long>(checksum));
    fflush(stdout);
    exit(0);
}
