// Shared by all co-pilots: the rings of words that a kernel reads and writes while it runs, ordered sets of tasks,
// and the order in which workers (clusters or blocks) get tasks.
#pragma once

#include <chrono>
#include <cstdint>

using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u32 AWAITS = 1u << 30, NO_MORE = ~0u;
constexpr int LINK_HEAD = 16;

inline void store(u64* to, u64 value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }
inline u64 load(const u64* from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }

inline u64 now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// An ordered set of places, with one bit each; the first set bit is the next place.
template <int COUNT>
struct Ranked {
    static constexpr int WORDS = (COUNT + 63) / 64;
    u64 words[WORDS] = {};
    int first = WORDS;  // no earlier word has a bit

    void insert(int place) {
        words[place / 64] |= 1ull << place % 64;
        if (place / 64 < first) first = place / 64;
    }

    // The next place; -1 if there is none.
    int next() {
        for (; first < WORDS; ++first)
            if (words[first] != 0) return 64 * first + __builtin_ctzll(words[first]);
        return -1;
    }

    // Removes and returns the next place; -1 if there is none.
    int take() {
        const int place = next();
        if (place >= 0) words[first] &= words[first] - 1;
        return place;
    }
};

// The rings of a kernel, in memory that starts as zeros: each worker's commands, the messages of all workers, and, if
// commands may be overwritten, each worker's claims, which repeat the commands that it took. All runs use the same
// rings. A word contains its sequence number, from 1, above its value.
template <int WORKERS, int COMMANDS, int MESSAGES>
struct Rings {
    u64* const link;
    u32 issued[WORKERS] = {};  // number of commands, over all runs
    u32 received = 0;  // number of messages, over all runs
    u64 batches = 0, most_in_batch = 0;
    u64 overwritten = 0, too_late = 0;  // commands; and those that their worker had read before

    explicit Rings(u64* link) : link(link) {}

    void write(int worker, u32 value) {
        const u32 number = issued[worker]++;
        overwrite(worker, number, value);
    }

    // Puts another value into a command's place, which the worker may have read or not.
    void overwrite(int worker, u32 number, u32 value) {
        store(link + LINK_HEAD + worker * COMMANDS + number % COMMANDS, static_cast<u64>(number + 1) << 32 | value);
    }

    // Returns whether a worker is known to have taken the command of a number, and the value that it took.
    bool claimed(int worker, u32 number, u32* value) const {
        const u64 word = load(link + LINK_HEAD + WORKERS * COMMANDS + MESSAGES + worker * COMMANDS + number % COMMANDS);
        *value = static_cast<u32>(word);
        return static_cast<u32>(word >> 32) == number + 1;
    }

    // Passes on each message that has arrived. Returns false if there was none, or if `take` rejects one: that kernel
    // sends a wrong message, and its own waits will end it.
    template <class Take>
    bool receive(Take&& take) {
        u64 batch = 0;
        for (;; ++received, ++batch) {
            const u64 word = load(link + LINK_HEAD + WORKERS * COMMANDS + received % MESSAGES);
            if (static_cast<u32>(word >> 32) != received + 1) break;
            if (!take(static_cast<u32>(word))) return false;
        }
        if (batch == 0) return false;
        ++batches;
        if (batch > most_in_batch) most_in_batch = batch;
        return true;
    }
};

// Serves the workers with the fewest commands first, in turn, until each has `depth` commands that are not completed.
// `give(worker)` sends it a command; it returns false if there is none.
template <class Give>
void deal_in_turn(int workers, int depth, const int* outstanding, int* turn, Give&& give) {
    for (int level = 0; level < depth; ++level) {
        const int first = *turn;  // the turn changes below, and that must not skip a worker
        for (int i = 0; i < workers; ++i) {
            const int worker = (first + i) % workers;
            if (outstanding[worker] != level) continue;
            if (!give(worker)) return;
            *turn = (worker + 1) % workers;
        }
    }
}
