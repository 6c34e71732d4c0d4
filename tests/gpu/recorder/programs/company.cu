// A program for tests of recorders beside other processes: it runs until it is killed ("loop"), makes 40 launches
// ("run"), or forks after its first ones ("fork").
#include <cstdio>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

__global__ void add(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1; }

static bool launches(float* x, int count) {
    for (int i = 0; i < count; ++i) {
        add<<<1 + i % 7, 128>>>(x);
        usleep(1000);
    }
    return cudaDeviceSynchronize() == cudaSuccess;
}

int main(int, char** words) {
    const char* mode = words[1];
    float* x = nullptr;
    if (cudaMalloc(&x, 1 << 20) != cudaSuccess || !launches(x, 20)) return 9;
    printf("begin\n");
    fflush(stdout);
    while (!strcmp(mode, "loop"))
        if (!launches(x, 20)) return 8;
    if (!strcmp(mode, "fork")) {
        const pid_t child = fork();
        if (child == 0) {
            int devices = 0;
            const bool refused = cudaGetDeviceCount(&devices) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess;
            printf(refused ? "the child has no CUDA\n" : "the child has CUDA\n");
            fflush(stdout);
            _exit(5);
        }
        int status = 0;
        waitpid(child, &status, 0);
        printf("the child ended with %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
    if (!launches(x, 20)) return 7;
    float first = 0;
    cudaMemcpy(&first, x, sizeof first, cudaMemcpyDeviceToHost);
    printf("%g\n", first);
    return 0;
}
