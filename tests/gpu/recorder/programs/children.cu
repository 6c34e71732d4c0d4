// A program whose kernels launch kernels: each block of `parent` launches two grids of `child`, which launch `grand`.
// It prints the addresses of its buffers, as the self-test does, and "right".
#include <cstdio>
#include <cstdlib>

#define OK(call)                                                                                 \
    do {                                                                                         \
        cudaError_t error = call;                                                                \
        if (error != cudaSuccess) printf("%s: %s\n", #call, cudaGetErrorString(error)), exit(1); \
    } while (false)

constexpr int kParents = 4, kChildren = 2, kBlocks = 3, kThreads = 32;
constexpr int kMade = kParents * kChildren * kBlocks * kThreads;

__global__ void grand(int* out, int n) {
    if (threadIdx.x < n) out[threadIdx.x] += 1000;
}

__global__ void child(const int* in, int* out, int from) {
    const int i = from + blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i] + 1;
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) grand<<<1, kThreads, 0, cudaStreamTailLaunch>>>(out + from, 8);
}

__global__ void parent(const int* in, int* out, int* count) {
    if (threadIdx.x != 0) return;
    count[blockIdx.x] = kChildren;
    for (int i = 0; i < kChildren; ++i)
        child<<<kBlocks, kThreads, 0, cudaStreamFireAndForget>>>(in, out,
                                                                 (blockIdx.x * kChildren + i) * kBlocks * kThreads);
}

__global__ void after(const int* out, int* copy) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    copy[i] = out[i];
}

int main() {
    int *in, *out, *copy, *count, *there = new int[kMade];
    OK(cudaMalloc(&in, kMade * sizeof(int)));
    OK(cudaMalloc(&out, kMade * sizeof(int)));
    OK(cudaMalloc(&copy, kMade * sizeof(int)));
    OK(cudaMalloc(&count, kParents * sizeof(int)));
    for (int i = 0; i < kMade; ++i) there[i] = 3 * i;
    OK(cudaMemcpy(in, there, kMade * sizeof(int), cudaMemcpyHostToDevice));
    for (int round = 0; round < 2; ++round) parent<<<kParents, kThreads>>>(in, out, count);
    after<<<kMade / 64, 64>>>(out, copy);
    OK(cudaMemcpy(there, copy, kMade * sizeof(int), cudaMemcpyDeviceToHost));
    bool right = true;
    for (int i = 0; i < kMade; ++i) right = right && there[i] == 3 * i + 1 + (i % (kBlocks * kThreads) < 8 ? 1000 : 0);
    const void* buffers[] = {in, out, copy, count};
    const char* names[] = {"in", "out", "copy", "count"};
    for (int i = 0; i < 4; ++i) printf("buffer %s %llu\n", names[i], reinterpret_cast<unsigned long long>(buffers[i]));
    puts(right ? "right" : "wrong");
}
