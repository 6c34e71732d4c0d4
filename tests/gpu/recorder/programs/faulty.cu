// A program whose third kernel faults; with an argument the program kills itself instead.
#include <signal.h>
#include <stdio.h>

__global__ void add(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1; }

int main(int arguments, char**) {
    float* x = nullptr;
    if (cudaMalloc(&x, 1 << 20) != cudaSuccess) return 9;
    add<<<4, 128>>>(x);
    add<<<5, 128>>>(x);
    if (cudaDeviceSynchronize() != cudaSuccess) return 8;
    cudaStreamSynchronize(nullptr);
    if (arguments > 1) raise(SIGKILL);
    add<<<6, 128>>>(x + (1ull << 40));
    cudaError_t result = cudaDeviceSynchronize();
    printf("%s\n", cudaGetErrorName(result));
    return result == cudaErrorIllegalAddress ? 3 : 7;
}
