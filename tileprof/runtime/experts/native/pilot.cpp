// Deals the tasks of a layer of experts from the CPU. See dealing.cuh for the GPU's side.
//
// Which tasks there are is not known when a run begins: blocks that route tokens say which tiles of rows exist, and the
// pilot makes the tasks of each. The rings are those of the co-pilot of a plan (link.h). A run's first
// commands, which route, stand in the rings before its launch.
//
// "graph.h" is made by experts_build.py: the sizes of one layer, and the choices of the pilot.
#include <cstring>

#include "link.h"

#include "graph.h"

namespace {

enum Kind { ROUTE, UP, DOWN };
constexpr int KIND_AT = 18;
constexpr u32 TILE = 1, ROUTED = 2;  // kind of message, in the highest bits; 0: a task is done

constexpr int UP_TASKS = TILES * UPS, DOWN_TASKS = TILES * DOWNS;

u32 task_of(Kind kind, int number) { return static_cast<u32>(kind) << KIND_AT | static_cast<u32>(number); }

struct Pilot {
    static constexpr int programs = 1;

    Rings<BLOCKS, COMMANDS, MESSAGES> rings;
    int outstanding[BLOCKS];
    int route_owner[ROUTES], up_owner[UP_TASKS], down_owner[DOWN_TASKS];
    int ups_sent[TILES], ups_done[TILES];
    int tiles, all_tiles;  // number of existing tiles, and their final number, -1 while unknown
    int sent, finished, turn;
    bool closed;
    Ranked<UP_TASKS> ups;
    Ranked<DOWN_TASKS> downs, ahead_downs;  // ready tasks, and tasks whose inputs have been sent
    bool down_sent[DOWN_TASKS];
    // time of this run's first completion; nanoseconds from there to the last one, over all runs
    u64 first_ns = 0, ended_ns[1] = {};
    u64 runs = 0, commands = 0, ahead = 0, own = 0;

    explicit Pilot(u64* link) : rings(link) { begin_run(); }

    void begin_run() {
        tiles = sent = finished = turn = 0;
        all_tiles = -1;
        closed = false;
        std::memset(outstanding, 0, sizeof outstanding);
        std::memset(ups_sent, 0, sizeof ups_sent);
        std::memset(ups_done, 0, sizeof ups_done);
        std::memset(down_sent, 0, sizeof down_sent);
        ups = {}, downs = {}, ahead_downs = {};
        for (int route = 0; route < ROUTES; ++route) send(route_owner[route] = route % BLOCKS, task_of(ROUTE, route));
    }

    void send(int block, u32 value) {
        ++outstanding[block], ++commands, ++sent;
        rings.write(block, value);
    }

    bool send_down(Ranked<DOWN_TASKS>& from, int block, u32 flag) {
        int down;
        do down = from.take();
        while (down >= 0 && down_sent[down]);
        if (down < 0) return false;
        down_sent[down] = true;
        down_owner[down] = block;
        send(block, task_of(DOWN, down) | flag);
        return true;
    }

    // Sends a block a command; returns false if there is none. Tasks with more tasks behind them come first.
    bool give(int block) {
        const int up = ups.take();
        if (up >= 0) {
            up_owner[up] = block;
            send(block, task_of(UP, up));
            const int tile = up / UPS;
            if (SPECULATE && ++ups_sent[tile] == UPS)
                for (int column = 0; column < DOWNS; ++column) ahead_downs.insert(tile * DOWNS + column);
            return true;
        }
        if (send_down(downs, block, 0)) return true;
        // While further tiles may appear, no waiting task may be in front of their tasks.
        if (!SPECULATE || all_tiles != tiles || !send_down(ahead_downs, block, AWAITS)) return false;
        ++ahead;
        return true;
    }

    int tasks_so_far() const { return ROUTES + tiles * (UPS + DOWNS); }

    void deal() {
        deal_in_turn(BLOCKS, DEPTH, outstanding, &turn, [&](int block) { return give(block); });
    }

    void close_if_all_is_sent() {
        if (closed || all_tiles != tiles || sent != tasks_so_far()) return;
        closed = true;
        for (int block = 0; block < BLOCKS; ++block) rings.write(block, NO_MORE);
    }

    // Returns false for a message that this kernel never sends.
    bool take(u32 message) {
        if (message >> 28 == TILE) {
            const int tile = static_cast<int>(message & 0xFFFFFFF);
            if (tile >= TILES) return false;
            ++tiles;
            for (int column = 0; column < UPS; ++column) ups.insert(tile * UPS + column);
            return true;
        }
        if (message >> 28 == ROUTED) {
            all_tiles = static_cast<int>(message & 0xFFFFFFF);
            return true;
        }
        const int kind = message >> KIND_AT & 3, number = static_cast<int>(message & ((1u << KIND_AT) - 1));
        if (number >= (kind == ROUTE ? ROUTES : kind == UP ? UP_TASKS : DOWN_TASKS)) return false;
        if (finished++ == 0) first_ns = now_ns();
        --outstanding[kind == ROUTE ? route_owner[number] : kind == UP ? up_owner[number] : down_owner[number]];
        if (kind == UP && ++ups_done[number / UPS] == UPS)
            for (int column = 0; column < DOWNS; ++column)
                if (!down_sent[number / UPS * DOWNS + column]) downs.insert(number / UPS * DOWNS + column);
        return true;
    }

    // Processes everything that has arrived, then sends what it allows. Returns whether there was anything.
    bool step() {
        if (!rings.receive([&](u32 message) { return take(message); })) return false;
        deal();
        close_if_all_is_sent();
        if (closed && finished == tasks_so_far()) {
            ended_ns[0] += now_ns() - first_ns;
            ++runs;
            begin_run();
        }
        return true;
    }
};

}  // namespace

#include "exports.h"
