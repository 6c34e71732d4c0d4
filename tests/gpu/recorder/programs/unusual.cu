// Accesses other than loads and stores of kernels and plain copies: constant memory, words that a stream writes or
// waits for, and CUDA arrays. With any argument, a graph that copies an array and holds another graph. The program
// prints the addresses of its buffers, and "right" if its results are right.
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#include "checked.cuh"

constexpr int N = 1024, WIDTH = 64, HEIGHT = 16;  // N = WIDTH * HEIGHT

__constant__ int scale[16];

__global__ void scaled(const int* in, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i] * scale[i & 15];
}

__global__ void flagged(const int* flag, const int* in, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i] + *flag;
}

__global__ void doubled(const int* in, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = 2 * in[i];
}

// A graph that copies an array and contains another graph with two kernels.
int in_a_graph(cudaStream_t stream, cudaArray_t array, int* in, int* last) {
    cudaGraph_t inner, outer;
    cudaGraphExec_t exec;
    cudaGraphNode_t child;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    doubled<<<8, 128, 0, stream>>>(last, last);
    doubled<<<4, 256, 0, stream>>>(last, in);
    OK(cudaStreamEndCapture(stream, &inner));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMemcpy2DFromArrayAsync(in, WIDTH * 4, array, 0, 0, WIDTH * 4, HEIGHT, cudaMemcpyDeviceToDevice, stream));
    OK(cudaStreamEndCapture(stream, &outer));
    OK(cudaGraphAddChildGraphNode(&child, outer, nullptr, 0, inner));
    OK(cudaGraphInstantiate(&exec, outer, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    return 0;
}

int main(int words, char**) {
    int host[N], factors[16], got[N], *in, *out, *last, *flag;
    for (int i = 0; i < N; ++i) host[i] = i;
    for (int i = 0; i < 16; ++i) factors[i] = i + 1;
    OK(cudaMalloc(&in, sizeof host));
    OK(cudaMalloc(&out, sizeof host));
    OK(cudaMalloc(&last, sizeof host));
    OK(cudaMalloc(&flag, 64));
    void* constant;
    OK(cudaGetSymbolAddress(&constant, scale));
    printf("buffer in %llu\nbuffer out %llu\nbuffer last %llu\nbuffer flag %llu\nbuffer scale %llu\n",
           (unsigned long long)in, (unsigned long long)out, (unsigned long long)last, (unsigned long long)flag,
           (unsigned long long)constant);
    OK(cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice));
    OK(cudaMemset(flag, 0, 64));
    OK(cudaMemcpyToSymbol(scale, factors, sizeof factors));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaDeviceSynchronize());

    scaled<<<8, 128, 0, stream>>>(in, out);
    OK(DRIVER(cuStreamWriteValue32)(stream, reinterpret_cast<CUdeviceptr>(flag), 7, 0));
    OK(DRIVER(cuStreamWaitValue32)(stream, reinterpret_cast<CUdeviceptr>(flag), 7, CU_STREAM_WAIT_VALUE_EQ));
    CUstreamBatchMemOpParams one;
    memset(&one, 0, sizeof one);
    one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    one.writeValue.address = reinterpret_cast<CUdeviceptr>(flag + 1);
    one.writeValue.value = 9;
    OK(DRIVER(cuStreamBatchMemOp)(stream, 1, &one, 0));
    flagged<<<8, 128, 0, stream>>>(flag, out, last);

    cudaArray_t array;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
    OK(cudaMallocArray(&array, &format, WIDTH, HEIGHT));
    OK(cudaMemcpy2DToArrayAsync(array, 0, 0, last, WIDTH * 4, WIDTH * 4, HEIGHT, cudaMemcpyDeviceToDevice, stream));
    OK(cudaMemcpy2DFromArrayAsync(in, WIDTH * 4, array, 0, 0, WIDTH * 4, HEIGHT, cudaMemcpyDeviceToDevice, stream));
    OK(cudaMemcpy2DFromArrayAsync(got, WIDTH * 4, array, 0, 0, WIDTH * 4, HEIGHT, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    if (words > 1 && in_a_graph(stream, array, in, last) != 0) return 1;
    for (int i = 0; i < N; ++i)
        if (got[i] != i * (i % 16 + 1) + 7) return printf("wrong at %d\n", i), 1;
    printf("right\n");
}
