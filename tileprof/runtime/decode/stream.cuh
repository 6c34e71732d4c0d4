// The warp that streams weights and caches: through all stages, in program order, waiting for free slots of the ring and for nothing else.
#pragma once

#include "common.cuh"

struct Stream {
    Block& block;

    __device__ u32 free_slot(u32 bytes) {
        Ring& ring = block.ring;
        wait_local(block.shared + FREE_AT + 8 * ring.slot, ring.turn ^ 1);
        if (block.lane == 0) mbarrier_arrive_expect_release_cta(block.shared + FULL_AT + 8 * ring.slot, bytes);
        __syncwarp();
        return ring.slot;
    }

    template <int K>
    __device__ void copy_group(const u16* rows, int piece) {
        constexpr int PIECES = (K + PIECE - 1) / PIECE;
        const u32 bytes = 2 * (piece + 1 < PIECES ? PIECE : K - (PIECES - 1) * PIECE);
        const u32 slot = free_slot(GROUP * bytes);
        if (block.lane < GROUP)
            copy_bulk(block.shared + slot * SLOT_BYTES + block.lane * ROW_BYTES, rows + static_cast<s64>(block.lane) * K + piece * PIECE, bytes,
                      block.shared + FULL_AT + 8 * slot, EVICT_FIRST);
        block.ring.advance();
    }

    // A product's weights, TOGETHER groups of eight rows at a time, piece by piece; `rows(i)` is where the i-th group of K columns begins.
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

    // The keys and values of the block's chunks. The row of the new token may be read while it is written: nobody uses it.
    __device__ void caches(const Layer& layer) {
        for (int task = blockIdx.x; task < BATCH * KV_HEADS * block.chunks; task += BLOCKS) {
            const Chunk chunk(block, task);
            for (int at = chunk.begin; at < chunk.end; at += SLOT_POSITIONS) {
                const u32 bytes = 2 * HEAD_DIM * (chunk.end - at < SLOT_POSITIONS ? chunk.end - at : SLOT_POSITIONS);
                const u32 slot = free_slot(2 * bytes), to = block.shared + slot * SLOT_BYTES;
                if (block.lane < 2)
                    copy_bulk(to + block.lane * (2 * HEAD_DIM * SLOT_POSITIONS),
                              (block.lane == 0 ? layer.keys : layer.values) + (chunk.first_row() + at) * HEAD_DIM, bytes,
                              block.shared + FULL_AT + 8 * slot, EVICT_FIRST);
                block.ring.advance();
            }
        }
    }

    __device__ void run() {
        const Parameters& p = block.p;
#pragma unroll 1
        for (int number = 0; number < LAYERS; ++number) {
            const Layer& layer = p.layers[number];
            const Share qkv = qkv_share(number), output = output_share(number), gate = gate_share(number), down = down_share(number);
            weights<HIDDEN, 2>(qkv.count, [&](int i) {
                const s64 row = static_cast<s64>(qkv.group(i)) * GROUP;
                return row < QUERY ? layer.query + row * HIDDEN
                                   : (row < QUERY + KEY ? layer.key + (row - QUERY) * HIDDEN : layer.value + (row - QUERY - KEY) * HIDDEN);
            });
            caches(layer);
            weights<QUERY, 2 * TILES_HELD>(output.count, [&](int i) { return layer.output + static_cast<s64>(output.group(i)) * GROUP * QUERY; });
            weights<HIDDEN, 2>(2 * gate.count, [&](int i) { return (i % 2 ? layer.up : layer.gate) + static_cast<s64>(gate.group(i / 2)) * GROUP * HIDDEN; });
            weights<INTERMEDIATE, 2 * TILES_HELD>(down.count, [&](int i) { return layer.down + static_cast<s64>(down.group(i)) * GROUP * INTERMEDIATE; });
        }
        const Share head = head_share();
        weights<HIDDEN, 2>(head.count, [&](int i) { return p.head + static_cast<s64>(head.group(i)) * GROUP * HIDDEN; });
    }
};
