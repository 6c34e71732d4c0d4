// The warp that streams weights and caches: through all stages, in program order, waiting only for free slots of the
// ring.
#pragma once

#include "common.cuh"

struct Stream {
    Block& block;
    Ring<SLOTS> landed = {};  // IN_FLIGHT slots behind the one that is filled
    int issued = 0;

    // If more copies are in flight than the memory can answer at once, the small loads of all threads wait behind
    // them.
    __device__ u32 free_slot(u32 bytes, int group = 0) {
        Ring<SLOTS>& ring = block.ring;
        if (issued >= IN_FLIGHT) {
            wait_local(block.shared + FULL_AT + 8 * landed.slot, landed.turn);
            landed.advance();
        }
        ++issued;
        wait_local(block.shared + FREE_AT + 8 * ring.slot, ring.turn ^ 1);
        if (block.lane == 0) {
            store_shared_s32(block.shared + GROUPS_AT + 4 * ring.slot, group);
            mbarrier_arrive_expect_release_cta(block.shared + FULL_AT + 8 * ring.slot, bytes);
        }
        __syncwarp();
        return ring.slot;
    }

    template <int K>
    __device__ void copy_group(const u16* rows, int piece, int group = 0) {
        constexpr int PIECES = (K + PIECE - 1) / PIECE;
        const u32 bytes = 2 * (piece + 1 < PIECES ? PIECE : K - (PIECES - 1) * PIECE);
        const u32 slot = free_slot(GROUP * bytes, group);
        if (block.lane < GROUP)
            copy_bulk(block.shared + slot * SLOT_BYTES + block.lane * ROW_BYTES,
                      rows + static_cast<s64>(block.lane) * K + piece * PIECE, bytes, block.shared + FULL_AT + 8 * slot,
                      EVICT_FIRST);
        block.ring.advance();
    }

    // Streams a product's weights, TOGETHER groups of eight rows at a time, piece by piece; `rows(i)` is the address
    // of the i-th group of K columns.
    template <int K, int TOGETHER, class Rows>
    __device__ void weights(int groups, Rows&& rows) {
#pragma unroll 1
        for (int first = 0; first < groups; first += TOGETHER) {
            const int end = first + TOGETHER < groups ? first + TOGETHER : groups;
#pragma unroll 1
            for (int piece = 0; piece * PIECE < K; ++piece)
#pragma unroll 1
                for (int i = first; i < end; ++i) copy_group<K>(rows(i), piece);
        }
    }

    // Streams the keys and values of the block's chunks. The row of the new token may be read while it is written: it
    // is not used.
    __device__ void caches(const Layer& layer) {
        for (int task = blockIdx.x; task < BATCH * KV_HEADS * block.chunks; task += BLOCKS) {
            const Chunk chunk(block, task);
            for (int at = chunk.begin; at < chunk.end; at += SLOT_POSITIONS) {
                const u32 bytes = 2 * HEAD_DIM * (chunk.end - at < SLOT_POSITIONS ? chunk.end - at : SLOT_POSITIONS);
                const u32 slot = free_slot(2 * bytes), to = block.shared + slot * SLOT_BYTES;
                if (block.lane < 2)
                    copy_bulk(to + block.lane * (2 * HEAD_DIM * SLOT_POSITIONS),
                              (block.lane == 0 ? layer.keys : layer.values) + (chunk.first_row() + at) * HEAD_DIM,
                              bytes, block.shared + FULL_AT + 8 * slot, EVICT_FIRST);
                block.ring.advance();
            }
        }
    }

    __device__ void run() {
        const Parameters& p = block.p;
#pragma unroll 1
        for (int number = 0; number < LAYERS; ++number) {
            const Layer& layer = p.layers[number];
            const Share qkv = qkv_share(number), output = output_share(number), gate = gate_share(number),
                        down = down_share(number);
            weights<HIDDEN, 2>(qkv.count, [&](int i) {
                const s64 row = static_cast<s64>(qkv.group(i)) * GROUP;
                return row < QUERY ? layer.query + row * HIDDEN
                                   : (row < QUERY + KEY ? layer.key + (row - QUERY) * HIDDEN
                                                        : layer.value + (row - QUERY - KEY) * HIDDEN);
            });
            caches(layer);
            weights<QUERY, 2 * TILES_HELD>(
                output.count, [&](int i) { return layer.output + static_cast<s64>(output.group(i)) * GROUP * QUERY; });
            weights<HIDDEN, 2>(2 * gate.count, [&](int i) {
                return (i % 2 ? layer.up : layer.gate) + static_cast<s64>(gate.group(i / 2)) * GROUP * HIDDEN;
            });
            weights<INTERMEDIATE, 2 * TILES_HELD>(
                down.count, [&](int i) { return layer.down + static_cast<s64>(down.group(i)) * GROUP * INTERMEDIATE; });
        }
        head();
    }

    // Blocks take the head's weights dynamically, except the first ones, because some SMs get more of the memory's
    // bandwidth than others.
    __device__ void head() {
        const Parameters& p = block.p;
        int tile = blockIdx.x;
        for (int number = 0; tile < HEAD_TILES; ++number) {
            const bool fixed = number + 1 < HEAD_FIXED;
            int next = tile + BLOCKS;
            if (!fixed && block.lane == 0) next = fetch_add_relaxed_gpu_s32(p.state + HEAD_NEXT, 1);
            const int end = 2 * tile + 2 < HEAD_GROUPS ? 2 * tile + 2 : HEAD_GROUPS;
#pragma unroll 1
            for (int piece = 0; piece * PIECE < HIDDEN; ++piece)
#pragma unroll 1
                for (int group = 2 * tile; group < end; ++group)
                    copy_group<HIDDEN>(p.head + static_cast<s64>(group) * GROUP * HIDDEN, piece, group);
            tile = fixed ? next : __shfl_sync(~0u, next, 0) + HEAD_FIXED * BLOCKS;
        }
        if (block.lane == 0) {
            wait_local(block.shared + FREE_AT + 8 * block.ring.slot, block.ring.turn ^ 1);
            store_shared_s32(block.shared + GROUPS_AT + 4 * block.ring.slot, -1);
            mbarrier_arrive_release_cta(block.shared + FULL_AT + 8 * block.ring.slot);
        }
    }
};
