// Shared by the experiments with a late block: two 3 x 3 convolutions of 56 x 56 pixels that run tile by tile, and the
// count of wrong pixels. The rows of tiles of both kernels are y of the grid; there is one column of channels.
#pragma once

#include <cstdio>
#include <vector>

#include "policy.h"

constexpr int kSide = 56, kPixels = kSide * kSide, kTile = 32, kTiles = kPixels / kTile, kRounds = 100;
constexpr int kPoison = -1000000;  // content of the image between the two before it is written

__host__ __device__ inline int pixel(const int* image, int at) {
    const int y = at / kSide, x = at % kSide;
    int sum = 0;
    for (int v = y - 1; v <= y + 1; ++v)
        for (int u = x - 1; u <= x + 1; ++u)
            if (v >= 0 && v < kSide && u >= 0 && u < kSide) sum += (1 + (v - y) + 3 * (u - x)) * image[v * kSide + u];
    return sum;
}

__device__ void late(long long ns) {
    long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - begin < ns);
}

template <typename Stage>
__global__ void first(Stage stage, const int* in, int* out, int late_tile, long long late_ns, bool in_elements) {
    __shared__ uint32_t slot[3];
    dim3 tile = stage.tile(reinterpret_cast<dim3*>(slot));
    if (int(tile.y) == late_tile && late_ns > 0) late(late_ns);
    const int at = tile.y * kTile + threadIdx.x;
    out[at] = pixel(in, at);
    stage.post(in_elements ? dim3(tile.y * kTile, 0, 0) : tile);
}

template <typename Stage>
__global__ void second_as_written(Stage stage, const int* in, int* out) {
    __shared__ uint32_t slot[3];
    dim3 tile = stage.tile(reinterpret_cast<dim3*>(slot));
    tileprof_policy::wait_as_Conv2(stage, tile);
    const int at = tile.y * kTile + threadIdx.x;
    out[at] = pixel(in, at);
}

inline void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
    std::exit(2);
}

struct Images {
    int *in, *between, *out;
    std::vector<int> wanted;
};

// Rounds with a wrong result; launches are given by `run(producer stream, consumer stream)`.
template <typename Run>
int measure(const char* name, long long late_ns, Images images, Run run) {
    cudaStream_t streams[2];
    for (auto& stream : streams) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<int> poison(kPixels, kPoison), found(kPixels);
    int wrong_rounds = 0, wrong_pixels = 0;
    for (int round = 0; round < kRounds; ++round) {
        check(cudaMemcpy(images.between, poison.data(), kPixels * sizeof(int), cudaMemcpyHostToDevice));
        run(streams[0], streams[1]);
        check(cudaDeviceSynchronize());
        check(cudaMemcpy(found.data(), images.out, kPixels * sizeof(int), cudaMemcpyDeviceToHost));
        int wrong = 0;
        for (int at = 0; at < kPixels; ++at) wrong += found[at] != images.wanted[at];
        wrong_rounds += wrong > 0;
        wrong_pixels += wrong;
    }
    std::printf("%-16s late by %8.1f us: %3d rounds, %3d wrong, %6d wrong pixels\n", name, late_ns / 1000.0, kRounds,
                wrong_rounds, wrong_pixels);
    return wrong_rounds;
}

// Input, result, the image between them, and the right values.
inline Images made() {
    Images images;
    std::vector<int> in(kPixels), between(kPixels);
    images.wanted.resize(kPixels);
    for (int at = 0; at < kPixels; ++at) in[at] = at * 7919 % 101;
    for (int at = 0; at < kPixels; ++at) between[at] = pixel(in.data(), at);
    for (int at = 0; at < kPixels; ++at) images.wanted[at] = pixel(between.data(), at);
    for (int** image : {&images.in, &images.between, &images.out}) check(cudaMalloc(image, kPixels * sizeof(int)));
    check(cudaMemcpy(images.in, in.data(), kPixels * sizeof(int), cudaMemcpyHostToDevice));

    return images;
}

// Rounds with a wrong result under the policy of policy.h, and its name.
inline int as_written(const char* name, long long late_ns, Images images) {
    const dim3 grid(1, kTiles, 1);
    tileprof_policy::Stages stages;
    return measure(name, late_ns, images, [&](cudaStream_t first_stream, cudaStream_t second_stream) {
        first<<<grid, kTile, 0, first_stream>>>(stages.stage_0, images.in, images.between, kTiles / 2, late_ns, false);
        tileprof_policy::before_Conv2(stages, second_stream);
        second_as_written<<<grid, kTile, 0, second_stream>>>(stages.stage_1, images.between, images.out);
        tileprof_policy::next_round(stages);
    });
}
