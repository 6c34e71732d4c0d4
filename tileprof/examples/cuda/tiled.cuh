// A tiled product in fp16 on tensor cores, whose first factor comes through a loader: rows of a matrix, or pixels
// under a filter. Each block takes its tile from a stage, loads data that depend on no other stage, waits,
// multiplies, and posts.
#pragma once

#include <cuda_fp16.h>
#include <mma.h>

#include "policy.h"

constexpr int kTile = 64, kDepth = 32, kThreads = 128, kPad = 8;

// The block of (tile, seed) begins up to `longest_ns` late, like any block of a busy machine.
struct Delay {
    const uint32_t* seed;
    uint32_t longest_ns;

    __device__ void apply(dim3 tile) const {
        if (longest_ns == 0) return;
        uint32_t hash = (*seed * 2654435761u) ^ (tile.x * 40503u + tile.y * 2246822519u);
        hash ^= hash >> 15, hash *= 2246822519u, hash ^= hash >> 13;
        const uint64_t begin = tileprof::sync::detail::global_timer();
        while (tileprof::sync::detail::global_timer() - begin < hash % longest_ns) {
        }
    }
};

// Row r of the first factor, from k on: a row of a matrix.
struct Rows {
    const half* matrix;
    int k;
    __device__ uint4 load(int row, int at) const {
        return *reinterpret_cast<const uint4*>(matrix + static_cast<size_t>(row) * k + at);
    }
};

// Pixel r under tap at / channels of a 3 x 3 filter with a border of zeros; images lie channels last.
struct Pixels {
    const half* images;
    int side, channels;
    __device__ uint4 load(int row, int at) const {
        const int tap = at / channels, x = row % side + tap % 3 - 1, y = row / side % side + tap / 3 - 1;
        if (x < 0 || y < 0 || x >= side || y >= side) return make_uint4(0, 0, 0, 0);
        const size_t pixel = static_cast<size_t>(row / (side * side)) * side * side + y * side + x;
        return *reinterpret_cast<const uint4*>(images + pixel * channels + at % channels);
    }
};

// out[rows, columns] = relu(first[rows, k] * weights[k, columns]). `wait(stage, tile)` returns when the first factor
// may be read.
template <bool REORDERED, typename Stage, typename Loader, typename Wait>
__global__ void __launch_bounds__(kThreads)
    tiled(Stage stage, Loader first, const half* weights, half* out, int columns, int k, Wait wait, Delay delay) {
    namespace wmma = nvcuda::wmma;
    __shared__ uint32_t slot[3];
    __shared__ half a[kTile][kDepth + kPad], b[kDepth][kTile + kPad];
    __shared__ float sums[kThreads / 32][16][16];
    const dim3 tile = stage.tile(reinterpret_cast<dim3*>(slot));
    delay.apply(tile);
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    // Two pieces of eight numbers of each factor per thread.
    auto weight = [&](int at, int piece) {
        const int row = thread / 8 + 16 * piece;
        return *reinterpret_cast<const uint4*>(weights + static_cast<size_t>(at + row) * columns + tile.x * kTile +
                                               thread % 8 * 8);
    };
    auto activation = [&](int at, int piece) {
        return first.load(tile.y * kTile + thread / 4 + 32 * piece, at + thread % 4 * 8);
    };
    uint4 next_b[2], next_a[2];
    if (!REORDERED) wait(stage, tile);
    for (int piece = 0; piece < 2; ++piece) next_b[piece] = weight(0, piece);  // depends on no other stage
    if (REORDERED) wait(stage, tile);
    for (int piece = 0; piece < 2; ++piece) next_a[piece] = activation(0, piece);
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> total[2][2];
    for (auto& row : total)
        for (auto& square : row) wmma::fill_fragment(square, 0.0f);
    for (int at = 0; at < k; at += kDepth) {
        for (int piece = 0; piece < 2; ++piece) {
            *reinterpret_cast<uint4*>(&a[thread / 4 + 32 * piece][thread % 4 * 8]) = next_a[piece];
            *reinterpret_cast<uint4*>(&b[thread / 8 + 16 * piece][thread % 8 * 8]) = next_b[piece];
        }
        __syncthreads();
        for (int piece = 0; at + kDepth < k && piece < 2; ++piece) {
            next_a[piece] = activation(at + kDepth, piece);
            next_b[piece] = weight(at + kDepth, piece);
        }
        for (int deep = 0; deep < kDepth; deep += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left[2];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> right[2];
            for (int n = 0; n < 2; ++n) {
                wmma::load_matrix_sync(left[n], &a[warp / 2 * 32 + 16 * n][deep], kDepth + kPad);
                wmma::load_matrix_sync(right[n], &b[deep][warp % 2 * 32 + 16 * n], kTile + kPad);
            }
            for (int y = 0; y < 2; ++y)
                for (int x = 0; x < 2; ++x) wmma::mma_sync(total[y][x], left[y], right[x], total[y][x]);
        }
        __syncthreads();
    }
    for (int y = 0; y < 2; ++y)
        for (int x = 0; x < 2; ++x) {
            wmma::store_matrix_sync(&sums[warp][0][0], total[y][x], 16, wmma::mem_row_major);
            __syncwarp();
            const int row = tile.y * kTile + warp / 2 * 32 + 16 * y, column = tile.x * kTile + warp % 2 * 32 + 16 * x;
            for (int n = lane; n < 256; n += 32)
                out[static_cast<size_t>(row + n / 16) * columns + column + n % 16] =
                    __float2half(fmaxf(sums[warp][n / 16][n % 16], 0.0f));
            __syncwarp();
        }
    stage.post(tile);
}
