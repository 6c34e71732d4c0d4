// Deals the tasks of a persistent kernel from the CPU, over memory that both share. See dealing.cuh for the GPU's side.
//
//     cluster --- completion: task ---> ring of completions --+
//                                                            pilot: counts what tasks wait for, chooses
//     cluster <-- command: task, end -- ring per cluster <---+
//
// A run's first commands stand in the rings before its launch: the pilot writes them when the run before has ended.
// Commands that are sent before their task is ready carry AWAITS: the cluster then waits for the semaphores itself.
// Such a task is sent only after all that it waits for, so that the earliest task which is not completed always can be,
// and no order of commands deadlocks.
//
// "graph.h" is made by build.py: the constants and tables of one plan, and the choices of the pilot.
#include <cstring>

#include "link.h"

#include "graph.h"

namespace {

static_assert(DEPTH + 2 <= COMMANDS, "a cluster's ring holds what it may be sent, and the ends of two runs");

// What tasks wait for: semaphores that reach values.
struct Counts {
    int posted[SEMAPHORES];
    int pending[TASKS];

    void clear() { std::memset(this, 0, sizeof *this); }

    // Counts a task as done; calls met(waiter) for each that now waits for nothing else.
    template <class Met>
    void add(int task, Met&& met) {
        for (int post = POST_PTR[task]; post < POST_PTR[task + 1]; ++post) {
            const int semaphore = POSTS[post], value = posted[semaphore] += SPLIT;
            for (int event = EVENT_PTR[semaphore]; event < EVENT_PTR[semaphore + 1]; ++event)
                if (EVENTS[event][0] == value)
                    for (int i = EVENTS[event][1]; i < EVENTS[event][2]; ++i)
                        if (++pending[WAITERS[i]] == NEEDS[WAITERS[i]]) met(WAITERS[i]);
        }
    }
};

struct Pilot {
    u64* const link;
    u32 issued[CLUSTERS] = {};  // commands, over all runs
    int outstanding[CLUSTERS];
    u32 heard = 0;  // completions, over all runs
    int sent, finished, turn;
    bool was_sent[TASKS];
    int owner[TASKS];
    Counts done, begun;  // begun: as if all that was sent were done
    Ranked<TASKS> ready, sendable;  // places of the pilot's order
    int kin[CLUSTERS][KIN];  // ready tasks whose last input a cluster has made
    int kin_count[CLUSTERS];
    int left[PROGRAMS];  // tasks of each program that are not completed
    u64 first_ns = 0, ended_ns[PROGRAMS] = {};  // this run's first completion; from there to a program's last, all runs
    u64 runs = 0, commands = 0, ahead = 0, own = 0, batches = 0, most_in_batch = 0;

    explicit Pilot(u64* link) : link(link) { begin_run(); }

    u64* ring(int cluster) const { return link + LINK_HEAD + cluster * COMMANDS; }
    u64* completions() const { return link + LINK_HEAD + CLUSTERS * COMMANDS; }

    void write(int cluster, u32 value) {
        const u32 number = issued[cluster]++;
        store(ring(cluster) + number % COMMANDS, static_cast<u64>(number + 1) << 32 | value);
    }

    void begin_run() {
        sent = finished = turn = 0;
        std::memset(outstanding, 0, sizeof outstanding);
        std::memset(was_sent, 0, sizeof was_sent);
        std::memset(kin_count, 0, sizeof kin_count);
        std::memcpy(left, PROGRAM_TASKS, sizeof left);
        done.clear(), begun.clear();
        ready = sendable = {};
        for (int task : READY_TASKS) ready.insert(PLACE[task]);
        deal();
    }

    void send(int cluster, int task, u32 flag) {
        was_sent[task] = true;
        owner[task] = cluster;
        ++outstanding[cluster];
        ++commands;
        write(cluster, static_cast<u32>(task) | flag);
        if (SPECULATE) begun.add(task, [&](int waiter) { sendable.insert(PLACE[waiter]); });
        if (++sent == TASKS)
            for (int each = 0; each < CLUSTERS; ++each) write(each, NO_MORE);
    }

    // The first task of a set that has not been sent, -1 where there is none.
    int take(Ranked<TASKS>& from) {
        for (;;) {
            const int place = from.take();
            if (place < 0) return -1;
            if (!was_sent[AT_PLACE[place]]) return AT_PLACE[place];
        }
    }

    // Gives a cluster something to do; false where there is nothing.
    bool give(int cluster) {
        while (AFFINITY && kin_count[cluster] > 0) {
            const int task = kin[cluster][--kin_count[cluster]];
            if (was_sent[task]) continue;
            ++own;
            send(cluster, task, 0);
            return true;
        }
        int task = take(ready);
        if (task >= 0) {
            send(cluster, task, 0);
            return true;
        }
        if (SPECULATE && (task = take(sendable)) >= 0) {
            ++ahead;
            send(cluster, task, AWAITS);
            return true;
        }
        return false;
    }

    // Clusters with the least to do come first, in turn.
    void deal() {
        for (int level = 0; level < DEPTH; ++level) {
            const int first = turn;  // the turn moves on below, and no cluster may be passed over for that
            for (int i = 0; i < CLUSTERS; ++i) {
                const int cluster = (first + i) % CLUSTERS;
                if (outstanding[cluster] != level || sent == TASKS) continue;
                if (!give(cluster)) return;
                turn = (cluster + 1) % CLUSTERS;
            }
        }
    }

    void complete(int task) {
        const int cluster = owner[task];
        --outstanding[cluster];
        if (finished++ == 0) first_ns = now_ns();
        if (--left[PROGRAM_OF[task]] == 0) ended_ns[PROGRAM_OF[task]] += now_ns() - first_ns;
        done.add(task, [&](int waiter) {
            if (was_sent[waiter]) return;
            ready.insert(PLACE[waiter]);
            if (AFFINITY && kin_count[cluster] < KIN) kin[cluster][kin_count[cluster]++] = waiter;
        });
    }

    // Everything that has been completed by now, then what that allows. Whether there was anything.
    bool step() {
        u64 batch = 0;
        for (;; ++heard, ++batch) {
            const u64 seen = load(completions() + heard % COMPLETIONS);
            if (static_cast<u32>(seen >> 32) != heard + 1) break;
            const u32 task = static_cast<u32>(seen);
            if (task >= TASKS || !was_sent[task]) return false;  // not what this kernel says: its waits will end it
            complete(static_cast<int>(task));
        }
        if (batch == 0) return false;
        ++batches;
        if (batch > most_in_batch) most_in_batch = batch;
        if (finished < TASKS) {
            deal();
        } else {
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

// Runs, commands, those sent ahead, those to the cluster of their last input, batches of completions, and the largest.
// To be asked while no kernel runs.
void pilot_counts(const Pilot* pilot, u64* six) {
    const u64 counts[6] = {pilot->runs, pilot->commands, pilot->ahead,
                           pilot->own,  pilot->batches,  pilot->most_in_batch};
    std::memcpy(six, counts, sizeof counts);
}

// From a run's first completion to the last of each program, in nanoseconds, summed over runs. Returns how many
// programs there are, and writes at most `room`. To be asked while no kernel runs.
int pilot_ends(const Pilot* pilot, u64* ended_ns, int room) {
    for (int i = 0; i < PROGRAMS && i < room; ++i) ended_ns[i] = pilot->ended_ns[i];
    return PROGRAMS;
}
}
