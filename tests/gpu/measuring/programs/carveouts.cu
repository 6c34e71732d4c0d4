// Measures whether two kernels share SMs that need different splits between L1 cache and shared memory.
//
//     nvcc -O3 -std=c++17 -arch=native carveouts.cu -o carveouts && ./carveouts
//
// A CUDA graph has two branches of kernels that spin for a given time: `wide` ones of many blocks without shared
// memory, and `narrow` ones of few blocks with some. A line says how long a replay takes with each branch alone and
// with both, in microseconds, and how much of the shorter branch the longer one hides.
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <vector>

#define CHECK(call)                                                                                               \
    do {                                                                                                          \
        if (cudaError_t failed = (call)) fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(failed)), exit(1); \
    } while (0)

namespace {

extern __shared__ char memory[];

__device__ void spin(long long ns, int bytes) {
    if (bytes > 0) memory[threadIdx.x % bytes] = 1;
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    const long long until = clock64() + ns * 17 / 10;  // about 1.7 GHz; globaltimer is too coarse to wait by
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (clock64() < until && now - begin < 1000000);
}
__global__ void wide(long long ns, int bytes) { spin(ns, bytes); }
__global__ void narrow(long long ns, int bytes) { spin(ns, bytes); }

constexpr int kDepth = 20, kRounds = 15;

struct Branch {
    bool is_wide;
    int blocks, threads, bytes;
    long long ns;
};

double replayed(const std::vector<Branch>& branches) {
    std::vector<cudaStream_t> streams(branches.size());
    cudaStream_t own;
    CHECK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    for (cudaStream_t& stream : streams) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaEvent_t fork, join;
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    CHECK(cudaStreamBeginCapture(own, cudaStreamCaptureModeRelaxed));
    CHECK(cudaEventRecord(fork, own));
    for (cudaStream_t stream : streams) CHECK(cudaStreamWaitEvent(stream, fork, 0));
    for (int i = 0; i < kDepth; ++i)
        for (size_t b = 0; b < branches.size(); ++b) {
            const Branch& branch = branches[b];
            if (branch.is_wide)
                wide<<<branch.blocks, branch.threads, branch.bytes, streams[b]>>>(branch.ns, branch.bytes);
            else
                narrow<<<branch.blocks, branch.threads, branch.bytes, streams[b]>>>(branch.ns, branch.bytes);
        }
    for (cudaStream_t stream : streams) {
        CHECK(cudaEventRecord(join, stream));
        CHECK(cudaStreamWaitEvent(own, join, 0));
    }
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamEndCapture(own, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int round = 0; round < kRounds; ++round) {
        float ms = 0;
        CHECK(cudaEventRecord(begin, own));
        CHECK(cudaGraphLaunch(exec, own));
        CHECK(cudaEventRecord(end, own));
        CHECK(cudaStreamSynchronize(own));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        times.push_back(ms * 1e3f);
    }
    std::sort(times.begin(), times.end());
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    for (cudaStream_t stream : streams) CHECK(cudaStreamDestroy(stream));
    CHECK(cudaStreamDestroy(own));
    return times[times.size() / 2];
}

}  // namespace

int main() {
    CHECK(cudaFuncSetAttribute(narrow, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10));
    replayed({{true, 784, 256, 0, 5000}});  // until clocks have risen
    printf("blocks,carveout,kbytes,wide_us,narrow_us,both_us,hidden\n");
    for (int blocks : {66, 132, 264, 784, 1056, 2112})
        // carve-out of `wide`: the driver's choice, all L1, half, all shared memory
        for (int carveout : {-1, 0, 50, 100})
            for (int kbytes : {0, 16, 48, 100, 160}) {
                CHECK(cudaFuncSetAttribute(wide, cudaFuncAttributePreferredSharedMemoryCarveout, carveout));
                const Branch a{true, blocks, 256, 0, 5000}, b{false, 40, 128, kbytes << 10, 5000};
                const double alone = replayed({a}), other = replayed({b}), both = replayed({a, b});
                printf("%d,%d,%d,%.1f,%.1f,%.1f,%.2f\n", blocks, carveout, kbytes, alone, other, both,
                       (alone + other - both) / std::min(alone, other));
                fflush(stdout);
            }
    return 0;
}
