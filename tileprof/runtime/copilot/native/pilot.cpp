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

    // Counts a task as done; calls met(waiter) for each task that now waits for nothing else.
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
    static constexpr int programs = PROGRAMS;

    Rings<CLUSTERS, COMMANDS, COMPLETIONS> rings;  // a message is the number of a completed task
    int outstanding[CLUSTERS];
    int sent, finished, turn;
    bool was_sent[TASKS];
    int owner[TASKS];
    Counts done, begun;  // `begun` counts tasks that were sent as done
    Ranked<TASKS> ready, sendable;  // positions in the pilot's order
    int kin[CLUSTERS][KIN];  // ready tasks whose last input was written by this cluster
    int kin_count[CLUSTERS];
    int left[PROGRAMS];  // number of tasks of each program that are not completed
    // time of this run's first completion; nanoseconds from there to a program's last one, over all runs
    u64 first_ns = 0, ended_ns[PROGRAMS] = {};
    u64 runs = 0, commands = 0, ahead = 0, own = 0;

    explicit Pilot(u64* link) : rings(link) { begin_run(); }

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
        rings.write(cluster, static_cast<u32>(task) | flag);
        if (SPECULATE) begun.add(task, [&](int waiter) { sendable.insert(PLACE[waiter]); });
        if (++sent == TASKS)
            for (int each = 0; each < CLUSTERS; ++each) rings.write(each, NO_MORE);
    }

    // Returns the first task of a set that has not been sent, or -1.
    int take(Ranked<TASKS>& from) {
        for (;;) {
            const int place = from.take();
            if (place < 0) return -1;
            if (!was_sent[AT_PLACE[place]]) return AT_PLACE[place];
        }
    }

    // Sends a cluster a command; returns false if there is none.
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

    void deal() {
        deal_in_turn(CLUSTERS, DEPTH, outstanding, &turn, [&](int cluster) { return sent < TASKS && give(cluster); });
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

    // Processes all completions that have arrived, then sends what they allow. Returns whether there were any.
    bool step() {
        const bool any = rings.receive([&](u32 task) {
            if (task >= TASKS || !was_sent[task]) return false;
            complete(static_cast<int>(task));
            return true;
        });
        if (!any) return false;
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

#include "exports.h"
