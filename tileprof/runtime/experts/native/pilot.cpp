// Deals the tasks of a layer of experts from the CPU. See dealing.cuh for the GPU's side.
//
// Which tasks there are is not known when a run begins: blocks that route tokens say which tiles of rows exist, and the
// pilot makes the tasks of each. The rings are those of the co-pilot of a plan (link.h, pilot.cpp there). A run's first
// commands, which route, stand in the rings before its launch.
//
// "graph.h" is made by build.py: the sizes of one layer, and the choices of the pilot.
#include <cstring>

#include "link.h"

#include "graph.h"

namespace {

enum Kind { ROUTE, UP, DOWN };
constexpr int KIND_AT = 18;
constexpr u32 TILE = 1, ROUTED = 2;  // messages, in the highest bits; 0: a task is done

constexpr int UP_TASKS = TILES * UPS, DOWN_TASKS = TILES * DOWNS;

u32 task_of(Kind kind, int number) { return static_cast<u32>(kind) << KIND_AT | static_cast<u32>(number); }

struct Pilot {
    u64* const link;
    u32 issued[BLOCKS] = {};  // commands, over all runs
    u32 heard = 0;  // messages, over all runs
    int outstanding[BLOCKS];
    int route_owner[ROUTES], up_owner[UP_TASKS], down_owner[DOWN_TASKS];
    int ups_sent[TILES], ups_done[TILES];
    int tiles, all_tiles;  // that exist; in the end, -1 while that is not known
    int sent, finished, turn;
    bool closed;
    Ranked<UP_TASKS> ups;
    Ranked<DOWN_TASKS> downs, ahead_downs;  // ready; and those whose inputs have been sent
    bool down_sent[DOWN_TASKS];
    u64 first_ns = 0, ended_ns = 0;
    u64 runs = 0, commands = 0, ahead = 0, batches = 0, most_in_batch = 0;

    explicit Pilot(u64* link) : link(link) { begin_run(); }

    void write(int block, u32 value) {
        const u32 number = issued[block]++;
        store(link + LINK_HEAD + block * COMMANDS + number % COMMANDS, static_cast<u64>(number + 1) << 32 | value);
    }

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
        write(block, value);
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

    // Gives a block something to do; false where there is nothing. What has more behind it comes first.
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
        // While tiles may still come to exist, nothing that waits is to stand in front of their tasks.
        if (!SPECULATE || all_tiles != tiles || !send_down(ahead_downs, block, AWAITS)) return false;
        ++ahead;
        return true;
    }

    int known() const { return ROUTES + tiles * (UPS + DOWNS); }

    // Blocks with the least to do come first, in turn.
    void deal() {
        for (int level = 0; level < DEPTH; ++level) {
            const int first = turn;
            for (int i = 0; i < BLOCKS; ++i) {
                const int block = (first + i) % BLOCKS;
                if (outstanding[block] != level) continue;
                if (!give(block)) return;
                turn = (block + 1) % BLOCKS;
            }
        }
    }

    void close_if_all_is_sent() {
        if (closed || all_tiles != tiles || sent != known()) return;
        closed = true;
        for (int block = 0; block < BLOCKS; ++block) write(block, NO_MORE);
    }

    // False for what this kernel does not say.
    bool hear(u32 message) {
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

    // Everything that was said by now, then what that allows. Whether there was anything.
    bool step() {
        u64 batch = 0;
        for (;; ++heard, ++batch) {
            const u64 seen = load(link + LINK_HEAD + BLOCKS * COMMANDS + heard % MESSAGES);
            if (static_cast<u32>(seen >> 32) != heard + 1) break;
            if (!hear(static_cast<u32>(seen))) return false;  // its waits will end the kernel
        }
        if (batch == 0) return false;
        ++batches;
        if (batch > most_in_batch) most_in_batch = batch;
        deal();
        close_if_all_is_sent();
        if (closed && finished == known()) {
            ended_ns += now_ns() - first_ns;
            ++runs;
            begin_run();
        }
        return true;
    }
};

}  // namespace

extern "C" {

// `link`: memory as dealing.cuh describes it, all zeros. The first run's commands are written at once.
Pilot* pilot_new(u64* link) { return new Pilot(link); }

int pilot_step(Pilot* pilot) { return pilot->step(); }

// Ends kernels that wait for it. No thread may step any more.
void pilot_delete(Pilot* pilot) {
    store(pilot->link, 1);
    delete pilot;
}

// As a plan's co-pilot: runs, commands, those ahead, 0, batches of messages, and the largest.
void pilot_counts(const Pilot* pilot, u64* six) {
    const u64 counts[6] = {pilot->runs, pilot->commands, pilot->ahead, 0, pilot->batches, pilot->most_in_batch};
    std::memcpy(six, counts, sizeof counts);
}

// From a run's first end of a task to its last, in nanoseconds, summed over runs.
int pilot_ends(const Pilot* pilot, u64* ended_ns, int room) {
    if (room > 0) ended_ns[0] = pilot->ended_ns;
    return 1;
}
}
