// One launch for a token of each of up to eight sequences: all layers of a decoder, its last norm and its head.
//
// One block per SM. In a block
//
//     warp 8       streams weights and caches through a ring in shared memory, through all stages in program order.
//                  It waits for free slots only.
//     warps 0 - 7  multiply, attend, finish; they wait for what other blocks hand over, in memory where each word is
//                  absent until it is written.
//
//     weights, caches --bulk copies--> [ slot | slot | ... ] --> mma.sync, sums over warps --> halves, word by word
//
// "config.h" is made by decoder_build.py: the sizes of the model. Rounding is where PyTorch rounds.
#include "attention.cuh"
#include "common.cuh"
#include "product.cuh"
#include "stream.cuh"

__device__ __forceinline__ u32 residual_sum(u32 residual, float first, float second) {
    return pack(low(residual) + rounded(first), high(residual) + rounded(second));
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// Activations that enter a layer.
struct Entering {
    const Block& block;

    __device__ bool handed() const { return block.layer > 0; }

    __device__ const u16* row(int token) const {
        if (block.layer > 0) return reinterpret_cast<const u16*>(block.words(OUT_AT) - LAYER_WORDS) + token * HIDDEN;
        return block.p.embedding + (block.p.tokens == nullptr ? token : block.p.tokens[token]) * HIDDEN;
    }
};

__device__ __forceinline__ void qkv(Block& block, const Layer& layer) {
    const Share share = qkv_share(block.layer);
    if (share.count == 0) return;
    const Entering entering{block};
    Normalised<HIDDEN> x;
    x.load(block, STAGE_QKV, layer.norm, entering.handed(), [&](int token) { return entering.row(token); });
    product_of_normalised(x, block, share.count, [&](int tile, int first) {
        delay(block, STAGE_QKV);
        for (int number = block.lane; number < 2 * 4 * BATCH; number += 32) {
            const Word w(number);
            if (first + w.group >= share.count) continue;
            const int row = w.group * GROUP + 2 * w.pair, column = share.group(first + w.group) * GROUP + 2 * w.pair;
            float one = added(block, tile, row, w.token), two = added(block, tile, row + 1, w.token);
            if constexpr (QKV_BIAS) {
                const u16* const bias = column < QUERY
                                            ? layer.query_bias + column
                                            : (column < QUERY + KEY ? layer.key_bias + (column - QUERY)
                                                                    : layer.value_bias + (column - QUERY - KEY));
                one += unpack(bias[0]), two += unpack(bias[1]);
            }
            block.hand(QKV_AT + (w.token * QKV + column) / 2, pack(one, two));
        }
    });
    stamp(block, STAGE_QKV, 2);
    stamp(block, STAGE_QKV, 3);
}

// A product that adds to the residual: `before` gives the address of a word of the residual, which may be absent if
// `handed`.
template <int K, class Before>
__device__ __forceinline__ void residual_product(Block& block, int stage, int from, int to, const Share& share,
                                                 bool handed, Before&& before) {
    if (share.count == 0) return;
    const int sweep = share.count < 2 * TILES_HELD ? share.count : 2 * TILES_HELD;
    u32 early[1] = {0};  // loaded long before it is needed
    if (static_cast<int>(block.thread) < sweep * 4 * BATCH) {
        const Word w(block.thread);
        load_relaxed(early[0], before(w.token, share.group(w.group) * GROUP + 2 * w.pair), true);
    }
    product_of_handed<K>(block, stage, block.words(from), share.count, [&](int first, int groups) {
        stamp(block, stage, 2);
        delay(block, stage);
        for (int number = block.thread; number < groups * 4 * BATCH; number += CONSUMERS) {
            const Word w(number);
            const int tile = w.group / 2, row = w.group % 2 * GROUP + 2 * w.pair,
                      column = share.group(first + w.group) * GROUP + 2 * w.pair;
            u32 residual[1] = {first == 0 && number < CONSUMERS ? early[0]
                                                                : (handed ? ABSENT : *before(w.token, column))};
            if (handed) arrive(residual, block, stage, [&](int) { return before(w.token, column); });
            block.hand(to + (w.token * HIDDEN + column) / 2, residual_sum(residual[0], added(block, tile, row, w.token),
                                                                          added(block, tile, row + 1, w.token)));
        }
        stamp(block, stage, 3);
    });
}

__device__ __forceinline__ void gate(Block& block, const Layer& layer) {
    const Share share = gate_share(block.layer);
    if (share.count == 0) return;
    Normalised<HIDDEN> x;
    x.load(block, STAGE_GATE, layer.middle_norm, true,
           [&](int token) { return reinterpret_cast<const u16*>(block.words(MIDDLE_AT)) + token * HIDDEN; });
    product_of_normalised(x, block, 2 * share.count,
                          [&](int tile, int first) {  // the first group of a tile has gates, the second what they gate
                              delay(block, STAGE_GATE);
                              if (block.lane >= 4 * BATCH) return;
                              const Word w(block.lane);
                              const int row = 2 * w.pair, column = share.group(first / 2) * GROUP + row;
                              float two[2];
#pragma unroll
                              for (int i = 0; i < 2; ++i) {
                                  const float gate = rounded(added(block, tile, row + i, w.token)),
                                              up = rounded(added(block, tile, GROUP + row + i, w.token));
                                  two[i] = rounded(silu(gate)) * up;
                              }
                              block.hand(ACTIVATED_AT + (w.token * INTERMEDIATE + column) / 2, pack(two[0], two[1]));
                          });
    stamp(block, STAGE_GATE, 2);
    stamp(block, STAGE_GATE, 3);
}

__device__ __forceinline__ void head(Block& block) {
    block.layer = LAYERS;
    const Entering entering{block};
    Normalised<HIDDEN> x;
    x.load(block, STAGE_HEAD, block.p.norm, true, [&](int token) { return entering.row(token); });
    product_of_coming(x, block, HEAD_GROUPS, [&](int tiles) {
        for (int number = block.thread; number < tiles * 2 * 4 * BATCH; number += CONSUMERS) {
            const Word w(number);
            const int tile = w.group / 2, row = w.group % 2 * GROUP + 2 * w.pair,
                      group = group_of(block, tile, w.group % 2);
            const s64 column = static_cast<s64>(group) * GROUP + 2 * w.pair;
            if (group < HEAD_GROUPS)
                block.p.logits[(w.token * static_cast<s64>(VOCABULARY) + column) / 2] =
                    pack(added(block, tile, row, w.token), added(block, tile, row + 1, w.token));
        }
    });
    stamp(block, STAGE_HEAD, 3);
}

__device__ __forceinline__ void layers(Block& block) {
#pragma unroll 1
    for (block.layer = 0; block.layer < LAYERS; ++block.layer) {
        const Layer& layer = block.p.layers[block.layer];
        const Entering entering{block};
        qkv(block, layer);
        attend(block, layer);
        residual_product<QUERY>(
            block, STAGE_OUTPUT, ATTENDED_AT, MIDDLE_AT, output_share(block.layer), entering.handed(),
            [&](int token, int column) { return reinterpret_cast<const u32*>(entering.row(token) + column); });
        gate(block, layer);
        residual_product<INTERMEDIATE>(
            block, STAGE_DOWN, ACTIVATED_AT, OUT_AT, down_share(block.layer), true,
            [&](int token, int column) { return block.words(MIDDLE_AT) + (token * HIDDEN + column) / 2; });
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, 1) decoder(const __grid_constant__ Parameters p) {
    extern __shared__ unsigned char memory[];
    const u32 shared = (shared_address(memory) + 127) / 128 * 128;
    const u32 thread = threadIdx.x;
    if (thread == 0) {
        init_ring<SLOTS>(shared + FULL_AT, shared + FREE_AT, 1, WARPS);
        fence_mbarrier_init_release_cluster();
        store_shared_s32(shared + ABORTED_AT, 0);
    }
    __syncthreads();
    const s64 last = WITH_MASK ? CACHE - 1 : *p.last;
    const int limit = last + 1 < CACHE ? static_cast<int>(last) + 1 : CACHE;
    const int cached = limit > 1 ? limit - 1 : 1,
              share = (cached + MOST_CHUNKS - 1) / MOST_CHUNKS;  // the newest position is in the last chunk
    const int chunk = share < SMALLEST_CHUNK ? SMALLEST_CHUNK : (share + CHUNK_STEP - 1) / CHUNK_STEP * CHUNK_STEP;
    const bool odd = load_relaxed_gpu_s32(p.state + EPOCH) % 2 != 0;
    Block block{p,           shared,     p.sets + (odd ? SET_WORDS : 0), p.sets + (odd ? 0 : SET_WORDS),
                limit,       chunk,      (cached + chunk - 1) / chunk,   thread,
                thread / 32, thread % 32};
    if (block.warp == WARPS) {
        Stream{block}.run();
    } else {
        layers(block);
        head(block);
    }
    __syncthreads();
    if (thread == 0) store_shared_s32(shared + ABORTED_AT, fetch_add_acq_rel_gpu_s32(p.state + LEFT, 1) == BLOCKS - 1);
    __syncthreads();
    if (load_shared_s32(shared + ABORTED_AT) == 0)
        return;  // the last block: all others have read the epoch and the counters
    for (int layer = thread; layer < LAYERS; layer += CONSUMERS + 32) *p.layers[layer].counter += 1;
    if (thread == 0) p.state[LEFT] = 0, p.state[HEAD_NEXT] = 0, p.state[EPOCH] += 1;
}
