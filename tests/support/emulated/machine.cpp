// Runs a kernel's threads as fibers of one CPU thread, in an order that a seed chooses, and their asynchronous
// operations at the worst moments.
//
// A thread runs until it waits, or lets others run. Loads, stores to other blocks and products are events, which happen
// at a random moment, or as late or as early as possible. A store to global memory is held back until a release by a
// thread that knows of it. Vector clocks per block, with an entry per thread, say which stores these are.
#include "scheduler.h"

namespace machine {

Index thread_index, block_index, grid_size;

void fail(const char* what) { report(what); }

void yield() {
    wake(*now);
    sleep("its turn");
}

u64 clock() { return ++time_ns; }

void sync_warp() {
    collective("__syncwarp", [](Warp&) {
        if (block_of(*now).held == 0) return;
        Clock all;
        for (u32 lane = 0; lane < 32; ++lane) all.join(lane_of(*now, lane).clock);
        for (u32 lane = 0; lane < 32; ++lane) lane_of(*now, lane).clock = all;
    });
}

bool any(bool mine) {
    now->mine = mine;
    collective("__any_sync", [](Warp& warp) {
        warp.result = 0;
        for (u32 lane = 0; lane < 32; ++lane) warp.result |= lane_of(*now, lane).mine;
    });
    return warp_of(*now).result != 0;
}

int least(int mine) {
    now->mine = mine;
    collective("__reduce_min_sync", [](Warp& warp) {
        warp.result = now->mine;
        for (u32 lane = 0; lane < 32; ++lane) warp.result = std::min(warp.result, lane_of(*now, lane).mine);
    });
    return warp_of(*now).result;
}

u32 from_lane(u32 mine, u32 lane) {
    now->mine = static_cast<int>(mine);
    collective("__shfl_sync", [lane](Warp& warp) { warp.result = lane_of(*now, lane).mine; });
    return static_cast<u32>(warp_of(*now).result);
}

void store_matrices(u32 address, const u32* squares) {
    now->address = address, now->squares = squares;
    collective("stmatrix", [](Warp&) {
        for (u32 square = 0; square < 4; ++square)
            for (u32 lane = 0; lane < 32; ++lane) {
                const u32 row = lane_of(*now, 8 * square + lane / 4).address;
                if (row % 16 != 0) report("stmatrix to a row that 16 does not divide");
                std::memcpy(shared(row + lane % 4 * 4, 4), lane_of(*now, lane).squares + square, 4);
            }
    });
}

float exchange(float value, u32 mask) {
    now->value = value;
    float others = 0;
    now->sums = &others;
    collective("__shfl_xor_sync", [mask](Warp&) {
        for (u32 lane = 0; lane < 32; ++lane) *lane_of(*now, lane).sums = lane_of(*now, lane ^ mask).value;
    });
    return others;
}

void load_matrices(u32 address, bool transposed, u32* squares) {
    now->address = address, now->taken = squares;
    collective("ldmatrix", [transposed](Warp&) {
        for (u32 square = 0; square < 4; ++square) {
            u16 halves[8][8];
            for (u32 row = 0; row < 8; ++row) {
                const u32 from = lane_of(*now, 8 * square + row).address;
                if (from % 16 != 0) return report("ldmatrix from a row that 16 does not divide");
                std::memcpy(halves[row], shared(from, 16), 16);
            }
            for (u32 lane = 0; lane < 32; ++lane) {
                const u32 row = lane / 4, column = lane % 4 * 2;
                const u32 first = transposed ? halves[column][row] : halves[row][column],
                          second = transposed ? halves[column + 1][row] : halves[row][column + 1];
                lane_of(*now, lane).taken[square] = first | second << 16;
            }
        }
    });
}

void multiply_rows(float* sums, const u32* a, u32 b_low, u32 b_high) {
    now->sums = sums, now->a = a, now->b[0] = b_low, now->b[1] = b_high;
    collective("mma.sync", [](Warp&) {
        float left[16][16], right[16][8], all[16][8];
        const auto half = [](u32 two, u32 i) { return values_of_halves[u16(two >> 16 * i)]; };
        for (u32 lane = 0; lane < 32; ++lane) {
            const Fiber& fiber = lane_of(*now, lane);
            for (u32 i = 0; i < 2; ++i) {
                for (u32 part = 0; part < 4; ++part)
                    left[lane / 4 + part % 2 * 8][lane % 4 * 2 + i + part / 2 * 8] = half(fiber.a[part], i);
                for (u32 part = 0; part < 2; ++part)
                    right[lane % 4 * 2 + i + part * 8][lane / 4] = half(fiber.b[part], i);
            }
            for (u32 i = 0; i < 4; ++i) all[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = fiber.sums[i];
        }
        for (u32 row = 0; row < 16; ++row)
            for (u32 k = 0; k < 16; ++k)
                for (u32 column = 0; column < 8; ++column) all[row][column] += left[row][k] * right[k][column];
        for (u32 lane = 0; lane < 32; ++lane)
            for (u32 i = 0; i < 4; ++i) lane_of(*now, lane).sums[i] = all[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    });
}

void sync_block(u32 barrier, u32 threads) {
    std::vector<Fiber*>& here = block_of(*now).meetings[barrier];
    here.push_back(now);
    if (here.size() < threads) return sleep("bar.sync");
    if (block_of(*now).held > 0) {
        Clock all;
        for (const Fiber* fiber : here) all.join(fiber->clock);
        for (Fiber* fiber : here) fiber->clock = all;
    }
    here.pop_back();
    wake_all(here);
}

void sync_cluster() {
    std::vector<Fiber*>& here = cluster_meetings[now->block / split];
    here.push_back(now);
    if (here.size() < THREADS * split) return sleep("the cluster");
    progress = true;
    here.pop_back();
    wake_all(here);
    yield();
}

u32 rank() { return now->block % split; }

void trigger_launch() {
    trigger(now->block);
    if (one_in(options.yield_odds)) yield();
}

void wait_for_launch() {
    const u32 number = launch_of(*now);
    if (number == 0 || launches[number - 1].running == 0) return;
    launches[number - 1].front_ended.push_back(now);
    sleep("the launch in front");
}

unsigned char* shared(u32 address, u32 bytes) {
    if (address % bytes != 0) report(text("a shared access of %u bytes at %u", bytes, address));
    u32 offset;
    Block& block = owner(address, offset);
    return bytes_of(block, offset, bytes);
}

u32 map_rank(u32 address, u32 rank) {
    if (address >> 24 != 0 || rank >= split) report("an address that cannot be another block's");
    return address | (rank + 1) << 24;
}

void store_async(u32 address, Chunk value, u32 barrier) {
    u32 offset, barrier_offset;
    Block& block = owner(address, offset);
    if (&block != &owner(barrier, barrier_offset)) report("a store to one block that another's barrier counts");
    events.emplace_back([&block, offset, barrier_offset, value] {
        std::memcpy(bytes_of(block, offset, sizeof value), &value, sizeof value);
        complete_bytes(block, barrier_offset, sizeof value);
    });
}

u32 load_word(u32 address) {
    u32 value;
    const unsigned char* word = shared(address, 4);
    std::memcpy(&value, word, 4);
    poll(word, value, address);
    std::memcpy(&value, word, 4);
    now->polled = word, now->seen = value;
    learn(*now, block_of(*now).words[address]);
    now->acquired = true;
    return value;
}

void store_word(u32 address, u32 value) {
    unsigned char* word = shared(address, 4);
    std::memcpy(word, &value, 4);
    now->polled = nullptr;
    block_of(*now).words[address] = now->clock;
    changed(word);
    if (one_in(options.yield_odds)) yield();
}

void learn_of_others() { now->acquired = true; }

void barrier_init(u32 barrier, u32 arrivals) {
    shared(barrier, 8);
    const auto [place, made] = block_of(*now).barriers.try_emplace(barrier);
    if (!made) report("makes the barrier " + name_of(barrier) + " again");
    place->second.expected = place->second.pending = arrivals;
}

void barrier_arrive(u32 address, u32 bytes, bool release) {
    u32 offset;
    Block& block = owner(address, offset);
    Barrier* barrier = barrier_at(block, offset);
    if (barrier->pending == 0) report("arrives at " + name_of(offset) + ", where all have arrived");
    --barrier->pending;
    barrier->bytes += bytes;
    if (release && block.held > 0) barrier->gathering.join(now->clock);
    pass_if_complete(*barrier);
    if (one_in(options.yield_odds)) yield();
}

bool barrier_wait(u32 barrier_address, u32 parity) {
    Barrier& barrier = *barrier_at(block_of(*now), barrier_address);
    now->polled = nullptr;
    if (one_in(options.yield_odds)) yield();
    while ((barrier.phase & 1) == parity) {
        barrier.waiting.push_back(now);
        sleep("", barrier_address, parity);
    }
    learn(*now, barrier.passed);
    now->wrote = true;
    return true;
}

bool is_global(const void* address) {
    const auto* byte = static_cast<const unsigned char*>(address);
    return byte < stacks || byte >= stacks + stacks_bytes;
}

void hold(void* to, const void* value, u32 bytes) {
    if (now->held.empty()) holders.push_back(now);
    now->held.push_back({to, {}, bytes, ++now->stores});
    std::memcpy(&now->held.back().value, value, bytes);
    now->clock.known[now->thread] = now->stores;
    now->wrote = true;
    ++block_of(*now).held;
}

int load_acquire(const int* address) {
    if (one_in(options.yield_odds)) yield();
    poll(address, *address, 0);
    const int value = *address;
    now->polled = address, now->seen = value;
    now->acquired = true;
    return value;
}

int add_release(int* address, int value) {
    const auto* byte = reinterpret_cast<const unsigned char*>(address);
    if (now->wrote && byte >= flags_begin && byte < flags_end)
        report("posts what TMA will read without a proxy fence before");
    release_stores(now->block, now->clock);
    const int before = *address;
    *address += value;
    changed(address);
    if (one_in(options.yield_odds)) yield();
    return before;
}

int add_relaxed(int* address, int value) {
    const int before = *address;
    *address += value;
    changed(address);
    if (one_in(options.yield_odds)) yield();
    return before;
}

void store_release(int* address, int value) {
    release_stores(now->block, now->clock);
    *address = value;
    changed(address);
    if (one_in(options.yield_odds)) yield();
}

u64 load_acquire_outside(const u64* address) {
    load_acquire(reinterpret_cast<const int*>(address) + 1);
    return *address;
}

void store_release_outside(u64* address, u64 value) {
    if (now->wrote) report("tells the CPU of what TMA will read without a proxy fence before");
    release_stores(now->block, now->clock);
    *address = value;
    progress = true;
    if (one_in(options.yield_odds)) yield();
}

// A word on its way takes any time: other threads, and the CPU, may step before it arrives.
void store_relaxed_outside(u64* address, u64 value) {
    for (u64 turns = one_in(options.yield_odds) ? below(256) : 0; turns > 0; --turns) yield();
    *address = value;
    progress = true;
}

void nap() {
    now->napped = true;
    yield();
}

void fence_proxy() { now->acquired = now->wrote = false; }

void load_tensor(u32 to, const Map& map, u32 barrier, const int (&at)[4], u32 targets, bool others_write) {
    if (to % 128 != 0) report("a load to where 128 does not divide");
    if (others_write && now->acquired)
        report("loads what others wrote without a proxy fence since it has learnt of it");
    const u32 base = now->block / split * split;
    struct Place {
        int at[4];
    } place;
    std::memcpy(place.at, at, sizeof place.at);
    for (u32 rank = 0; rank < split; ++rank) {
        if ((targets >> rank & 1) == 0) continue;
        Block& block = blocks[base + rank];
        events.emplace_back([&block, to, map, barrier, place] {
            if (block.running == 0) return report("a load into a block that has ended");
            copy_box(block, to, map, place.at);
            events.emplace_back(
                [&block, barrier, bytes = bytes_of_box(map)] { complete_bytes(block, barrier, bytes); });
        });
    }
    if (one_in(options.yield_odds)) yield();
}

void load_bulk(u32 to, const void* from, u32 bytes, u32 barrier, bool others_write) {
    if (others_write && now->acquired)
        report("copies what others wrote without a proxy fence since it has learnt of it");
    if (to % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<u64>(from) % 16 != 0)
        report("a bulk copy that 16 does not divide");
    Block& block = block_of(*now);
    events.emplace_back([&block, to, from, bytes, barrier] {
        if (block.running == 0) return report("a copy into a block that has ended");
        for (u32 at = 0; at < bytes; at += 16)
            std::memcpy(bytes_of(block, to + at, 16), static_cast<const unsigned char*>(from) + at, 16);
        events.emplace_back([&block, barrier, bytes] { complete_bytes(block, barrier, bytes); });
    });
    if (one_in(options.yield_odds)) yield();
}

void multiply(float* sums, int width, u64 a, u64 b) {
    check_descriptor(a), check_descriptor(b);
    now->open.push_back({a, b, width, sums, {}, false});
}

void multiply_registers(float* sums, const u32* a, u64 b) {
    check_descriptor(b);
    now->open.push_back({0, b, 64, sums, {a[0], a[1], a[2], a[3]}, true});
}

void commit() {
    collective("wgmma.commit_group", [](Warp& warp) {
        auto group = std::make_unique<Group>();
        for (u32 lane = 0; lane < 32; ++lane) {
            group->products[lane].swap(lane_of(*now, lane).open);
            const auto& mine = group->products[lane];
            const auto& first = group->products[0];
            bool same = mine.size() == first.size();
            for (u64 i = 0; same && i < mine.size(); ++i) same = mine[i].a == first[i].a && mine[i].b == first[i].b;
            if (!same) report("lanes of a warp multiply different things");
        }
        warp.groups.push_back(std::move(group));
        const u32 number = now->block * WARPS + now->thread / 32;
        events.emplace_back([number] { compute_group(number); });
    });
}

void wait_groups(u32 pending) {
    collective("wgmma.wait_group", [](Warp&) {});
    while (warp_of(*now).groups.size() > pending) sleep("products");
    now->waits_for = "";
}

u16 to_half(float value) {
    u32 bits;
    std::memcpy(&bits, &value, sizeof bits);
    const u16 sign = bits >> 16 & 0x8000;
    if (value != value) return 0x7FFF;
    const float size = std::fabs(value);
    if (size >= 65520.0f) return sign | 0x7C00;
    if (size < 6.103515625e-05f) return sign | u16(std::nearbyint(size * 16777216.0f));
    bits &= 0x7FFFFFFF;
    bits += 0xFFF + (bits >> 13 & 1);
    return sign | u16((bits - 0x38000000) >> 13);
}

float from_half(u16 half) { return values_of_halves[half]; }

// The program that runs on the CPU meanwhile, one step at a time; returns whether it has done something.
extern "C" __attribute__((visibility("default"))) void run_beside(int (*work)(void*), void* given) {
    beside = work, beside_given = given;
}

// Launches of the kernel one after another, each with its arguments and as many blocks.
extern "C" __attribute__((visibility("default"))) const char* run_launches(const void* const* arguments, u32 count,
                                                                           u32 number_of_blocks,
                                                                           u32 blocks_of_a_cluster, const Options* how,
                                                                           const void* flags, u64 flag_bytes) {
    if (values_of_halves[0x3C00 + 1] == 0)
        for (u32 i = 0; i < 65536; ++i) values_of_halves[i] = value_of_half(i);
    options = *how;
    dice.seed(options.seed);
    split = blocks_of_a_cluster, blocks_each = number_of_blocks;
    flags_begin = static_cast<const unsigned char*>(flags), flags_end = flags_begin + flag_bytes;
    set_up(arguments, count);
    schedule();
    if (!failed && !events.empty()) report("something asynchronous is still under way at the end");
    return failed ? failure.c_str() : nullptr;
}

extern "C" __attribute__((visibility("default"))) const char* run_kernel(const void* arguments, u32 number_of_blocks,
                                                                         u32 blocks_of_a_cluster, const Options* how,
                                                                         const void* flags, u64 flag_bytes) {
    return run_launches(&arguments, 1, number_of_blocks, blocks_of_a_cluster, how, flags, flag_bytes);
}

}  // namespace machine
