// Shared by the kernels that compute a whole decoder in one launch. config.h defines LAYERS, PROFILE, DELAY_NS and
// TIMEOUT_NS. A `Block` is a thread's view of the launch: the kernel's parameters `p`, `shared`, `thread`, `warp`,
// `layer`, STAGE_COUNT, launch() (the number of earlier launches), aborted() and abort().
#pragma once

#include "absent.cuh"
#include "ring_waits.cuh"

using u16 = unsigned short;
using s64 = long long;

// Words of Parameters::state. HEAD_NEXT: the next tile of the head, if blocks take turns.
enum State : int { EPOCH = 0, LEFT = 1, GAVE_UP = 2, HEAD_NEXT = 3, RECORD = 8, RECORD_WORDS = 8 };

__device__ __forceinline__ float low(u32 two) { return unpack(static_cast<u16>(two)); }
__device__ __forceinline__ float high(u32 two) { return unpack(static_cast<u16>(two >> 16)); }
__device__ __forceinline__ float rounded(float x) { return low(pack(x, 0.0f)); }

// For tests: sleeps up to DELAY_NS, a different time per block, layer, stage and launch.
template <class Block>
__device__ __forceinline__ void delay(const Block& block, int stage) {
    if constexpr (DELAY_NS > 0) {
        random_sleep((blockIdx.x + 1) * 40503u + (block.layer * Block::STAGE_COUNT + stage + 1) * 58757u +
                     block.launch() * 30011u + block.warp * 7919u);
    }
}

// For a profile: the time at which a block is at a place of a stage.
template <class Block>
__device__ __forceinline__ void stamp(const Block& block, int stage, int place) {
    if constexpr (PROFILE)
        if (block.thread == 0) {
            const s64 row = static_cast<s64>(blockIdx.x) * (LAYERS + 1) + block.layer;
            block.p.clocks[(row * Block::STAGE_COUNT + stage) * 4 + place] = globaltimer();
        }
}

// A wait for other blocks that counts its tries, and ends when the launch has timed out.
struct Patience {
    u64 start = 0;
    u32 tries = 0;

    // Returns whether to continue waiting. `awaited` goes into the record: see the file of the kernel's launch.
    template <class Block>
    __device__ bool more(const Block& block, int stage, s32 awaited) {
        if (++tries % 64 != 0) return true;
        if (block.aborted()) return false;
        if (start == 0) start = globaltimer();
        s32* const state = block.p.state;
        const bool late = globaltimer() - start > TIMEOUT_NS;
        if (late && compare_and_swap_relaxed_gpu_s32(state + GAVE_UP, 0, 1) == 0) {
            state[RECORD] = stage, state[RECORD + 1] = block.layer, state[RECORD + 2] = blockIdx.x;
            state[RECORD + 3] = block.warp, state[RECORD + 4] = awaited, state[RECORD + 5] = block.launch();
        }
        if (late || load_relaxed_gpu_s32(state + GAVE_UP) != 0) {
            block.abort();
            return false;
        }
        return true;
    }
};
