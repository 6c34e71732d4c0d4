// Chooses what runs next and when events happen, and reports when no thread can continue.
#pragma once

#include "asynchronous.h"

namespace machine {
namespace {

void run_fiber(Fiber& fiber) {
    now = &fiber;
    thread_index = {fiber.thread};
    block_index = {fiber.block % blocks_each};
    switch_context(scheduler, fiber.context);
    now = nullptr;
}

// The clusters of the next launch begin one by one, at any moment from now on.
void begin_behind(u32 launch) {
    if (launch + 1 == launches.size()) return;
    for (u32 first = (launch + 1) * blocks_each; first < (launch + 2) * blocks_each; first += split)
        events.emplace_back([first] {
            for (u32 i = first * THREADS; i < (first + split) * THREADS; ++i) wake(fibers[i]);
        });
}

// Makes all stores of the launch visible to all.
void end_launch(u32 number) {
    for (u32 i = number * blocks_each * THREADS; i < (number + 1) * blocks_each * THREADS; ++i) {
        for (const Store& store : fibers[i].held) put(store);
        fibers[i].held.clear();
    }
    for (u32 b = number * blocks_each; b < (number + 1) * blocks_each; ++b) blocks[b].held = 0;
    wake_all(launches[number].front_ended);
}

void trigger(u32 number) {
    Block& block = blocks[number];
    if (block.triggered) return;
    block.triggered = true;
    if (--launches[number / blocks_each].untriggered == 0) begin_behind(number / blocks_each);
}

void first_steps() {
    enter(launches[launch_of(*now)].parameters);
    now->done = true;
    progress = true;
    if (--block_of(*now).running == 0) {
        trigger(now->block);
        if (--launches[launch_of(*now)].running == 0) end_launch(launch_of(*now));
    }
    switch_context(now->context, scheduler);
}

void run_event() {
    const u64 i = options.events == 0 ? below(events.size()) : options.events == 1 ? 0 : events.size() - 1;
    const std::function<void()> event = std::move(events[i]);
    if (i + 1 < events.size()) events[i] = std::move(events.back());
    events.pop_back();
    event();
}

// Returns the position in `ready` of the warp to run; -1 if only starved warps are there and other steps are possible.
int choose() {
    int best = -1;
    u64 most = 0;
    const u64 start = options.order == 0 ? below(ready.size()) : 0;
    for (u64 i = 0; i < ready.size(); ++i) {
        const u64 place = (start + i) % ready.size();
        const Warp& warp = warps[ready[place]];
        if (warp.starved) continue;
        if (options.order != 2) return int(place);
        if (best < 0 || warp.priority > most) best = int(place), most = warp.priority;
    }
    if (best < 0 && events.empty()) return int(start);
    return best;
}

void run_warp(int place) {
    const u32 number = ready[place];
    ready.erase(ready.begin() + place);
    Warp& warp = warps[number];
    const u32 mask = warp.ready, turn = below(32);
    warp.ready = 0;
    if (options.order == 2 && one_in(256)) warp.priority = dice();
    for (u32 i = 0; i < 32 && !failed; ++i) {
        const u32 lane = (turn + i) % 32;
        if (mask >> lane & 1) run_fiber(fibers[number * 32 + lane]);
    }
}

std::string stuck() {
    std::unordered_map<std::string, int> lines;
    std::string all = "no thread can go on:";
    for (u32 i = 0; i < fibers.size(); ++i) {
        const Fiber& fiber = fibers[i];
        if (fiber.done) continue;
        const std::string where =
            fiber.waits_at != 0 ? " " + name_of(fiber.waits_at) + text(" parity %u", fiber.waits_parity) : "";
        const std::string line =
            text("block %u warp %u waits for ", fiber.block, fiber.thread / 32) + fiber.waits_for + where;
        if (lines[line]++ == 0) all += "\n  " + line;
    }
    return all;
}

void step_beside() {
    if (beside != nullptr && beside(beside_given)) progress = true;
}

void step() {
    if (beside != nullptr && one_in(64)) step_beside();
    if (one_in(options.drain_odds)) let_go_of_one();
    const bool eventful =
        !events.empty() && (options.events == 1 || (options.events == 0 && one_in(options.event_odds)));
    const int place = eventful || ready.empty() ? -1 : choose();
    if (place >= 0) return run_warp(place);
    if (!events.empty()) run_event();
}

void schedule() {
    int idle = 0;
    u64 alive = blocks.size();
    while (alive > 0 && !failed) {
        if (ready.empty() && events.empty()) {
            alive = 0;
            for (const Block& block : blocks) alive += block.running > 0;
            if (alive == 0) break;
            step_beside();
            idle = progress ? 0 : idle + 1;
            progress = false;
            if (pollers.empty() || idle > MOST_IDLE) return report(stuck());
            if (idle > 16) time_ns += TIMEOUT / 16;
            while (options.drain_odds > 0 && !holders.empty() && !one_in(64)) let_go_of_one();
            for (const Poller& poller : pollers) wake(*poller.fiber);
            pollers.clear();
        }
        step();
    }
    for (Fiber& fiber : fibers)
        for (const Store& store : fiber.held) put(store);
}

void set_up(const void* const* parameters, u32 number_of_launches) {
    const u32 number_of_blocks = number_of_launches * blocks_each;
    const u64 bytes = u64(number_of_blocks) * THREADS * STACK_BYTES;
    if (bytes > stacks_bytes) {
        if (stacks != nullptr) munmap(stacks, stacks_bytes);
        stacks = static_cast<unsigned char*>(
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        stacks_bytes = bytes;
    }
    fibers.clear(), warps.clear(), blocks.clear(), launches.clear(), cluster_meetings.clear(), ready.clear(),
        events.clear(), pollers.clear(), holders.clear();
    now = nullptr, time_ns = 0, progress = true, failed = false, failure.clear();
    grid_size = {blocks_each};
    for (u32 i = 0; i < number_of_launches; ++i) launches.push_back({parameters[i], blocks_each, blocks_each, {}});
    fibers.reserve(number_of_blocks * THREADS), warps.reserve(number_of_blocks * WARPS);
    cluster_meetings.resize(number_of_blocks / split);
    for (u32 b = 0; b < number_of_blocks; ++b) {
        blocks.emplace_back().memory.assign(SHARED_END, 0xFF);  // not a number, in every type
        for (u32 w = 0; w < WARPS; ++w) {
            Warp& warp = warps.emplace_back();
            warp.priority = dice();
            const auto meant = [](int wanted, u32 is) { return wanted < 0 || u32(wanted) == is; };
            const bool any = options.starved_cluster >= 0 || options.starved_block >= 0 || options.starved_warp >= 0;
            warp.starved = any && meant(options.starved_cluster, b / split) && meant(options.starved_block, b) &&
                           meant(options.starved_warp, w);
        }
        for (u32 t = 0; t < THREADS; ++t) {
            Fiber& fiber = fibers.emplace_back();
            fiber.block = b, fiber.thread = t;
            make_context(fiber.context, stacks + (u64(b) * THREADS + t) * STACK_BYTES, STACK_BYTES, first_steps);
        }
    }
    for (Fiber& fiber : fibers) {
        fiber.waits_for = "its launch";
        if (launch_of(fiber) == 0) wake(fiber);
    }
}

}  // namespace
}  // namespace machine
