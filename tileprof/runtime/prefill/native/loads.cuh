// The two warps that load: weights, far ahead of everything, and activations, as soon as other blocks have stored them.
#pragma once

#include "common.cuh"

// A block's tasks of a product.
template <class P, class Work>
__device__ __forceinline__ void for_tasks(Work&& work) {
#pragma unroll 1
    for (int task = blockIdx.x; task < P::TASKS; task += BLOCKS) work(task);
}

// A broadcast from lane 0 tells ptxas that all lanes read the same: descriptors then stay in uniform registers, which
// products read.
__device__ __forceinline__ u32 uniform(u32 value) { return __shfl_sync(~0u, value, 0); }

// This block's part of COUNT pieces of work that are spread over the chip, some blocks apart.
template <int COUNT, class Work>
__device__ __forceinline__ void for_spread(Work&& work) {
    constexpr int APART = BLOCKS / COUNT > 1 ? BLOCKS / COUNT : 1;
    if (blockIdx.x % APART != 0) return;
#pragma unroll 1
    for (int number = blockIdx.x / APART; number < COUNT; number += BLOCKS / APART) work(number);
}

// Streams weights through all stages and layers in program order. It waits only for free slots.
struct Weights {
    Block& block;
    Ring<SLOTS> ring = {}, landed = {};  // landed: IN_FLIGHT slots behind the one that is filled
    int issued = 0;

    // Lane i copies rows of weights `row(i)` of the map `map(i)`, four boxes of a tile. If more copies are in flight
    // than the memory can answer at once, the small loads of all threads wait.
    template <class P, class Box>
    __device__ void tile(int task, Box&& box) {
        const TensorMap* map;
        int row;
        box(static_cast<int>(block.lane), map, row);
        if (block.lane < TILE / BOX) prefetch_tensormap(map);
#pragma unroll 1
        for (int chunk = P::begin(task); chunk < P::end(task); ++chunk) {
            if (issued >= IN_FLIGHT) {
                wait_local(block.shared + W_FULL + 8 * landed.slot, landed.turn);
                landed.advance();
            }
            ++issued;
            wait_local(block.shared + W_FREE + 8 * ring.slot, ring.turn ^ 1);
            const u32 full = block.shared + W_FULL + 8 * ring.slot;
            if (block.lane == 0) mbarrier_arrive_expect_release_cta(full, WEIGHT_BYTES);
            __syncwarp();
            if (block.lane < TILE / BOX)
                copy_tensor_3d(block.shared + ring.slot * WEIGHT_BYTES + block.lane * (2 * K_CHUNK * BOX), map, full,
                               chunk * K_CHUNK, row, 0, EVICT_FIRST);
            ring.advance();
        }
    }

    __device__ void run() {
        const TensorMap* const maps = block.p.maps;
#pragma unroll 1
        for (int layer = 0; layer < LAYERS; ++layer) {
            const TensorMap* const of = maps + layer * LAYER_MAPS;
            for_tasks<Qkv>([&](int task) {
                tile<Qkv>(task, [&](int lane, const TensorMap*& map, int& row) {
                    row = Qkv::tile(task) * TILE + lane * BOX;
                    map = of + (row < QUERY ? MAP_QUERY : row < QUERY + KEY ? MAP_KEY : MAP_VALUE);
                    row -= row < QUERY ? 0 : row < QUERY + KEY ? QUERY : QUERY + KEY;
                });
            });
            for_tasks<Output>([&](int task) {
                tile<Output>(task, [&](int lane, const TensorMap*& map, int& row) {
                    map = of + MAP_OUTPUT, row = Output::tile(task) * TILE + lane * BOX;
                });
            });
            // A warpgroup's 64 columns are 32 of the gate and the 32 that they gate.
            for_tasks<Gate>([&](int task) {
                tile<Gate>(task, [&](int lane, const TensorMap*& map, int& row) {
                    map = of + (lane % 2 ? MAP_UP : MAP_GATE), row = task * GATE_COLUMNS + lane / 2 * BOX;
                });
            });
            for_tasks<Down>([&](int task) {
                tile<Down>(task, [&](int lane, const TensorMap*& map, int& row) {
                    map = of + MAP_DOWN, row = Down::tile(task) * TILE + lane * BOX;
                });
            });
        }
        for_tasks<Head>([&](int task) {
            tile<Head>(task, [&](int lane, const TensorMap*& map, int& row) {
                map = maps + MAP_HEAD, row = task * TILE + lane * BOX;
            });
        });
    }
};

// Loads the activations that this block's tasks multiply.
struct Activations {
    Block& block;
    Ring<ACTIVATION_SLOTS> ring = {};

    __device__ void copy(const TensorMap* map, int chunk) {
        wait_local(block.shared + A_FREE + 8 * ring.slot, ring.turn ^ 1);
        if (block.lane == 0) {
            const u32 full = block.shared + A_FULL + 8 * ring.slot;
            mbarrier_arrive_expect_release_cta(full, ACTIVATION_BYTES);
            copy_tensor_4d(block.shared + ACTIVATIONS_AT + ring.slot * ACTIVATION_BYTES, map, full, chunk * K_CHUNK, 0,
                           0, 0, EVICT_NORMAL);
        }
        ring.advance();
    }

    // Waits for a task that reads whole rows: all of them must have been stored.
    template <class P>
    __device__ void rows(int map, int flags, int per_launch) {
        bool ready = false;
        for_tasks<P>([&](int task) {
            if (!ready) wait_flags(block, P::STAGE, flags, ROWS, per_launch);
            ready = true;
            fence_proxy_async_global();
#pragma unroll 1
            for (int chunk = P::begin(task); chunk < P::end(task); ++chunk) copy(block.p.maps + map, chunk);
        });
    }

    // Waits for a task whose chunks of k have `EACH` flags each: chunk by chunk.
    template <class P, int EACH>
    __device__ void chunks(int map, int flags) {
        for_tasks<P>([&](int task) {
            const int end = P::end(task);
            Patience patience;
#pragma unroll 1
            for (int first = P::begin(task); first < end; first += 32) {
                const int mine = first + static_cast<int>(block.lane), most = end < first + 32 ? end : first + 32;
                bool there = mine >= most;
#pragma unroll 1
                for (int next = first; next < most;) {
                    for (int i = 0; !there; ++i) {
                        const int flag = flags + mine * EACH + i;
                        if (!passed(block, flag, LAYERS)) {
                            nanosleep(20);
                            if (!passed(block, flag, LAYERS)) {
                                there = !patience.more(block, P::STAGE, flag);
                                break;
                            }
                        }
                        if (i + 1 == EACH) there = true;
                    }
                    const int ready = __reduce_min_sync(~0u, there ? most : mine);
                    fence_proxy_async_global();
                    for (; next < ready; ++next) copy(block.p.maps + map, next);
                }
            }
        });
    }

    __device__ void run() {
#pragma unroll 1
        for (block.layer = 0; block.layer < LAYERS; ++block.layer) {
            rows<Qkv>(MAP_NORMED, NORMED_FLAGS, LAYERS + 1);
            chunks<Output, QUERY_TASKS>(MAP_ATTENDED, ATTENDED_FLAGS);
            rows<Gate>(MAP_MIDDLE, MIDDLE_FLAGS, LAYERS);
            chunks<Down, 1>(MAP_ACTIVATED, ACTIVATED_FLAGS);
        }
        rows<Head>(MAP_NORMED, NORMED_FLAGS, LAYERS + 1);
    }
};
