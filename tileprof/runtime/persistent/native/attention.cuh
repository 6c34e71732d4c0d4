// A tile of attention: up to 128 queries of one head. Queries, then keys and values in blocks of 64, come through the
// ring of activations. A warpgroup multiplies 64 queries; where a tile has no more, both have the same ones, each takes
// every other block of keys, and their sums meet in slots of the last ones.
#pragma once

#include "common.cuh"
#include "ends.cuh"

// A thread's share of 64 queries, added up with an online softmax: rows lane / 4 and lane / 4 + 8 of its warp's
// sixteen.
template <class S>
struct Attending {
    static constexpr int SQUARES = S::N / 8, BOXES = S::N / SLOT_COLUMNS, GROUPS = S::TILE_ROWS > 64 ? 1 : 2;

    const u32 shared, thread;
    const int first;  // query of the head
    float peak[2], weight[2], sums[BOXES][32];
    u32 slots[S::BLOCK_SLOTS];  // those of this warp's block of keys
    Ring<A_SLOTS> first_slot;  // of the blocks that the groups multiply at a time
    int count = 0;  // of their slots

    __device__ Attending(const Task& task, u32 shared, u32 thread)
        : shared(shared), thread(thread), first(task.row * S::TILE_ROWS + top()) {
#pragma unroll
        for (int down = 0; down < 2; ++down) peak[down] = __uint_as_float(0xFF800000u), weight[down] = 0.0f;
#pragma unroll
        for (int box = 0; box < BOXES; ++box)
#pragma unroll
            for (int i = 0; i < 32; ++i) sums[box][i] = 0.0f;
    }

    __device__ int group() const { return GROUPS == 1 ? 0 : thread / 128; }
    __device__ int top() const { return (GROUPS == 1 ? thread / 32 : thread / 32 % 4) * 16; }
    __device__ u32 lane() const { return thread % 32; }

    // The sums of eight columns: two of each row.
    __device__ float* four(int square) { return sums[square / 8] + square % 8 * 4; }

    // Box `box` of a block: keys, then values, 64 columns each.
    __device__ u32 box_at(int box) const {
        return shared + slots[box / SLOT_BOXES] * A_BYTES + box % SLOT_BOXES * HEAD_BOX_BYTES;
    }

    __device__ __forceinline__ void load_queries(u32 (&queries)[S::N / 16][4], Ring<A_SLOTS>& ring) const {
#pragma unroll
        for (int box = 0; box < BOXES; ++box, ring.advance()) {
            wait_cta(shared + A_FULL + 8 * ring.slot, ring.turn);
            const u32 from =
                shared + ring.slot * A_BYTES + (top() + lane() % 16) * 128 + ((lane() / 16 ^ lane() % 8) << 4);
#pragma unroll
            for (int step = 0; step < 4; ++step) load_matrices_shared(from ^ (step << 5), queries[4 * box + step]);
            __syncwarp();
            if (lane() == 0) mbarrier_arrive_release_cta(shared + A_FREE + 8 * ring.slot);
        }
    }

    // By mma.sync, because queries in the registers of wgmma went wrong: in heads of 64 columns and tiles of 128
    // queries, ptxas 13.0 gave weights the same registers, and the second block of keys was multiplied by the weights
    // of the first. Only delayed or plain runs on a GPU show that; the harness on the CPU has no registers.
    __device__ __forceinline__ void score(float (&scores)[KEYS / 8][4], const u32 (&queries)[S::N / 16][4]) const {
        const u32 square = lane() / 8, line = lane() % 8;
        const u32 row = ((square >> 1) * 8 + line) * 128 + (((square & 1) ^ line) << 4);
#pragma unroll
        for (int step = 0; step < S::N / 16; ++step)
#pragma unroll
            for (int pair = 0; pair < KEYS / 16; ++pair) {
                u32 keys[4];
                load_matrices_shared(((box_at(step / 4) + row) ^ (step % 4 << 5)) + pair * 2048, keys);
                multiply_m16n8k16(scores[2 * pair], queries[step], keys[0], keys[1]);
                multiply_m16n8k16(scores[2 * pair + 1], queries[step], keys[2], keys[3]);
            }
    }

    // Hides scores of keys that a query does not see; `key`: the first of this warp.
    __device__ __forceinline__ void hide(float (&scores)[KEYS / 8][4], int key) const {
#pragma unroll
        for (int eight = 0; eight < KEYS / 8; ++eight)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int mine = key + 8 * eight + static_cast<int>(lane()) % 4 * 2 + i % 2,
                          query = first + static_cast<int>(lane()) / 4 + i / 2 * 8;
                if (mine >= S::KEY_ROWS || (S::CAUSAL && mine > query)) scores[eight][i] = __uint_as_float(0xFF800000u);
            }
    }

    // Turns scores into weights, and all sums so far to the new peak. A row sees at least one of these keys.
    __device__ __forceinline__ void weigh(float (&scores)[KEYS / 8][4]) {
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            float most = peak[down];
#pragma unroll
            for (int eight = 0; eight < KEYS / 8; ++eight)
                most = fmaxf(most, fmaxf(scores[eight][2 * down], scores[eight][2 * down + 1]));
            most = fmaxf(most, exchange_xor(most, 1));
            most = fmaxf(most, exchange_xor(most, 2));
            const float shrink = power_of_two((peak[down] - most) * S::SCALE), least = -most * S::SCALE;
            peak[down] = most;
            weight[down] *= shrink;
#pragma unroll
            for (int box = 0; box < BOXES; ++box)
#pragma unroll
                for (int i = 2 * down; i < 32; i += 4) sums[box][i] *= shrink, sums[box][i + 1] *= shrink;
#pragma unroll
            for (int eight = 0; eight < KEYS / 8; ++eight)
#pragma unroll
                for (int i = 2 * down; i < 2 * down + 2; ++i) {
                    scores[eight][i] = power_of_two(fmaf(scores[eight][i], S::SCALE, least));
                    weight[down] += scores[eight][i];
                }
        }
    }

    __device__ __forceinline__ void add_values(const float (&weights)[KEYS / 8][4]) {
        u32 rounded[KEYS / 16][4];
#pragma unroll
        for (int i = 0; i < KEYS / 4; ++i)
            rounded[i / 4][i % 4] = pack(weights[i / 2][i % 2 * 2], weights[i / 2][i % 2 * 2 + 1]);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < KEYS / 16; ++step)
#pragma unroll
            for (int box = 0; box < BOXES; ++box)
                multiply_m64n64k16(sums[box], rounded[step], descriptor(box_at(BOXES + box)) + step * (16 * 128 / 16));
        wgmma_commit();
        wgmma_wait<0>();
    }

    // All blocks of keys, of which each group takes one at a time. The slots of the last ones stay this block's where
    // warps share queries.
    __device__ __forceinline__ void add_keys(Ring<A_SLOTS>& ring, int blocks) {
        constexpr int OF_KEYS = (BOXES + SLOT_BOXES - 1) / SLOT_BOXES;  // slots with keys, one of them with values, too
        u32 queries[S::N / 16][4];
        load_queries(queries, ring);
#pragma unroll 1
        for (int block = 0; block < blocks; block += GROUPS) {
            const int own = block + group(), key = own * KEYS;
            const int last = first - top() % KEYS + KEYS - 1;  // of the warpgroup's queries: all of it multiplies
            const bool sees = own < blocks && last - KEYS + 1 < S::M && (!S::CAUSAL || key <= last);
            first_slot = ring;
            count = (blocks - block < GROUPS ? blocks - block : GROUPS) * S::BLOCK_SLOTS;
            Ring<A_SLOTS> mine = behind(ring, group() * S::BLOCK_SLOTS);
            ring = behind(ring, count);
            u32 turns[S::BLOCK_SLOTS];
#pragma unroll
            for (int part = 0; part < S::BLOCK_SLOTS; ++part, mine.advance())
                slots[part] = mine.slot, turns[part] = mine.turn;
            float scores[KEYS / 8][4] = {};
            if (own < blocks)
#pragma unroll
                for (int part = 0; part < OF_KEYS; ++part) wait_cta(shared + A_FULL + 8 * slots[part], turns[part]);
            if (sees) {
                score(scores, queries);
                if (key + KEYS > S::KEY_ROWS || (S::CAUSAL && key + KEYS > first + 1)) hide(scores, key);
                weigh(scores);
            }
            if (own < blocks)
#pragma unroll
                for (int part = OF_KEYS; part < S::BLOCK_SLOTS; ++part)
                    wait_cta(shared + A_FULL + 8 * slots[part], turns[part]);
            if (sees) add_values(scores);
            if (GROUPS == 1 || block + GROUPS < blocks) give_all_back();
        }
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            weight[down] += exchange_xor(weight[down], 1);
            weight[down] += exchange_xor(weight[down], 2);
        }
    }

    static __device__ Ring<A_SLOTS> behind(Ring<A_SLOTS> ring, int count) {
        static_assert(GROUPS * S::BLOCK_SLOTS <= A_SLOTS);
        ring.slot += count;
        if (ring.slot >= A_SLOTS) ring.slot -= A_SLOTS, ring.turn ^= 1;
        return ring;
    }

    // The slots of all groups' blocks. What another group multiplies has to be there first: a slot that is given back
    // before would count for what is in it now.
    __device__ __forceinline__ void give_all_back() const {
        __syncwarp();
        if (lane() != 0) return;
        Ring<A_SLOTS> ring = first_slot;
#pragma unroll 1
        for (int i = 0; i < count; ++i, ring.advance()) {
            if (GROUPS > 1) wait_cta(shared + A_FULL + 8 * ring.slot, ring.turn);
            mbarrier_arrive_release_cta(shared + A_FREE + 8 * ring.slot);
        }
    }

    // Where two warps meet: four sums of every lane, of one square. Slots hold 512 bytes of each of four pairs of
    // warps.
    __device__ u32 square_at(int square) const {
        constexpr int IN_SLOT = SLOT_BOXES * HEAD_BOX_BYTES / 2048;
        return shared + behind(first_slot, square / IN_SLOT).slot * A_BYTES + square % IN_SLOT * 2048 +
               thread / 32 % 4 * 512 + lane() * 16;
    }

    // The second group hands its sums to the first.
    __device__ __forceinline__ void meet() {
        const u32 buffer = shared + BUFFER_AT + thread / 32 % 4 * ALONE_BYTES + lane() * 16;
        barrier_sync<3, CONSUMERS>();  // all have read the slots, and the first group its buffers
        if (group() == 1) {
            store_shared_f32x4(buffer, make_float4(peak[0], peak[1], weight[0], weight[1]));
#pragma unroll
            for (int square = 0; square < SQUARES; ++square)
                store_shared_f32x4(square_at(square),
                                   make_float4(four(square)[0], four(square)[1], four(square)[2], four(square)[3]));
            fence_proxy_async_shared();  // the slots are written by TMA next
        }
        barrier_sync<3, CONSUMERS>();
        if (group() == 0 && first < S::M) {
            const float4 other = load_shared_f32x4(buffer);
            const float peaks[2] = {other.x, other.y}, weights[2] = {other.z, other.w};
            float own[2], others[2];
#pragma unroll
            for (int down = 0; down < 2; ++down) {
                const float most = fmaxf(peak[down], peaks[down]);
                own[down] = power_of_two((peak[down] - most) * S::SCALE);
                others[down] = power_of_two((peaks[down] - most) * S::SCALE);
                weight[down] = weight[down] * own[down] + weights[down] * others[down];
            }
#pragma unroll
            for (int square = 0; square < SQUARES; ++square) {
                const float4 more = load_shared_f32x4(square_at(square));
                float* const mine = four(square);
                mine[0] = mine[0] * own[0] + more.x * others[0];
                mine[1] = mine[1] * own[0] + more.y * others[0];
                mine[2] = mine[2] * own[1] + more.z * others[1];
                mine[3] = mine[3] * own[1] + more.w * others[1];
            }
        }
        give_all_back();
    }

    // Divides, rounds, and stores sixteen bytes per lane, 64 columns at a time through the warp's own buffer.
    __device__ __forceinline__ void store(unsigned short* out) const {
        const u32 buffer = shared + BUFFER_AT + thread / 32 * ALONE_BYTES, chunk = lane() % 8;
        const u32 own = buffer + lane() % 16 * 128 + ((lane() / 16 ^ lane() % 8) << 4);
        const float inverse[2] = {__fdividef(1.0f, weight[0]), __fdividef(1.0f, weight[1])};
#pragma unroll
        for (int box = 0; box < BOXES; ++box) {
#pragma unroll
            for (int sixteen = 0; sixteen < 4; ++sixteen) {
                u32 squares[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float* two = sums[box] + 8 * sixteen + 2 * i;
                    squares[i] = pack(two[0] * inverse[i % 2], two[1] * inverse[i % 2]);
                }
                store_matrices_shared(own ^ (sixteen << 5), squares);
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 row = 4 * i + lane() / 8;
                const float4 eight = load_shared_f32x4(buffer + row * 128 + ((chunk ^ row % 8) << 4));
                if (first + static_cast<int>(row) < S::M)
                    store_global_f32x4(out + static_cast<long long>(first + row) * S::OUT_ROW + box * 64 + chunk * 8,
                                       eight);
            }
            __syncwarp();
        }
    }
};

// All consumers: a task of attention.
template <class S>
__device__ __forceinline__ void attend(const Arguments& arguments, const Task& task, Ring<A_SLOTS>& ring, u32 shared,
                                       Rank rank, u32 thread, int number) {
    Attending<S> attending(task, shared, thread);
    attending.add_keys(ring, key_blocks<S>(task));
    if constexpr (Attending<S>::GROUPS > 1) attending.meet();
    delay(arguments, number, rank, 1);
    if (attending.group() == 0 && attending.first < S::M)
        attending.store(static_cast<unsigned short*>(arguments.stage[S::INDEX].out) +
                        static_cast<long long>(task.column) * S::OUT_HEAD);
}
