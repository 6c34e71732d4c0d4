// Which task a block takes next, and what its end brings about: tiles of rows come into existence while the kernel
// runs.
//
// QUEUE: tickets. The block whose row is a tile's last puts all tasks of the tile into the queue; the block that routes
// the last tokens does so for tiles that are not full, and puts an end for each block behind the last place.
//
// PILOT: the same blocks tell the CPU of the tile, and a thread there makes the tasks.
#pragma once

#include "common.cuh"

// Messages from blocks to the CPU: a task is done, a tile of rows exists, or all tokens are routed, into this many
// tiles.
enum Message : u32 { DONE = 0, TILE = 1u << 28, ROUTED = 2u << 28 };
constexpr int LINK_HEAD = 16;

__device__ __forceinline__ u64* link_commands(const Arguments& p) {
    return p.link + LINK_HEAD + static_cast<int>(blockIdx.x) * COMMANDS;
}

__device__ __forceinline__ void tell(const Arguments& p, u32 message) {
    const u32 place =
        static_cast<u32>(fetch_add_acq_rel_gpu_s32(p.counts + SENT_AT, 1)) + static_cast<u32>(p.kept[SENT_BEFORE_AT]);
    store_release_sys_u64(p.link + LINK_HEAD + BLOCKS * COMMANDS + place % MESSAGES,
                          static_cast<u64>(place + 1) << 32 | message);
}

// A task in the queue, marked with its run.
__device__ __forceinline__ s32 marked(u32 run, s32 task) {
    return static_cast<s32>((run + 1) % 2048 << (KIND_AT + 2) | static_cast<u32>(task));
}

// State of the thread that fetches tasks.
struct Dealer {
    const Arguments& p;
    const u32 run;
    int place;  // index in the lists of all blocks, for the kind
    int kind;
    u32 taken = 0;

    __device__ Dealer(const Arguments& p)
        : p(p), run(p.kept[EPOCH_AT]), place(blockIdx.x), kind(p.first), taken(p.kept[TAKEN_AT + blockIdx.x]) {}

    // Calls look() until it is true, or until the timeout; `what` goes into the record.
    template <class Look>
    __device__ bool poll(s32 what, Look&& look) {
        if (look()) return true;
        const u64 start = globaltimer();
        for (u32 tries = 1;; ++tries) {
            nanosleep(20);
            if (look()) return true;
            if (tries % 64 != 0) continue;
            if (load_relaxed_gpu_s32(p.record) != 0) return false;
            const bool ended = DEALING == PILOT && load_acquire_sys_u64(p.link) != 0;
            if (ended || globaltimer() - start > TIMEOUT_NS) {
                if (compare_and_swap_relaxed_gpu_s32(p.record, 0, 1) == 0)
                    p.record[1] = kind, p.record[2] = what, p.record[3] = blockIdx.x;
                return false;
            }
        }
    }

    __device__ bool await_inner(int tile) {
        return poll(tile, [&] { return load_acquire_gpu_s32(p.counts + UP_DONE_AT + tile) == UPS; });
    }

    // Returns the tile of rows with index `index` among those that exist, or -1.
    __device__ int tile_at(int index) const {
        for (int expert = 0; expert < EXPERTS; ++expert) {
            const int rows = load_acquire_gpu_s32(p.counts + COUNT_AT + expert * LINE), high = (rows + ROWS - 1) / ROWS;
            if (index < high) return expert * HIGH + index;
            index -= high;
        }
        return -1;
    }

    __device__ s32 next_listed() {
        for (;; place += gridDim.x) {
            const int columns = kind == UP ? UPS : DOWNS, count = kind == ROUTE ? ROUTES : MOST_TILES * columns;
            if (place >= count) {
                if (kind == p.last) return NO_MORE;
                place -= count, ++kind, place -= gridDim.x;
                continue;
            }
            const int mine = place;
            if (kind == ROUTE) {
                place += gridDim.x;
                return task_of(ROUTE, mine);
            }
            if (!poll(-1, [&] { return load_acquire_gpu_s32(p.counts + ROUTED_AT) == ROUTES; })) return NO_MORE;
            const int tile = tile_at(mine / columns);
            if (tile < 0) continue;
            if (kind == DOWN && !await_inner(tile)) return NO_MORE;
            place += gridDim.x;
            return task_of(static_cast<Kind>(kind), tile * columns + mine % columns);
        }
    }

    __device__ s32 next_queued() {
        if (place < ROUTES) {  // present from the start: no block takes two while another has none
            place += gridDim.x;
            return task_of(ROUTE, place - static_cast<int>(gridDim.x));
        }
        const int ticket = fetch_add_relaxed_gpu_s32(p.counts + HEAD_AT, 1);
        const s32* const at = p.kept + PLACES_AT + ticket;
        s32 task = END;
        const bool seen = poll(ticket, [&] {
            const s32 word = load_acquire_gpu_s32(at);
            task = word & ((1 << (KIND_AT + 2)) - 1);
            return word == marked(run, task);
        });
        return seen && task != END ? task : NO_MORE;
    }

    __device__ s32 next_commanded() {
        const u64* const command = link_commands(p) + taken % COMMANDS;
        ++taken;
        s32 task = NO_MORE;
        const bool seen = poll(taken, [&] {
            const u64 word = load_acquire_sys_u64(command);
            task = static_cast<s32>(static_cast<u32>(word));
            return static_cast<u32>(word >> 32) == taken;
        });
        if (!seen || task == NO_MORE) return NO_MORE;
        if ((task & AWAITS) == 0) return task;
        task &= ~AWAITS;
        return await_inner(number_of(task) / DOWNS) ? task : NO_MORE;
    }

    __device__ s32 next() {
        return DEALING == LISTS ? next_listed() : DEALING == QUEUE ? next_queued() : next_commanded();
    }

    // Prepares the next run.
    __device__ void leave() {
        if (DEALING == PILOT) p.kept[TAKEN_AT + blockIdx.x] = taken;
    }
};

// All lanes: puts a tile's tasks of a kind into the queue.
__device__ __forceinline__ void enqueue(const Arguments& p, u32 run, Kind kind, int tile) {
    const int columns = kind == UP ? UPS : DOWNS, lane = threadIdx.x % 32;
    u32 base = 0;
    if (lane == 0) base = fetch_add_relaxed_gpu_s32(p.counts + TAIL_AT, columns);
    base = __shfl_sync(~0u, base, 0);
    for (int column = lane; column < columns; column += 32)
        store_release_gpu_s32(p.kept + PLACES_AT + base + column, marked(run, task_of(kind, tile * columns + column)));
}

// All lanes: handles tiles of rows that lanes have completed, -1 for none.
__device__ __forceinline__ void begin_tiles(const Arguments& p, u32 run, int tile) {
    for (int source = 0; source < 32; ++source) {
        const int one = static_cast<int>(__shfl_sync(~0u, static_cast<u32>(tile), source));
        if (one < 0) continue;
        if (DEALING == QUEUE) enqueue(p, run, UP, one);
        if (DEALING == PILOT && threadIdx.x % 32 == 0) tell(p, TILE | static_cast<u32>(one));
    }
}

// All lanes of the warp that posts, once this block has stored a task's results. `places`: rows in shared memory that
// a routing task has assigned.
__device__ __forceinline__ void post(const Arguments& p, u32 run, s32 task, u32 places) {
    const int lane = threadIdx.x % 32, number = number_of(task);
    if (kind_of(task) == ROUTE) {
        const int entry = number * GROUP * TOP + lane;
        int tile = -1;
        if (lane < GROUP * TOP && entry < TOKENS * TOP) {
            const int of = load_shared_s32(places + 4 * lane) / ROWS;
            if (fetch_add_acq_rel_gpu_s32(p.counts + FILLED_AT + of, 1) == ROWS - 1) tile = of;
        }
        begin_tiles(p, run, tile);
        u32 routed = 0;
        if (lane == 0) routed = fetch_add_acq_rel_gpu_s32(p.counts + ROUTED_AT, 1) + 1;
        routed = __shfl_sync(~0u, routed, 0);
        if (routed == ROUTES && DEALING != LISTS) {
            int rows = 0, high = 0;
            if (lane < EXPERTS) rows = load_acquire_gpu_s32(p.counts + COUNT_AT + lane * LINE);
            begin_tiles(p, run, rows % ROWS == 0 ? -1 : lane * HIGH + rows / ROWS);
            for (int source = 0; source < EXPERTS; ++source)
                high += (static_cast<int>(__shfl_sync(~0u, static_cast<u32>(rows), source)) + ROWS - 1) / ROWS;
            for (int block = lane; DEALING == QUEUE && block < BLOCKS;
                 block += 32)  // behind all tasks, an end per block
                store_release_gpu_s32(p.kept + PLACES_AT + high * (UPS + DOWNS) + block, marked(run, END));
            if (DEALING == PILOT && lane == 0) tell(p, ROUTED | static_cast<u32>(high));
        }
    } else if (kind_of(task) == UP) {
        u32 done = 0;
        if (lane == 0) done = fetch_add_acq_rel_gpu_s32(p.counts + UP_DONE_AT + number / UPS, 1) + 1;
        done = __shfl_sync(~0u, done, 0);
        if (DEALING == QUEUE && done == UPS) enqueue(p, run, DOWN, number / UPS);
    }
    if (DEALING == PILOT && lane == 0) tell(p, DONE | static_cast<u32>(task));
}
