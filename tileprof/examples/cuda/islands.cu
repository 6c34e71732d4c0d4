// Islands of bodies that touch each other, as a physics step solves them: Jacobi iterations on the system of each
// island (Tonge et al., SIGGRAPH 2012), one launch per iteration, island after island in one stream, then one launch
// that moves all bodies. Islands do not depend on each other; a launch fills a few multiprocessors for some 10 us.
//
//     make build/islands/program; tileprof run --scheduler acs -- build/islands/program [steps [islands]]
#include <cuda_runtime.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                              \
    do {                                                                                         \
        cudaError_t failed = (call);                                                             \
        if (failed != cudaSuccess) {                                                             \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(failed)); \
            std::exit(1);                                                                        \
        }                                                                                        \
    } while (0)

constexpr int kWarp = 32, kThreads = 256, kRows = 64;  // per block: each warp takes rows by turns
constexpr int kIterations = 8, kWarmSteps = 2;

// after = (push - (system without its diagonal) before) / diagonal, for `size` contacts.
__global__ void iterate(const float* system, const float* push, const float* before, float* after, int size) {
    const int lane = threadIdx.x % kWarp, end = min(size, (static_cast<int>(blockIdx.x) + 1) * kRows);
    for (int row = blockIdx.x * kRows + threadIdx.x / kWarp; row < end; row += kThreads / kWarp) {
        const float* line = system + static_cast<size_t>(row) * size;
        float sum = 0;
        for (int column = lane; column < size; column += kWarp)
            if (column != row) sum += line[column] * before[column];
        for (int other = kWarp / 2; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
        if (lane == 0) after[row] = (push[row] - sum) / line[row];
    }
}

// Bodies take their velocity from the solution, and the next step pushes against it.
__global__ void move(const float* solution, float* push, float* position, int count, float seconds) {
    const int body = blockIdx.x * blockDim.x + threadIdx.x;
    if (body >= count) return;
    position[body] += seconds * solution[body];
    push[body] = 0.5f * push[body] - 0.1f * position[body];
}

struct Island {
    float *system, *solutions[2];
    int size, first;
};

float* on_device(const std::vector<float>& values) {
    float* out = nullptr;
    CHECK(cudaMalloc(&out, values.size() * sizeof(float)));
    CHECK(cudaMemcpy(out, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
    return out;
}

int main(int count, char** words) {
    const int steps = count > 1 ? std::atoi(words[1]) : 10, number = count > 2 ? std::atoi(words[2]) : 16;
    std::srand(1);
    auto random = [] { return static_cast<float>(std::rand()) / static_cast<float>(RAND_MAX) - 0.5f; };
    std::vector<Island> islands;
    int bodies = 0;
    for (int i = 0; i < number; ++i) {
        const int size = 512 + 64 * (i % 5);
        std::vector<float> system(static_cast<size_t>(size) * size);
        for (int row = 0; row < size; ++row)
            for (int column = 0; column < size; ++column)
                system[static_cast<size_t>(row) * size + column] = row == column ? 2.0f : random() / size;
        const std::vector<float> zeros(size);
        islands.push_back({on_device(system), {on_device(zeros), on_device(zeros)}, size, bodies});
        bodies += size;
    }
    std::vector<float> values(bodies);
    for (float& value : values) value = random();
    float *push = on_device(values), *position = on_device(std::vector<float>(bodies));
    float* solution = on_device(std::vector<float>(bodies));
    CHECK(cudaDeviceSynchronize());
    auto begin = std::chrono::steady_clock::now();
    for (int step = 0; step < steps; ++step) {
        if (step == kWarmSteps) {
            CHECK(cudaDeviceSynchronize());
            begin = std::chrono::steady_clock::now();
        }
        for (const Island& island : islands)
            for (int i = 0; i < kIterations; ++i) {
                float* after = i + 1 == kIterations ? solution + island.first : island.solutions[i % 2];
                iterate<<<(island.size + kRows - 1) / kRows, kThreads>>>(
                    island.system, push + island.first, island.solutions[(i + 1) % 2], after, island.size);
            }
        move<<<(bodies + kThreads - 1) / kThreads, kThreads>>>(solution, push, position, bodies, 1e-2f);
        CHECK(cudaGetLastError());
    }
    CHECK(cudaDeviceSynchronize());
    const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
    if (steps > kWarmSteps) std::fprintf(stderr, "islands: %.1f us per step\n", spent.count() / (steps - kWarmSteps));
    CHECK(cudaMemcpy(values.data(), position, bodies * sizeof(float), cudaMemcpyDeviceToHost));
    double sum = 0;
    for (float value : values) sum += std::fabs(value);
    std::printf("islands: %d bodies, checksum %.17e\n", bodies, sum / bodies);
}
