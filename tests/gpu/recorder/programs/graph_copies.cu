// Copies in CUDA graphs: of bytes in rows, of CUDA arrays, to pageable memory of the host, and inside a nested graph.
// Each graph is launched once, after its line is printed.
#include <cuda_runtime.h>
#include <stdio.h>

#include "checked.cuh"

constexpr int WIDTH = 64, HEIGHT = 16, DEPTH = 4, ROW = WIDTH * sizeof(int);

__global__ void counted(int* p) { p[threadIdx.x] += 1; }

int launch(cudaGraph_t graph, cudaStream_t stream, const char* what) {
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    printf("%s\n", what);
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    return 0;
}

#define CAPTURED(what, call)                                             \
    do {                                                                 \
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)); \
        OK(call);                                                        \
        OK(cudaStreamEndCapture(stream, &graph));                        \
        if (launch(graph, stream, what)) return 1;                       \
    } while (0)
#define NODE(what, copy)                                             \
    do {                                                             \
        OK(cudaGraphCreate(&graph, 0));                              \
        OK(cudaGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy)); \
        if (launch(graph, stream, what)) return 1;                   \
    } while (0)

int main() {
    static int host[WIDTH * HEIGHT * DEPTH];
    int *to, *from;
    OK(cudaMalloc(&to, 1 << 20));
    OK(cudaMalloc(&from, 1 << 20));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    cudaArray_t flat, deep;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
    OK(cudaMallocArray(&flat, &format, WIDTH, HEIGHT));
    OK(cudaMalloc3DArray(&deep, &format, make_cudaExtent(WIDTH, HEIGHT, DEPTH)));
    cudaMemcpy3DParms rows = {}, out_of_array = {}, between = {};
    rows.srcPtr = make_cudaPitchedPtr(from, 4 * ROW, ROW, HEIGHT);
    rows.dstPtr = make_cudaPitchedPtr(to, 2 * ROW, ROW, HEIGHT);
    rows.extent = make_cudaExtent(ROW, HEIGHT, DEPTH);
    out_of_array.srcArray = deep;
    out_of_array.dstPtr = make_cudaPitchedPtr(to, ROW, WIDTH, HEIGHT);
    out_of_array.extent = make_cudaExtent(WIDTH, HEIGHT, DEPTH);
    between.srcArray = flat;
    between.dstArray = deep;
    between.extent = make_cudaExtent(WIDTH, HEIGHT, 1);
    rows.kind = out_of_array.kind = between.kind = cudaMemcpyDeviceToDevice;
    cudaGraph_t graph, inner;
    cudaGraphNode_t node;

    CAPTURED("bytes: row", cudaMemcpyAsync(to, from, 4096, cudaMemcpyDeviceToDevice, stream));
    CAPTURED("bytes: rows",
             cudaMemcpy2DAsync(to, 2 * ROW, from, 4 * ROW, ROW, HEIGHT, cudaMemcpyDeviceToDevice, stream));
    CAPTURED("bytes: rows of rows", cudaMemcpy3DAsync(&rows, stream));
    NODE("bytes: node of rows of rows", rows);
    CAPTURED("unsaid: from array",
             cudaMemcpy2DFromArrayAsync(to, ROW, flat, 0, 0, ROW, HEIGHT, cudaMemcpyDeviceToDevice, stream));
    CAPTURED("unsaid: to array",
             cudaMemcpy2DToArrayAsync(flat, 0, 0, host, ROW, ROW, HEIGHT, cudaMemcpyHostToDevice, stream));
    CAPTURED("unsaid: from deep array", cudaMemcpy3DAsync(&out_of_array, stream));
    CAPTURED("unsaid: between arrays", cudaMemcpy3DAsync(&between, stream));
    NODE("unsaid: node from deep array", out_of_array);
    CAPTURED("unsaid: to host", cudaMemcpyAsync(host, from, 4096, cudaMemcpyDeviceToHost, stream));

    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    counted<<<1, WIDTH, 0, stream>>>(to);
    OK(cudaMemcpyAsync(from, to, ROW, cudaMemcpyDeviceToDevice, stream));
    OK(cudaStreamEndCapture(stream, &inner));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddChildGraphNode(&node, graph, nullptr, 0, inner));
    if (launch(graph, stream, "inside: kernel and copy")) return 1;
    printf("right\n");
}
