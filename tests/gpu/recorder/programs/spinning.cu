// Kernels that wait for an event outside of themselves, in the way that the first argument names. Prints the result.
#include <cooperative_groups.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

__device__ __forceinline__ int load_acquire_system(const int* from) {
    int value;
    asm volatile("ld.acquire.sys.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ void store_release_system(int* to, int value) {
    asm volatile("st.release.sys.b32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__global__ void spins(const int* flag, const int* in, int* out) {
    while (load_acquire_system(flag) == 0) __nanosleep(1000);
    out[threadIdx.x] = in[threadIdx.x] + 1;
}

__global__ void lets_go(int* flag, int* data) {
    data[threadIdx.x] = 41;
    __syncthreads();
    if (threadIdx.x == 0) store_release_system(flag, 1);
}

__global__ void counts(int* total) { atomicAdd(total, 1); }

__global__ void in_rounds(int* cells, int blocks, int rounds) {
    auto grid = cooperative_groups::this_grid();
    for (int round = 0; round < rounds; ++round) {
        if (threadIdx.x == 0)
            cells[(round + 1) * blocks + blockIdx.x] = cells[round * blocks + (blockIdx.x + 1) % blocks] + 1;
        grid.sync();
    }
}

constexpr int kThreads = 32;

struct Memory {
    int *flag, *data, *out, *total;
    cudaStream_t first, second;

    Memory() {
        for (int** p : {&flag, &data, &out, &total}) {
            cudaMalloc(p, 4096);
            cudaMemset(*p, 0, 4096);
        }
        cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
        cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
        counts<<<4, kThreads, 0, second>>>(total);
        cudaDeviceSynchronize();
    }
    // Kernels are loaded when they are first launched, which waits for the GPU. These launches have their flag set, so
    // nothing spins.
    void load_all() {
        lets_go<<<1, kThreads, 0, second>>>(flag, data);
        spins<<<2, kThreads, 0, second>>>(flag, data, out);  // a grid of its own
        cudaDeviceSynchronize();
        cudaMemset(flag, 0, 4);
        cudaMemset(out, 0, 4096);
        cudaDeviceSynchronize();
    }
    int say() {
        int value = 0;
        cudaError_t error = cudaDeviceSynchronize();
        cudaMemcpy(&value, out, sizeof value, cudaMemcpyDeviceToHost);
        printf("%d %s\n", value, cudaGetErrorName(error));
        return 0;
    }
};

int streams(Memory& m, int times) {
    m.load_all();
    for (int i = 0; i < times; ++i) {
        cudaMemsetAsync(m.flag, 0, 4, m.first);
        cudaStreamSynchronize(m.first);
        spins<<<1, kThreads, 0, m.first>>>(m.flag, m.data, m.out);
        counts<<<8, kThreads, 0, m.second>>>(m.total);
        cudaStreamSynchronize(m.second);
        lets_go<<<1, kThreads, 0, m.second>>>(m.flag, m.data);
        cudaDeviceSynchronize();
    }
    counts<<<16, kThreads, 0, m.second>>>(m.total);
    return m.say();
}

// In the default stream, in which the library copies, too.
int plain(Memory& m) {
    m.load_all();
    spins<<<1, kThreads>>>(m.flag, m.data, m.out);
    lets_go<<<1, kThreads, 0, m.second>>>(m.flag, m.data);
    return m.say();
}

// The host releases it, after it has waited for another stream.
int host(Memory& m) {
    m.load_all();
    int* flag;
    cudaMallocHost(&flag, 4096);
    *flag = 0;
    spins<<<1, kThreads, 0, m.first>>>(flag, m.data, m.out);
    counts<<<8, kThreads, 0, m.second>>>(m.total);
    cudaStreamSynchronize(m.second);
    *static_cast<volatile int*>(flag) = 1;
    return m.say();
}

// The kernel that releases it was never loaded: loading waits for the GPU.
int late(Memory& m) {
    spins<<<1, kThreads, 0, m.first>>>(m.flag, m.data, m.out);
    lets_go<<<1, kThreads, 0, m.second>>>(m.flag, m.data);
    return m.say();
}

int never(Memory& m) {
    spins<<<1, kThreads, 0, m.first>>>(m.flag, m.data, m.out);
    return m.say();
}

// As many blocks as fit at once, which wait for each other.
int cooperative(Memory& m) {
    int device = 0, sms = 0, each = 0, rounds = 4;
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, in_rounds, 128, 0);
    int blocks = sms * each, *cells, value = -1;
    cudaMalloc(&cells, sizeof(int) * blocks * (rounds + 1));
    cudaMemset(cells, 0, sizeof(int) * blocks * (rounds + 1));
    cudaDeviceSynchronize();
    void* arguments[] = {&cells, &blocks, &rounds};
    cudaError_t error = cudaLaunchCooperativeKernel(in_rounds, dim3(blocks), dim3(128), arguments, 0, m.first);
    cudaDeviceSynchronize();
    cudaMemcpy(&value, cells + rounds * blocks, sizeof value, cudaMemcpyDeviceToHost);
    printf("%d %s\n", value, cudaGetErrorName(error));
    return 0;
}

int main(int, char** words) {
    Memory m;
    if (strcmp(words[1], "streams") == 0) return streams(m, 1);
    if (strcmp(words[1], "plain") == 0) return plain(m);
    if (strcmp(words[1], "often") == 0) return streams(m, 5);
    if (strcmp(words[1], "host") == 0) return host(m);
    if (strcmp(words[1], "late") == 0) return late(m);
    if (strcmp(words[1], "never") == 0) return never(m);
    return cooperative(m);
}
