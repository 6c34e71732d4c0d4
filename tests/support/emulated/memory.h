// Stores that are held back, the shared memory of a cluster, its barriers, warp collectives, and polled words.
#pragma once

#include "state.h"

namespace machine {
namespace {

void learn(Fiber& fiber, const Clock& clock) {
    if (block_of(fiber).held > 0) fiber.clock.join(clock);
}

void put(const Store& store) { std::memcpy(store.to, &store.value, store.bytes); }

// Makes all stores that `clock` covers visible to all threads.
void release_stores(u32 number, const Clock& clock) {
    Block& block = blocks[number];
    for (u32 thread = 0; block.held > 0 && thread < THREADS; ++thread) {
        Fiber& fiber = fibers[number * THREADS + thread];
        auto known = std::stable_partition(fiber.held.begin(), fiber.held.end(),
                                           [&](const Store& s) { return s.number > clock.known[thread]; });
        for (auto store = known; store != fiber.held.end(); ++store, --block.held) put(*store);
        fiber.held.erase(known, fiber.held.end());
    }
}

void let_go_of_one() {
    while (!holders.empty()) {
        const u64 i = below(holders.size());
        Fiber& fiber = *holders[i];
        if (fiber.held.empty()) {
            holders[i] = holders.back();
            holders.pop_back();
            continue;
        }
        const Store store = fiber.held.front();
        put(store);
        progress = true;
        fiber.held.erase(fiber.held.begin());
        --block_of(fiber).held;
        return;
    }
}

// Returns the block and the offset of an address in the current block's cluster.
Block& owner(u32 address, u32& offset) {
    const u32 rank = address >> 24;
    offset = address & 0xFFFFFF;
    const u32 number = rank == 0 ? now->block : now->block / split * split + rank - 1;
    Block& block = blocks[number];
    if (block.running == 0) report(text("reaches into block %u, which has ended", number));
    return block;
}

unsigned char* bytes_of(Block& block, u32 offset, u32 bytes) {
    if (offset < SHARED_BEGIN || offset + bytes > SHARED_END) {
        report(text("shared memory from %u to %u does not exist", offset, offset + bytes));
        return block.memory.data();
    }
    return block.memory.data() + offset;
}

Barrier* barrier_at(Block& block, u32 offset) {
    const auto found = block.barriers.find(offset);
    if (found == block.barriers.end()) {
        report(text("no barrier has been made at %u", offset));
        return nullptr;
    }
    return &found->second;
}

void pass_if_complete(Barrier& barrier) {
    if (barrier.pending > 0 || barrier.bytes != 0) return;
    ++barrier.phase;
    barrier.pending = barrier.expected;
    barrier.passed = barrier.gathering;
    barrier.gathering = Clock();
    progress = true;
    wake_all(barrier.waiting);
}

void complete_bytes(Block& block, u32 offset, u32 bytes) {
    if (block.running == 0) return report("an asynchronous copy ends in a block that has ended");
    if (Barrier* barrier = barrier_at(block, offset)) {
        barrier->bytes -= bytes;
        pass_if_complete(*barrier);
    }
}

// The last lane to arrive does the work; the others wait for it.
template <class Work>
void collective(const char* name, Work&& work) {
    Fiber& self = *now;
    Warp& warp = warp_of(self);
    self.polled = nullptr;
    if (warp.arrived != 0 && warp.collective != name)
        report(text("is at %s, lanes of its warp at %s", name, warp.collective));
    warp.collective = name;
    warp.arrived |= 1u << self.thread % 32;
    if (warp.arrived != ~0u) return sleep(name);
    warp.arrived = 0;
    work(warp);
    for (u32 lane = 0; lane < 32; ++lane)
        if (lane != self.thread % 32) wake(lane_of(self, lane));
    if (one_in(options.yield_odds)) yield();
}

// A thread reads a word until it changes, with or without a pause between reads.
void poll(const void* address, u32 value, u32 name) {
    Fiber& self = *now;
    const bool same = self.polled == address && self.seen == value;
    self.repeats = same ? self.repeats + 1 : 0;
    if (same && (self.napped || self.repeats > MOST_REPEATS)) {
        self.repeats = 0;
        pollers.push_back({&self, address});
        sleep("a word that does not change", name);
    }
    self.napped = false;
}

void changed(const void* address) {
    progress = true;
    for (u64 i = 0; i < pollers.size();)
        if (pollers[i].address == address) {
            wake(*pollers[i].fiber);
            pollers[i] = pollers.back();
            pollers.pop_back();
        } else {
            ++i;
        }
}

}  // namespace
}  // namespace machine
