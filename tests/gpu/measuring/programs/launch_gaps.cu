// What the device descriptions in tileprof/devices/devices.toml cite as measured: properties of the GPU, and the time
// from the end of a kernel to the begin of the next one in a stream and in a CUDA graph.
//   nvcc -O2 -arch=native launch_gaps.cu -o launch_gaps && ./launch_gaps
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                              \
    do {                                                                         \
        cudaError_t error_ = (call);                                             \
        if (error_ != cudaSuccess) {                                             \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_)); \
            std::exit(1);                                                        \
        }                                                                        \
    } while (0)

constexpr int kKernels = 200, kThreads = 256, kSpinNs = 10000;  // spinning longer than a launch takes the host

struct Span {
    unsigned long long begin, end;
};

__device__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// Every block notes when it began and ended; `words` floats a block are written, as a real kernel would.
__global__ void spin(Span* spans, float* out, int words) {
    unsigned long long begin = nanoseconds();
    for (int i = threadIdx.x; i < words; i += blockDim.x) out[size_t(blockIdx.x) * words + i] = float(i);
    while (nanoseconds() < begin + kSpinNs) {
    }
    __syncthreads();
    if (threadIdx.x == 0) spans[blockIdx.x] = {begin, nanoseconds()};
}

double median_gap(const std::vector<Span>& spans, int blocks) {
    std::vector<double> gaps;
    for (int k = 21; k < kKernels; k++) {  // the first ones wait for the host
        unsigned long long end = 0, begin = ~0ull;
        for (int b = 0; b < blocks; b++) {
            end = std::max(end, spans[size_t(k - 1) * blocks + b].end);
            begin = std::min(begin, spans[size_t(k) * blocks + b].begin);
        }
        gaps.push_back(double(begin) - double(end));
    }
    std::sort(gaps.begin(), gaps.end());
    return gaps[gaps.size() / 2];
}

int main() {
    cudaDeviceProp p;
    CHECK(cudaGetDeviceProperties(&p, 0));
    int clock_khz = 0;
    CHECK(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, 0));
    std::printf("%s sm_%d%d sms %d l2_bytes %d dram_bytes %zu clock_khz %d\n", p.name, p.major, p.minor,
                p.multiProcessorCount, p.l2CacheSize, p.totalGlobalMem, clock_khz);
    std::printf("threads_per_sm %d blocks_per_sm %d registers_per_sm %d shared per_sm %zu per_block %zu reserved %zu\n",
                p.maxThreadsPerMultiProcessor, p.maxBlocksPerMultiProcessor, p.regsPerMultiprocessor,
                p.sharedMemPerMultiprocessor, p.sharedMemPerBlockOptin, p.reservedSharedMemPerBlock);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    for (int blocks : {1, p.multiProcessorCount, 8 * p.multiProcessorCount})
        for (int words : {0, 16384}) {
            Span* spans;
            float* out;
            CHECK(cudaMalloc(&spans, sizeof(Span) * blocks * kKernels));
            CHECK(cudaMalloc(&out, sizeof(float) * std::max(1, words) * blocks));
            auto issue = [&] {
                for (int k = 0; k < kKernels; k++)
                    spin<<<blocks, kThreads, 0, stream>>>(spans + size_t(k) * blocks, out, words);
            };
            auto gap = [&] {
                CHECK(cudaStreamSynchronize(stream));
                std::vector<Span> host(size_t(blocks) * kKernels);
                CHECK(cudaMemcpy(host.data(), spans, sizeof(Span) * host.size(), cudaMemcpyDeviceToHost));
                return median_gap(host, blocks);
            };
            issue();
            CHECK(cudaStreamSynchronize(stream));
            issue();
            double in_stream = gap();
            cudaGraph_t graph;
            cudaGraphExec_t exec;
            CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
            issue();
            CHECK(cudaStreamEndCapture(stream, &graph));
            CHECK(cudaGraphInstantiate(&exec, graph, 0));
            CHECK(cudaGraphLaunch(exec, stream));
            CHECK(cudaGraphLaunch(exec, stream));
            std::printf("blocks %d written %d bytes per block: gap %.0f ns in a stream, %.0f ns in a graph\n", blocks,
                        words * 4, in_stream, gap());
            CHECK(cudaFree(spans));
            CHECK(cudaFree(out));
        }
    CHECK(cudaGetLastError());
    return 0;
}
