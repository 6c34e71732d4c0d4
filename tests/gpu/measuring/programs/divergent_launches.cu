// Do the launches of threads return that come to them in groups, while other threads of their warp sleep?
//
//     nvcc -O3 -std=c++17 -arch=sm_90 -rdc=true divergent_launches.cu -lcudadevrt -o divergent_launches
//     divergent_launches WAY RUNS
//
// In a run each thread of eight warps launches an empty grid; one in four sleeps for up to 20 us before. WAY: apart
// (even and odd threads have code of their own and do not meet), together (the whole warp meets before it launches),
// alone (as apart, but one thread of a warp at a time), awake (as apart, but threads poll the clock instead of
// sleeping). A run hangs that has not ended after a second; the program then says where its threads were and returns 3.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <unistd.h>

using u64 = unsigned long long;

enum Way { APART, TOGETHER, ALONE, AWAKE };
enum State { NOT_YET, IN_GET_PARAMETER_BUFFER, IN_LAUNCH_DEVICE, LAUNCHED };
constexpr int WARPS = 8, CHILD_BLOCKS = 8;

struct Memory {
    int states[WARPS * 32], locks[WARPS], ended;
};

__global__ void child(Memory* memory) {
    if (threadIdx.x == 0) atomicAdd(&memory->ended, 1);
}

__device__ u64 now() {
    u64 time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}

__device__ void delay(Way way) {
    u64 word = clock64() * 0x9E3779B97F4A7C15ull + (blockIdx.x * 2048 + threadIdx.x) * 0xD1B54A32D192ED03ull;
    word = (word ^ word >> 29) * 0xBF58476D1CE4E5B9ull;
    if ((word >> 40) % 4 != 0) return;
    const u64 until = now() + (word >> 16) % 20000;
    while (now() < until)
        if (way != AWAKE) __nanosleep(100);
}

__device__ void launch(Memory* memory) {
    int* state = &memory->states[blockIdx.x * 32 + threadIdx.x];
    atomicExch(state, IN_GET_PARAMETER_BUFFER);
    void* buffer = cudaGetParameterBufferV2(reinterpret_cast<void*>(child), dim3(CHILD_BLOCKS), dim3(32), 0);
    *static_cast<Memory**>(buffer) = memory;
    atomicExch(state, IN_LAUNCH_DEVICE);
    cudaLaunchDeviceV2(buffer, cudaStreamFireAndForget);
    atomicExch(state, LAUNCHED);
}

template <int GROUP>
__device__ __noinline__ void delay_and_launch(Memory* memory, Way way) {
    asm volatile("// group %0" ::"n"(GROUP));
    delay(way);
    if (way == TOGETHER) __syncwarp();
    for (bool done = way != ALONE; !done;) {
        if (atomicCAS(&memory->locks[blockIdx.x], 0, 1) == 0) {
            launch(memory);
            __threadfence();
            atomicExch(&memory->locks[blockIdx.x], 0);
            done = true;
        } else {
            __nanosleep(100);
        }
    }
    if (way != ALONE) launch(memory);
}

__global__ void parent(Memory* memory, Way way) {
    if (way == TOGETHER)
        delay_and_launch<0>(memory, way);
    else if (threadIdx.x % 2 == 0)
        delay_and_launch<1>(memory, way);
    else
        delay_and_launch<2>(memory, way);
}

int main(int count, char** arguments) {
    const std::string names[] = {"apart", "together", "alone", "awake"};
    int way = 0;
    while (count == 3 && way < 4 && names[way] != arguments[1]) ++way;
    if (count != 3 || way == 4) return std::fprintf(stderr, "divergent_launches apart|together|alone|awake RUNS\n"), 2;
    Memory *memory, seen;
    cudaStream_t work, copy;
    cudaMalloc(&memory, sizeof(Memory));
    cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking), cudaStreamCreateWithFlags(&copy, cudaStreamNonBlocking);
    for (int run = 0; run < std::atoi(arguments[2]); ++run) {
        cudaMemsetAsync(memory, 0, sizeof(Memory), work);
        parent<<<WARPS, 32, 0, work>>>(memory, static_cast<Way>(way));
        const auto begin = std::chrono::steady_clock::now();
        while (cudaStreamQuery(work) == cudaErrorNotReady) {
            if (std::chrono::steady_clock::now() - begin < std::chrono::seconds(1)) continue;
            cudaMemcpyAsync(&seen, memory, sizeof seen, cudaMemcpyDeviceToHost, copy), cudaStreamSynchronize(copy);
            int inside[4] = {};
            for (const int state : seen.states) ++inside[state];
            std::printf("hangs in run %d: %d threads in cudaGetParameterBuffer, %d in cudaLaunchDevice, %d launched\n",
                        run, inside[1], inside[2], inside[3]);
            std::fflush(stdout), _exit(3);
        }
        cudaMemcpy(&seen, memory, sizeof seen, cudaMemcpyDeviceToHost);
        const cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess || seen.ended != WARPS * 32 * CHILD_BLOCKS)
            return std::printf("run %d: %s, %d blocks ended\n", run, cudaGetErrorString(error), seen.ended), 1;
    }
    return std::printf("%s runs ended\n", arguments[2]), 0;
}
