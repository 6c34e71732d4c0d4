// Threads of one warp launch an empty kernel each, after random delays: do their launches return?
//
//     nvcc -O3 -std=c++17 -arch=sm_90 -rdc=true divergent_launches.cu -lcudadevrt -o divergent_launches
//     divergent_launches WAY RUNS
//
// WAY: apart (even and odd threads have code of their own, so that they launch in two groups), together (the whole warp
// meets before it launches), alone (as apart, but one thread at a time). A run that has not ended after a second hangs;
// the program says in which run, how many threads were inside cudaGetParameterBuffer or cudaLaunchDevice then, and
// returns 3. On an H200 with driver 580.159, `apart` hangs in the first runs, in cudaGetParameterBuffer.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

enum Way { APART, TOGETHER, ALONE };
enum State { NOT_YET, IN_GET_PARAMETER_BUFFER, IN_LAUNCH_DEVICE, LAUNCHED };

struct Memory {
    int states[32], lock, ended;
};

__global__ void child(Memory* memory) { atomicAdd(&memory->ended, 1); }

__device__ void launch(Memory* memory) {
    int* state = &memory->states[threadIdx.x];
    atomicExch(state, IN_GET_PARAMETER_BUFFER);
    void* buffer = cudaGetParameterBufferV2(reinterpret_cast<void*>(child), dim3(1), dim3(1), 0);
    *static_cast<Memory**>(buffer) = memory;
    atomicExch(state, IN_LAUNCH_DEVICE);
    cudaLaunchDeviceV2(buffer, cudaStreamFireAndForget);
    atomicExch(state, LAUNCHED);
}

template <int GROUP>
__device__ __noinline__ void delay_and_launch(Memory* memory, Way way) {
    const unsigned random = static_cast<unsigned>(clock64()) * 2654435761u + threadIdx.x * 40503u + GROUP;
    for (unsigned naps = random >> 8 & 127; naps > 0; --naps) __nanosleep(100);
    if (way == TOGETHER) __syncwarp();
    if (way != ALONE) return launch(memory);
    for (bool done = false; !done;) {
        if (atomicCAS(&memory->lock, 0, 1) == 0) {
            launch(memory);
            __threadfence();
            atomicExch(&memory->lock, 0);
            done = true;
        } else {
            __nanosleep(100);
        }
    }
}

__global__ void parent(Memory* memory, Way way) {
    if (way == TOGETHER) {
        delay_and_launch<0>(memory, way);
    } else if (threadIdx.x % 2 == 0) {
        delay_and_launch<1>(memory, way);
    } else {
        delay_and_launch<2>(memory, way);
    }
}

int main(int count, char** arguments) {
    if (count != 3) return std::fprintf(stderr, "divergent_launches apart|together|alone RUNS\n"), 2;
    const Way way = std::strcmp(arguments[1], "apart") == 0   ? APART
                    : std::strcmp(arguments[1], "alone") == 0 ? ALONE
                                                              : TOGETHER;
    Memory *memory, seen;
    cudaStream_t work, copy;
    cudaMalloc(&memory, sizeof(Memory));
    cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking), cudaStreamCreateWithFlags(&copy, cudaStreamNonBlocking);
    for (int run = 0; run < std::atoi(arguments[2]); ++run) {
        cudaMemsetAsync(memory, 0, sizeof(Memory), work);
        parent<<<1, 32, 0, work>>>(memory, way);
        const auto begin = std::chrono::steady_clock::now();
        while (cudaStreamQuery(work) == cudaErrorNotReady) {
            if (std::chrono::steady_clock::now() - begin < std::chrono::seconds(1)) continue;
            cudaMemcpyAsync(&seen, memory, sizeof seen, cudaMemcpyDeviceToHost, copy), cudaStreamSynchronize(copy);
            int inside[4] = {};
            for (const int state : seen.states) ++inside[state];
            std::printf(
                "hangs in run %d: %d threads in cudaGetParameterBuffer, %d in cudaLaunchDevice, %d have launched\n",
                run, inside[1], inside[2], inside[3]),
                std::fflush(stdout);
            _exit(3);
        }
        cudaMemcpy(&seen, memory, sizeof seen, cudaMemcpyDeviceToHost);
        if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess || seen.ended != 32)
            return std::printf("run %d: %s, %d children ended\n", run, cudaGetErrorString(error), seen.ended), 1;
    }
    std::printf("%s runs ended\n", arguments[2]);
    return 0;
}
