// The epilogue of a tile of a pair: the warpgroups that multiply pass on finished halves and continue; an otherwise
// idle warp stores them and posts.
#pragma once

#include "common.cuh"
#include "dealing.cuh"
#include "ends.cuh"

// Columns of a buffer, whose 64 rows of 128 bytes are swizzled as TMA would: chunk c of row r lies at c ^ (r % 8).
constexpr int HANDED_COLUMNS = 64;
constexpr int HANDED_BUFFERS = BUFFERS / 2;  // of a warpgroup

template <class S>
constexpr int HANDED_PASSES = (S::TILE_COLUMNS + HANDED_COLUMNS - 1) / HANDED_COLUMNS;

__device__ __forceinline__ u32 handed_buffer(u32 group, u32 slot) { return group * HANDED_BUFFERS + slot; }

// If k is cut, the early task of a tile passes its sums to the late one through memory: each warp to the warp that
// adds to the same sums. Lines come first, in which a word per warp says that its sums have arrived; the reader
// clears it for the next run.
template <class S>
__device__ __forceinline__ s32* partial_word(unsigned char* partials, int tile, Rank rank, u32 thread) {
    return reinterpret_cast<s32*>(partials) + (2 * tile + rank.half) * FLAG_WORDS + thread / 32;
}

// The partial sums of this thread: four at a time, a block's threads side by side.
template <class S>
__device__ __forceinline__ float4* partial_sums(unsigned char* partials, int tile, Rank rank, u32 thread) {
    float4* const sums = reinterpret_cast<float4*>(partials + 2 * S::TILES * FLAG_WORDS * sizeof(s32));
    return sums + static_cast<long long>(2 * tile + rank.half) * (S::WIDTH / 8 * CONSUMERS) + thread;
}

template <class S>
__device__ __forceinline__ void put_partial(const float (&sums)[S::WIDTH / 2], unsigned char* partials, int tile,
                                            Rank rank, u32 thread) {
    float4* const to = partial_sums<S>(partials, tile, rank, thread);
#pragma unroll
    for (int i = 0; i < S::WIDTH / 8; ++i)
        store_global_f32x4(to + i * CONSUMERS,
                           make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
    __syncwarp();
    if (thread % 32 == 0) add_release_gpu_s32(partial_word<S>(partials, tile, rank, thread), 1);
}

template <class S>
__device__ __forceinline__ void add_partial(float (&sums)[S::WIDTH / 2], unsigned char* partials, int tile, Rank rank,
                                            u32 thread) {
    s32* const word = partial_word<S>(partials, tile, rank, thread);
    if (thread % 32 == 0) {
        until([=] { return load_acquire_gpu_s32(word) != 0; });
        *word = 0;
    }
    __syncwarp();
    const float4* const from = partial_sums<S>(partials, tile, rank, thread);
#pragma unroll
    for (int i = 0; i < S::WIDTH / 8; ++i) {
        if (i % 8 == 0) __syncwarp();  // not all of them at once, which would take more registers than are available
        const float4 part = load_global_f32x4(from + i * CONSUMERS);
        sums[4 * i] += part.x, sums[4 * i + 1] += part.y, sums[4 * i + 2] += part.z, sums[4 * i + 3] += part.w;
    }
}

// A warpgroup's side.
struct Handing {
    const Arguments& arguments;
    u32 shared;
    u32 thread;
    Ring<HANDED_BUFFERS> ring;

    // All columns of this thread's two rows, pass by pass.
    template <class S, int PASS = 0>
    __device__ __forceinline__ void passes(const float (&sums)[S::WIDTH / 2], const Task& task, int first, int rows) {
        if constexpr (PASS < HANDED_PASSES<S>) {
            constexpr int FIRST = PASS * HANDED_COLUMNS;
            constexpr int LAST = FIRST + HANDED_COLUMNS < S::TILE_COLUMNS ? FIRST + HANDED_COLUMNS : S::TILE_COLUMNS;
            const StageTensors& tensors = arguments.stage[S::INDEX];
            const u32 lane = thread % 32, buffer = handed_buffer(thread / 128, ring.slot);
            const int top = thread / 32 * 16, row = top + lane / 4,
                      across = task.column * S::TILE_COLUMNS + lane % 4 * 2;
            // The address that stmatrix expects for this lane's row of the four squares of eight: two of rows, twice
            // two chunks.
            const u32 own = shared + BUFFER_AT + buffer * BUFFER_BYTES + (top % 64 + lane % 16) * 128 +
                            ((lane / 16 ^ lane % 8) << 4);
            wait_cta(shared + SUMS_FREE + 8 * buffer, ring.turn ^ 1);
#pragma unroll
            for (int column = FIRST; column < LAST; column += 16) {
                u32 squares[4] = {};
#pragma unroll
                for (int square = 0; square < (LAST - column < 16 ? 2 : 4); ++square) {
                    const int eight = column + square / 2 * 8, down = square % 2 * 8;
                    const float* two = sums + eight / 2 + square % 2 * 2;
                    const Two factor = S::GATED ? Two{two[S::SEGMENT / 2], two[S::SEGMENT / 2 + 1]} : Two{1.0f, 1.0f};
                    squares[square] = finished<S>(tensors, shared, {two[0], two[1]}, factor, first + row + down,
                                                  across + eight, row + down < rows);
                }
                store_matrices_shared(own ^ (column - FIRST) * 2, squares);
            }
            __syncwarp();
            if (lane == 0) mbarrier_arrive_release_cta(shared + SUMS_FULL + 8 * buffer);
            ring.advance();
            passes<S, PASS + 1>(sums, task, first, rows);
        }
    }
};

// The storing warp's side: four rows at a time, of which each lane has a chunk.
template <class S>
__device__ __forceinline__ void store_handed(void* out, u32 from, long long first, int rows, int column, int columns) {
    constexpr int AT_ONCE = 8;
    const int lane = threadIdx.x % 32, chunk = lane % 8, row = lane / 8;
    const int most = chunk * 8 < columns && column + chunk * 8 < S::N ? rows : 0;
    unsigned short* to = static_cast<unsigned short*>(out) + (first + row) * S::OUT_ROW + column + chunk * 8;
    const u32 even = from + row * 128 + ((chunk ^ row) << 4), odd = even ^ 4 << 4;
#pragma unroll 1
    for (int begin = 0; begin < 64; begin += 4 * AT_ONCE, to += 4 * AT_ONCE * S::OUT_ROW) {
        float4 eight[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) eight[i] = load_shared_f32x4((i % 2 ? odd : even) + (begin + 4 * i) * 128);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            if (begin + 4 * i + row < most) store_global_f32x4(to + 4 * i * S::OUT_ROW, eight[i]);
    }
}

__device__ __forceinline__ void store_and_post(const Arguments& arguments, u32 shared, Rank rank, const Tasks& tasks) {
    const u32 lane = threadIdx.x % 32;
    Ring<HANDED_BUFFERS> ring;
    for_tasks(arguments, tasks, [&](auto stage, const auto& task, int) {
        using S = decltype(stage);
        if (S::CUT > 0 && task.early()) return;
        const int first = first_row<S>(task, rank), left = S::M - first,
                  rows = left < S::BLOCK_ROWS ? left : S::BLOCK_ROWS;
        for (int column = 0; column < S::TILE_COLUMNS; column += HANDED_COLUMNS, ring.advance()) {
#pragma unroll 1
            for (int group = 0; group < 2; ++group) {
                const u32 buffer = handed_buffer(group, ring.slot);
                wait_cta(shared + SUMS_FULL + 8 * buffer, ring.turn);
                store_handed<S>(arguments.stage[S::INDEX].out, shared + BUFFER_AT + buffer * BUFFER_BYTES,
                                first + group * 64, rows - group * 64, task.column * S::TILE_COLUMNS + column,
                                S::TILE_COLUMNS - column);
                __syncwarp();
                if (lane == 0) mbarrier_arrive_release_cta(shared + SUMS_FREE + 8 * buffer);
            }
        }
        const int posts = task.posts_end - task.post;
        if constexpr (DEALT) {
            fence_proxy_async_global();
            __syncwarp();
            post_dealt(arguments, shared, task);
        } else if (posts > 0) {
            fence_proxy_async_global();
            __syncwarp();
#pragma unroll 1
            for (int post = lane; post < posts; post += 32)
                add_release_gpu_s32(arguments.flags + arguments.posts[task.post + post] * FLAG_WORDS, 1);
        }
    });
}
