// Ways by which a CPU thread sends words to a running GPU block, and the time of a question and its answer.
//
//     nvcc -O2 -std=c++17 -arch=sm_90 link_ways.cu -o link_ways && ./link_ways
//
// Questions go the same way everywhere: a block releases a word into a ring in the CPU's memory. Answers are
//
//     host    a word for each block in page-locked memory of the CPU, which the block reads over the link
//     relay   the same; one block of the GPU reads all of them, and stores what is new into memory of the GPU
//     copy    words in memory of the GPU, to which a copy engine brings all of them after each batch of questions
//     write   words in memory of the GPU, each written by a stream (cuStreamWriteValue64)
//     batch   the same, all answers of a batch in one call (cuStreamBatchMemOp)
//     mapped  words in memory of the GPU that the CPU writes itself, where the driver maps them (as a dma-buf)
#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "link.cuh"

constexpr int ROUNDS = 1000, WARM = 100, MOST = 128, RING = 4096;
constexpr u64 SECONDS_MOST = 2;
constexpr size_t TABLE = 2 << 20;  // a table of answers: of a page of the GPU, so that it can be exported

__device__ void store_here(u64* to, u64 value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

// Each block sends its round, and waits for the answer. Returns cycles of all rounds and blocks; 0 if no answer came in
// time.
__device__ void ask(u64* ring, const u64* answers, unsigned* place, u64* times) {
    const int block = blockIdx.x;
    for (int round = 0; round < ROUNDS; ++round) {
        const u64 begin = clock64();
        const unsigned at = atomicAdd(place, 1u);
        store(ring + at % RING, u64(at + 1) << 32 | u64(block));
        const u64 start = now_ns();
        while (load(answers + block) != u64(round + 1))
            if (now_ns() - start > LIMIT_NS) return;
        times[u64(block) * ROUNDS + round] = clock64() - begin;
    }
}

// The last block copies answers from the CPU's memory to the GPU's, one thread per answer, until all others have ended.
__global__ void run(u64* ring, const u64* answers, u64* relayed, unsigned* place, unsigned* ended, int blocks,
                    u64* times) {
    if (int(blockIdx.x) < blocks) {
        if (threadIdx.x != 0) return;
        ask(ring, relayed ? relayed : answers, place, times);
        __threadfence();
        atomicAdd(ended, 1u);
        return;
    }
    if (int(threadIdx.x) >= blocks) return;
    u64 last = 0;
    const u64 start = now_ns();
    while (atomicAdd(ended, 0u) < unsigned(blocks) && now_ns() - start < SECONDS_MOST * 1'000'000'000) {
        const u64 seen = load(answers + threadIdx.x);
        if (seen != last) store_here(relayed + threadIdx.x, last = seen);
    }
}

enum Way { HOST, RELAY, COPY, WRITE, BATCH, MAPPED };
const char* const NAMES[] = {"host", "relay", "copy", "write", "batch", "mapped"};

template <class F>
F driver(const char* name) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result));
    return result == cudaDriverEntryPointSuccess ? reinterpret_cast<F>(function) : nullptr;
}

using WriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
using BatchMemOp = CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);
using RangeHandle = CUresult (*)(void*, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long);

// Returns the table as the CPU may write it, or null; prints which call refuses.
u64* mapped_by_cpu(u64* table) {
    const auto handle_of = driver<RangeHandle>("cuMemGetHandleForAddressRange");
    for (const unsigned flags : {0u, 1u}) {  // 1: through the PCIe bar, also where the link is coherent
        int file = -1;
        const CUresult result = handle_of ? handle_of(&file, reinterpret_cast<CUdeviceptr>(table), TABLE,
                                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, flags)
                                          : CUDA_ERROR_NOT_FOUND;
        std::printf("mapped: dma-buf with flags %u: result %d\n", flags, int(result));
        if (result != CUDA_SUCCESS) continue;
        void* const memory = mmap(nullptr, TABLE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        std::printf("mapped: mmap: %s\n", memory == MAP_FAILED ? std::strerror(errno) : "done");
        if (memory != MAP_FAILED) return static_cast<u64*>(memory);
        close(file);
    }
    return nullptr;
}

int main() {
    u64 *ring, *host, *table, *times;
    unsigned *place, *ended;
    cudaStream_t kernels, words;
    int least, most, khz;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &most));
    CHECK(cudaStreamCreateWithFlags(&kernels, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithPriority(&words, cudaStreamNonBlocking, most));
    CHECK(cudaHostAlloc(&ring, RING * 8, cudaHostAllocDefault));
    CHECK(cudaHostAlloc(&host, MOST * 8, cudaHostAllocDefault));
    CHECK(cudaMalloc(&table, TABLE));
    CHECK(cudaMalloc(&times, MOST * ROUNDS * 8));
    CHECK(cudaMalloc(&place, 4));
    CHECK(cudaMalloc(&ended, 4));
    CHECK(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
    const auto write_value = driver<WriteValue>("cuStreamWriteValue64");
    const auto batch_of = driver<BatchMemOp>("cuStreamBatchMemOp");
    u64* const mapped = mapped_by_cpu(table);
    std::printf(
        "way, blocks: round trip p10, median, p90 in ns; answers in millions per second; answers per batch; "
        "a call's time in ns; rounds answered\n");
    for (const Way way : {HOST, RELAY, COPY, WRITE, BATCH, MAPPED})
        for (const int blocks : {1, 8, 32, 128}) {
            if (way == MAPPED && !mapped) continue;
            if ((way == WRITE && !write_value) || (way == BATCH && !batch_of)) continue;
            std::memset(ring, 0, RING * 8);
            std::memset(host, 0, MOST * 8);
            CHECK(cudaMemset(table, 0, TABLE));
            CHECK(cudaMemset(times, 0, MOST * ROUNDS * 8));
            CHECK(cudaMemset(place, 0, 4));
            CHECK(cudaMemset(ended, 0, 4));
            CHECK(cudaDeviceSynchronize());
            std::atomic<bool> leaving{false};
            u64 decisions = 0, batches = 0, calls = 0, calling_ns = 0;
            bool failed = false;
            std::thread pilot([&] {
                cudaSetDevice(0);
                std::vector<u64> rounds(MOST);
                std::vector<CUstreamBatchMemOpParams> operations;
                const CUdeviceptr to = reinterpret_cast<CUdeviceptr>(table);
                unsigned heard = 0;
                const auto hear = [&] {  // the next question's block, or -1
                    const u64 seen = __atomic_load_n(ring + heard % RING, __ATOMIC_ACQUIRE);
                    if (unsigned(seen >> 32) != heard + 1) return -1;
                    ++heard, ++decisions;
                    return int(unsigned(seen)) % MOST;
                };
                while (!leaving.load(std::memory_order_relaxed) && !failed) {
                    int block = hear(), in_batch = 0;
                    if (block < 0) continue;
                    const auto begin = std::chrono::steady_clock::now();
                    operations.clear();
                    for (; block >= 0 && in_batch < 256; block = hear(), ++in_batch) {
                        const u64 round = ++rounds[block];
                        if (way == MAPPED) __atomic_store_n(mapped + block, round, __ATOMIC_RELEASE);
                        if (way == HOST || way == RELAY || way == COPY)
                            __atomic_store_n(host + block, round, __ATOMIC_RELEASE);
                        if (way == WRITE) failed |= write_value(words, to + 8 * block, round, 0) != CUDA_SUCCESS;
                        if (way == BATCH) {
                            CUstreamBatchMemOpParams one{};
                            one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
                            one.writeValue.address = to + 8 * block;
                            one.writeValue.value64 = round;
                            operations.push_back(one);
                        }
                    }
                    // the copy of an earlier batch may read new words of this one, which are correct too
                    if (way == COPY)
                        failed |=
                            cudaMemcpyAsync(table, host, blocks * 8, cudaMemcpyHostToDevice, words) != cudaSuccess;
                    if (way == BATCH)
                        failed |= batch_of(words, operations.size(), operations.data(), 0) != CUDA_SUCCESS;
                    if (way == MAPPED) __builtin_ia32_sfence();  // memory that is written through a buffer
                    ++batches;
                    calls += way == WRITE ? in_batch : 1;
                    calling_ns +=
                        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin)
                            .count();
                }
            });
            u64* const relayed = way == RELAY ? table : nullptr;
            const u64* const answers = way == HOST || way == RELAY ? host : table;
            const auto begin = std::chrono::steady_clock::now();
            run<<<blocks + (way == RELAY), MOST, 0, kernels>>>(ring, answers, relayed, place, ended, blocks, times);
            CHECK(cudaStreamSynchronize(kernels));
            const u64 busy_ns =
                std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count();
            leaving = true;
            pilot.join();
            CHECK(cudaStreamSynchronize(words));
            const std::vector<u64> used = sorted_rounds(times, blocks, ROUNDS, WARM);
            if (used.empty() || failed) {
                std::printf("%s, %d: %s\n", NAMES[way], blocks, failed ? "a call failed" : "no answer");
                std::fflush(stdout);
                continue;
            }
            const auto quantile = [&](double q) { return used[size_t(q * (used.size() - 1))] * 1e6 / khz; };
            std::printf("%s, %d: %.0f, %.0f, %.0f; %.2f; %.1f; %.0f; %zu of %d\n", NAMES[way], blocks, quantile(0.1),
                        quantile(0.5), quantile(0.9), decisions * 1e3 / busy_ns, double(decisions) / batches,
                        double(calling_ns) / calls, used.size(), blocks * (ROUNDS - WARM));
            std::fflush(stdout);
        }
}
