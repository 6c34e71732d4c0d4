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
// OVERWRITE: a command whose cluster is not known to have taken it may be overwritten by a task that is ready and more
// urgent, once. Nothing makes the CPU's write and the cluster's read one step, so that either task may run: both stay
// with the cluster until its claim says which it took, and the other one is dealt again. A task for which others have
// been sent ahead stays where it is. So a task that was sent ahead still waits only for tasks in commands that were
// sent before its own, and that will be taken.
//
// "graph.h" is made by copilot_build.py: the constants and tables of one plan, and the choices of the pilot.
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

    // Undoes `add`.
    void remove(int task) {
        for (int post = POST_PTR[task]; post < POST_PTR[task + 1]; ++post) {
            const int semaphore = POSTS[post], value = posted[semaphore];
            posted[semaphore] -= SPLIT;
            for (int event = EVENT_PTR[semaphore]; event < EVENT_PTR[semaphore + 1]; ++event)
                if (EVENTS[event][0] == value)
                    for (int i = EVENTS[event][1]; i < EVENTS[event][2]; ++i) --pending[WAITERS[i]];
        }
    }

    bool met(int task) const { return pending[task] == NEEDS[task]; }
};

// The task of a command, and the task that it has overwritten, or -1.
struct Command {
    int task = -1, before = -1;
};

struct Pilot {
    static constexpr int programs = PROGRAMS;

    Rings<CLUSTERS, COMMANDS, COMPLETIONS> rings;  // a message is the number of a completed task
    int outstanding[CLUSTERS];
    int sent, finished, turn;
    bool was_sent[TASKS], is_done[TASKS];
    int owner[TASKS];
    Counts done, begun;  // `begun` counts tasks that were sent as done
    Ranked<TASKS> ready, sendable;  // positions in the pilot's order
    int kin[CLUSTERS][KIN];  // ready tasks whose last input was written by this cluster
    int kin_count[CLUSTERS];
    Command sent_commands[CLUSTERS][COMMANDS];  // OVERWRITE: by sequence number, as in the rings
    u32 taken[CLUSTERS] = {};  // OVERWRITE: number of commands that a cluster is known to have taken, over all runs
    int undecided = 0;  // number of commands of which either task may run
    int worst_grade, not_ready;  // of tasks sent in this run: the largest grade, and the number that wait for inputs
    int done_at[CLUSTERS];  // number of this run's completions when a cluster completed its last task
    int home[TASKS];  // the cluster that made the last input of a task, or -1
    int left[PROGRAMS];  // number of tasks of each program that are not completed
    // time of this run's first completion; nanoseconds from there to a program's last one, over all runs
    u64 first_ns = 0, ended_ns[PROGRAMS] = {};
    u64 runs = 0, commands = 0, ahead = 0, own = 0;

    explicit Pilot(u64* link) : rings(link) { begin_run(); }

    void begin_run() {
        sent = finished = turn = worst_grade = not_ready = 0;
        std::memset(is_done, 0, sizeof is_done);
        std::memset(outstanding, 0, sizeof outstanding);
        std::memset(was_sent, 0, sizeof was_sent);
        std::memset(kin_count, 0, sizeof kin_count);
        std::memset(done_at, 0, sizeof done_at);
        std::memset(home, -1, sizeof home);
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
        not_ready += flag == AWAITS;
        if (GRADE[task] > worst_grade) worst_grade = GRADE[task];
        if (OVERWRITE) sent_commands[cluster][rings.issued[cluster] % COMMANDS] = {task, -1};
        rings.write(cluster, static_cast<u32>(task) | flag);
        count_begun(task);
        if (++sent == TASKS) end_run();
    }

    void end_run() {
        for (int each = 0; each < CLUSTERS; ++each) {
            if (OVERWRITE) sent_commands[each][rings.issued[each] % COMMANDS] = {};
            rings.write(each, NO_MORE);
        }
    }

    void count_begun(int task) {
        if (SPECULATE) begun.add(task, [&](int waiter) { sendable.insert(PLACE[waiter]); });
    }

    // Returns the first task of a set that has not been sent, or -1.
    int take(Ranked<TASKS>& from) {
        for (;;) {
            const int place = from.take();
            if (place < 0) return -1;
            if (!was_sent[AT_PLACE[place]]) return AT_PLACE[place];
        }
    }

    // Takes the first task that has not been sent although all its inputs have; returns -1 if there is none.
    int take_ahead() {
        int task;
        do task = take(sendable);
        while (OVERWRITE && task >= 0 && !begun.met(task));  // an input was overwritten; it comes back with that one
        return task;
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
        if (SPECULATE && (task = take_ahead()) >= 0) {
            ++ahead;
            send(cluster, task, AWAITS);
            return true;
        }
        return false;
    }

    void deal() {
        deal_in_turn(CLUSTERS, DEPTH, outstanding, &turn, [&](int cluster) { return sent < TASKS && give(cluster); });
    }

    // Returns whether a ready task should replace another that a cluster has been sent.
    bool better(int task, int other, int cluster) const {
        if (GRADE[task] != GRADE[other]) return GRADE[task] < GRADE[other];
        return !done.met(other) || (AFFINITY && home[task] == cluster && home[other] != cluster);
    }

    // Returns whether a task that was sent may be dealt again: no cluster waits for it.
    bool withdrawable(int task) const {
        for (int post = POST_PTR[task]; SPECULATE && post < POST_PTR[task + 1]; ++post)
            for (int event = EVENT_PTR[POSTS[post]]; event < EVENT_PTR[POSTS[post] + 1]; ++event)
                for (int i = EVENTS[event][1]; i < EVENTS[event][2]; ++i)
                    if (was_sent[WAITERS[i]]) return false;
        return true;
    }

    // Returns the command of a cluster, counted from `taken`, that a task should overwrite; -1 if there is none.
    int command_for(int task, int cluster) const {
        for (u32 number = taken[cluster]; number != rings.issued[cluster]; ++number) {
            const Command& command = sent_commands[cluster][number % COMMANDS];
            if (command.task >= 0 && command.before < 0 && better(task, command.task, cluster) &&
                withdrawable(command.task))
                return static_cast<int>(number - taken[cluster]);
        }
        return -1;
    }

    // Writes a task over the command that will be taken first of those that it should overwrite: as far as is known, of
    // the cluster that has worked on its task for longest. Returns false if there is none with fewer than `before`
    // commands in front of it that are not taken. A cluster that comes into question is asked at once what it has
    // taken: all are, where all have taken what the task should overwrite, and each only once.
    bool replace(int task, int before) {
        if (before <= 0) return false;
        int best = -1, nearest = before;
        for (int cluster = 0; cluster < CLUSTERS; ++cluster) do {
                const int behind = command_for(task, cluster);
                if (behind < 0 || behind > nearest || (behind == nearest && best < 0)) break;
                if (behind == nearest && done_at[cluster] >= done_at[best]) break;
                if (!settle(cluster)) best = cluster, nearest = behind;
            } while (best != cluster);
        if (best < 0) return false;
        const u32 number = taken[best] + static_cast<u32>(nearest);
        Command& command = sent_commands[best][number % COMMANDS];
        command = {task, command.task};
        if (SPECULATE) begun.remove(command.before);
        was_sent[task] = true;
        owner[task] = best;
        ++commands, ++undecided, ++rings.overwritten;
        rings.overwrite(best, number, static_cast<u32>(task));
        return true;
    }

    // Reads a cluster's claims. Returns whether there were new ones.
    bool settle(int cluster) {
        bool any = false;
        for (u32 value; rings.claimed(cluster, taken[cluster], &value); ++taken[cluster], any = true) {
            Command& command = sent_commands[cluster][taken[cluster] % COMMANDS];
            if (command.before < 0) continue;
            const int won = static_cast<int>(value & ~AWAITS);
            const int lost = won == command.task ? command.before : command.task;
            --undecided;
            rings.too_late += won == command.before;
            command = {won, -1};
            count_begun(won);
            was_sent[lost] = false;
            if (done.met(lost)) {
                ready.insert(PLACE[lost]);
            } else {
                --not_ready;
                if (begun.met(lost)) sendable.insert(PLACE[lost]);
            }
        }
        return any;
    }

    // A quick test: returns false if no cluster can have a command that the task should overwrite.
    bool may_replace(int task) const { return GRADE[task] < worst_grade || not_ready > 0 || AFFINITY; }

    // Returns how many commands that are not taken a new one would have in front of it; COMMANDS if there is no room.
    int commands_before_new() const {
        int least = DEPTH;
        for (int number : outstanding)
            if (number < least) least = number;
        return least < DEPTH ? least - 1 : COMMANDS;
    }

    // Sends ready tasks in place of others where they come earlier than in a new command.
    void overwrite() {
        for (int task; (task = take(ready)) >= 0;)
            if (!may_replace(task) || !replace(task, commands_before_new())) {
                ready.insert(PLACE[task]);
                return;
            }
    }

    void complete(int task) {
        const int cluster = owner[task];
        --outstanding[cluster];
        is_done[task] = true;
        done_at[cluster] = ++finished;
        if (finished == 1) first_ns = now_ns();
        if (--left[PROGRAM_OF[task]] == 0) ended_ns[PROGRAM_OF[task]] += now_ns() - first_ns;
        done.add(task, [&](int waiter) {
            home[waiter] = cluster;
            if (was_sent[waiter]) {
                --not_ready;
                return;
            }
            ready.insert(PLACE[waiter]);
            if (AFFINITY && kin_count[cluster] < KIN) kin[cluster][kin_count[cluster]++] = waiter;
        });
    }

    // Processes all completions that have arrived, then sends what they allow. Returns whether there were any.
    bool step() {
        bool any = rings.receive([&](u32 task) {
            if (task >= TASKS || !was_sent[task] || is_done[task]) return false;
            if (OVERWRITE) settle(owner[task]);
            complete(static_cast<int>(task));
            return true;
        });
        for (int cluster = 0; OVERWRITE && undecided > 0 && cluster < CLUSTERS; ++cluster) any |= settle(cluster);
        if (!any) return false;
        if (finished < TASKS) {
            if (OVERWRITE) overwrite();
            deal();
            if (OVERWRITE) overwrite();
        } else {
            ++runs;
            begin_run();
        }
        return true;
    }
};

}  // namespace

#include "exports.h"
