// One launch for a layer of experts on sm_90: tokens are routed, and what their experts compute is known only then.
//
// One block per SM. In a block
//
//     warp 0       fetches tasks, ahead of the one that is worked on, and loads what products read into a ring.
//     warp 1       posts what has been stored: tiles of rows that exist now, tasks that may begin.
//     warps 4-11   two warpgroups: route, multiply, finish, store.
#include "common.cuh"
#include "dealing.cuh"

// K-major, 128-byte swizzle: eight rows of 128 bytes are an atom, atoms follow each other.
__device__ __forceinline__ u64 descriptor(u32 address) {
    return static_cast<u64>((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

__device__ __forceinline__ void load_tile(const Arguments& p, u32 shared, Ring<SLOTS>& ring, int kind, int number) {
    const int tile = number / (kind == UP ? UPS : DOWNS), column = number % (kind == UP ? UPS : DOWNS),
              expert = tile / HIGH, blocks = (kind == UP ? WIDTH : INNER) / K_BLOCK;
    const u32 bytes = A_BYTES + (kind == UP ? B_BYTES : B_BYTES / 2);
    for (int k = 0; k < blocks; ++k, ring.advance()) {
        const u32 full = shared + FULL_AT + 8 * ring.slot, a = shared + ring.slot * A_BYTES,
                  b = shared + B_AT + ring.slot * B_BYTES;
        wait_cta(shared + FREE_AT + 8 * ring.slot, ring.turn ^ 1);
        mbarrier_arrive_expect_release_cta(full, bytes);
        copy_tensor_4d(a, kind == UP ? &p.sorted : &p.inner, full, k * K_BLOCK, tile * ROWS, 0, 0, EVICT_NORMAL);
        if (kind == UP) {  // per warpgroup the gates of 32 columns, then what they gate
            for (int half = 0; half < 4; ++half)
                copy_tensor_3d(b + half * (B_BYTES / 4), &p.up, full, k * K_BLOCK, 0,
                               expert * 2 * INNER + half % 2 * INNER + column * COLUMNS + half / 2 * 32, EVICT_NORMAL);
        } else {
            for (int half = 0; half < 2; ++half)
                copy_tensor_3d(b + half * (B_BYTES / 4), &p.down, full, k * K_BLOCK, 0,
                               expert * WIDTH + column * COLUMNS + half * 32, EVICT_NORMAL);
        }
    }
}

// One thread: fetches tasks, announces them to the others, and loads.
__device__ __forceinline__ void fetch_and_load(const Arguments& p, u32 shared) {
    Dealer dealer(p);
    Ring<TASK_SLOTS> ring;
    Ring<SLOTS> loads;
    for (;; ring.advance()) {
        wait_cta(shared + TASK_FREE_AT + 8 * ring.slot, ring.turn ^ 1);
        const s32 task = dealer.next();
        const int kind = task == NO_MORE ? ROUTE : kind_of(task);
        const int rows = kind == ROUTE ? 0 : rows_of(p, number_of(task) / (kind == UP ? UPS : DOWNS));
        store_shared_s32(shared + WORDS_AT + 8 * ring.slot, task);
        store_shared_s32(shared + WORDS_AT + 8 * ring.slot + 4, rows);
        mbarrier_arrive_release_cta(shared + TASK_FULL_AT + 8 * ring.slot);
        if (task == NO_MORE) break;
        if (kind == ROUTE) continue;
        fence_proxy_async_global();  // what others have written, for loads by TMA
        load_tile(p, shared, loads, kind, number_of(task));
    }
    dealer.leave();
}

// All lanes of the posting warp.
__device__ __forceinline__ void post_all(const Arguments& p, u32 shared) {
    const u32 run = p.kept[EPOCH_AT];
    Ring<TASK_SLOTS> ring;
    for (int number = 0;; ++number, ring.advance()) {
        wait_cta(shared + TASK_FULL_AT + 8 * ring.slot, ring.turn);
        const s32 task = load_shared_s32(shared + WORDS_AT + 8 * ring.slot);
        if (task == NO_MORE) return;
        wait_cta(shared + STORED_AT + 8 * ring.slot, ring.turn);
        delay(p, number, 1);
        fence_proxy_async_global();
        __syncwarp();
        post(p, run, task, shared + PLACES_SHARED + 128 * ring.slot);
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive_release_cta(shared + TASK_FREE_AT + 8 * ring.slot);
    }
}

constexpr float LEAST = -3e38f;

// A warp's token: scores of all experts, the best ones and their weights; copies of the row behind the rows that each
// expert has.
__device__ __forceinline__ void route(const Arguments& p, u32 places, int token, u32 lane) {
    const unsigned char* const row = p.tokens + static_cast<s64>(token) * WIDTH * 2;
    float scores[EXPERTS] = {};
    for (int at = lane * 8; at < WIDTH; at += 256) {
        const uint4 x = load_table_u32x4(row + 2 * at);
        const u32 xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int expert = 0; expert < EXPERTS; ++expert) {
            const uint4 w = load_table_u32x4(p.router + 2 * (static_cast<s64>(expert) * WIDTH + at));
            const u32 ws[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float x0, x1, w0, w1;
                unpack_two(xs[i], x0, x1), unpack_two(ws[i], w0, w1);
                scores[expert] += x0 * w0, scores[expert] += x1 * w1;
            }
        }
    }
#pragma unroll
    for (int expert = 0; expert < EXPERTS; ++expert)
        for (u32 mask = 16; mask > 0; mask /= 2) scores[expert] += exchange_xor(scores[expert], mask);
    float best[TOP], sum = 0.0f;
    int chosen[TOP];
#pragma unroll
    for (int expert = 0; expert < EXPERTS; ++expert)
        scores[expert] = fmaxf(scores[expert], LEAST);  // replaces NaN, so that an expert is not chosen twice
#pragma unroll
    for (int rank = 0; rank < TOP; ++rank) {
        best[rank] = -INFINITY, chosen[rank] = 0;
#pragma unroll
        for (int expert = 0; expert < EXPERTS; ++expert)
            if (scores[expert] > best[rank]) best[rank] = scores[expert], chosen[rank] = expert;
#pragma unroll
        for (int expert = 0; expert < EXPERTS; ++expert)
            if (expert == chosen[rank]) scores[expert] = -INFINITY;
    }
#pragma unroll
    for (int rank = TOP - 1; rank >= 0; --rank) sum += best[rank] = __expf(best[rank] - best[0]);
#pragma unroll
    for (int rank = 0; rank < TOP; ++rank) {
        const int entry = token * TOP + rank;
        u32 place = 0;
        if (lane == 0) place = fetch_add_relaxed_gpu_s32(p.counts + COUNT_AT + chosen[rank] * LINE, 1);
        place = chosen[rank] * (HIGH * ROWS) + __shfl_sync(~0u, place, 0);
        unsigned char* const to = p.sorted_rows + static_cast<s64>(place) * WIDTH * 2;
        for (int at = lane * 8; at < WIDTH; at += 256) store_global_u32x4(to + 2 * at, load_table_u32x4(row + 2 * at));
        if (lane == 0) {
            store_shared_s32(places + 4 * (token % GROUP * TOP + rank), place);
            store_global_u32(p.sources + place, entry);
            store_global_u32(p.weights + entry, __float_as_uint(best[rank] / sum));
        }
    }
}

// The sums of a product: 64 rows, WIDE columns per warpgroup.
template <int WIDE, int BLOCKS_OF_K>
__device__ __forceinline__ void multiply(float (&sums)[WIDE / 2], Ring<SLOTS>& ring, u32 shared, u32 thread) {
    const u32 group = thread / 128;
    u32 before = 0;
    for (int k = 0; k < BLOCKS_OF_K; ++k, ring.advance()) {
        wait_cta(shared + FULL_AT + 8 * ring.slot, ring.turn);
        const u64 a = descriptor(shared + ring.slot * A_BYTES),
                  b = descriptor(shared + B_AT + ring.slot * B_BYTES + group * (WIDE * K_BLOCK * 2));
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < K_BLOCK / 16; ++step) Multiply<WIDE>::add(sums, a + 2 * step, b + 2 * step);
        wgmma_commit();
        wgmma_wait<1>();
        if (k > 0 && thread % 32 == 0) mbarrier_arrive_release_cta(shared + FREE_AT + 8 * before);
        before = ring.slot;
    }
    wgmma_wait<0>();
    if (thread % 32 == 0) mbarrier_arrive_release_cta(shared + FREE_AT + 8 * before);
}

__device__ __forceinline__ void finish_up(const Arguments& p, const float (&sums)[32], int number, int rows,
                                          u32 thread) {
    const int tile = number / UPS, lane = thread % 32, top = thread % 128 / 32 * 16 + lane / 4,
              column = number % UPS * COLUMNS + thread / 128 * 32 + lane % 4 * 2;
#pragma unroll
    for (int down = 0; down < 2; ++down) {
        const int row = top + 8 * down;
        if (row >= rows) continue;
        unsigned char* const to = p.inner_rows + 2 * (static_cast<s64>(tile * ROWS + row) * INNER + column);
#pragma unroll
        for (int eight = 0; eight < 4; ++eight) {
            float gated[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float gate = sums[4 * eight + 2 * down + i], factor = sums[16 + 4 * eight + 2 * down + i];
                gated[i] = gate / (1.0f + __expf(-gate)) * factor;
            }
            store_global_u32(to + 16 * eight, pack(gated[0], gated[1]));
        }
    }
}

// Stores this expert's part of each token, or the sum if the token's other experts have stored theirs.
__device__ __forceinline__ void finish_down(const Arguments& p, u32 shared, const float (&sums)[16], int number,
                                            int rows, u32 thread) {
    const int tile = number / DOWNS, lane = thread % 32, top = thread % 128 / 32 * 16 + lane / 4,
              column = number % DOWNS * COLUMNS + thread / 128 * 32 + lane % 4 * 2;
    const u32* const sources = reinterpret_cast<const u32*>(p.sources) + tile * ROWS;
    int entries[2];
#pragma unroll
    for (int down = 0; down < 2; ++down) {
        const int row = top + 8 * down;
        entries[down] = row < rows ? static_cast<int>(load_global_u32(sources + row)) : -1;
        if (entries[down] < 0) continue;
        float* const to = p.parts + static_cast<s64>(entries[down]) * WIDTH + column;
#pragma unroll
        for (int eight = 0; eight < 4; ++eight)
            store_global_u32x2(to + 8 * eight, __float_as_uint(sums[4 * eight + 2 * down]),
                               __float_as_uint(sums[4 * eight + 2 * down + 1]));
    }
    consumers_meet();
    if (static_cast<int>(thread) < rows) {
        const int token = static_cast<int>(load_global_u32(sources + thread)) / TOP;
        const int before = fetch_add_acq_rel_gpu_s32(p.counts + ARRIVED_AT + token * DOWNS + number % DOWNS, 1);
        store_shared_s32(shared + LAST_AT + 4 * thread, before == TOP - 1);
    }
    consumers_meet();
#pragma unroll
    for (int down = 0; down < 2; ++down) {
        const int row = top + 8 * down;
        if (entries[down] < 0 || !load_shared_s32(shared + LAST_AT + 4 * row)) continue;
        const int token = entries[down] / TOP;
        float added[8] = {};
        for (int rank = 0; rank < TOP; ++rank) {
            const float weight = __uint_as_float(load_global_u32(p.weights + token * TOP + rank));
            const float* const part = p.parts + (static_cast<s64>(token) * TOP + rank) * WIDTH + column;
#pragma unroll
            for (int i = 0; i < 8; ++i) added[i] += weight * __uint_as_float(load_global_u32(part + i / 2 * 8 + i % 2));
        }
        unsigned char* const to = p.out + 2 * (static_cast<s64>(token) * WIDTH + column);
#pragma unroll
        for (int eight = 0; eight < 4; ++eight)
            store_global_u32(to + 16 * eight, pack(added[2 * eight], added[2 * eight + 1]));
    }
}

__device__ __forceinline__ void consume(const Arguments& p, u32 shared, u32 thread) {
    Ring<TASK_SLOTS> ring;
    Ring<SLOTS> loads;
    for (int count = 0;; ++count, ring.advance()) {
        wait_cta(shared + TASK_FULL_AT + 8 * ring.slot, ring.turn);
        const s32 task = load_shared_s32(shared + WORDS_AT + 8 * ring.slot);
        const int rows = load_shared_s32(shared + WORDS_AT + 8 * ring.slot + 4);
        if (task == NO_MORE) return;
        const int number = number_of(task);
        if (kind_of(task) == ROUTE) {
            delay(p, count, 0);
            const int token = number * GROUP + thread / 32;
            if (token < TOKENS) route(p, shared + PLACES_SHARED + 128 * ring.slot, token, thread % 32);
        } else if (kind_of(task) == UP) {
            float sums[32] = {};
            multiply<64, WIDTH / K_BLOCK>(sums, loads, shared, thread);
            delay(p, count, 0);
            finish_up(p, sums, number, rows, thread);
        } else {
            float sums[16] = {};
            multiply<32, INNER / K_BLOCK>(sums, loads, shared, thread);
            delay(p, count, 0);
            finish_down(p, shared, sums, number, rows, thread);
        }
        __syncwarp();
        if (thread % 32 == 0) mbarrier_arrive_release_cta(shared + STORED_AT + 8 * ring.slot);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) experts(const __grid_constant__ Arguments p) {
    extern __shared__ unsigned char memory[];
    const u32 shared = (shared_address(memory) + 1023) & ~1023u, thread = threadIdx.x;
    if (thread == 0) {
        init_ring<SLOTS>(shared + FULL_AT, shared + FREE_AT, 1, CONSUMER_WARPS);
        init_ring<TASK_SLOTS>(shared + TASK_FULL_AT, shared + TASK_FREE_AT, 1, 1);
        for (int slot = 0; slot < TASK_SLOTS; ++slot) mbarrier_init(shared + STORED_AT + 8 * slot, CONSUMER_WARPS);
        fence_mbarrier_init_release_cluster();
    }
    barrier_sync<0, THREADS>();
    if (thread < 128) {
        if (thread == 0) fetch_and_load(p, shared);
        if (thread / 32 == 1) post_all(p, shared);
        __syncwarp();
    } else {
        consume(p, shared, thread - 128);
    }
    barrier_sync<0, THREADS>();
    if (p.last != DOWN) return;
    if (thread == 0)
        store_shared_s32(shared + RESET_AT,
                         fetch_add_acq_rel_gpu_s32(p.kept + LEFT_AT, 1) == static_cast<int>(gridDim.x) - 1);
    barrier_sync<0, THREADS>();
    if (!load_shared_s32(shared + RESET_AT)) return;
    if (thread == 0) {  // all others have ended
        p.kept[LEFT_AT] = 0;
        p.kept[EPOCH_AT] += 1;
        p.kept[SENT_BEFORE_AT] += p.counts[SENT_AT];
    }
    barrier_sync<0, THREADS>();
    for (int word = thread; word < COUNTS; word += THREADS) p.counts[word] = 0;
}
