// What co-pilots share: words that a kernel reads and writes while it runs, and sets of tasks in an order.
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

// Places of an order: a bit each, the first is the next.
template <int COUNT>
struct Ranked {
    static constexpr int WORDS = (COUNT + 63) / 64;
    u64 words[WORDS] = {};
    int first = WORDS;  // no word before has a bit

    void insert(int place) {
        words[place / 64] |= 1ull << place % 64;
        if (place / 64 < first) first = place / 64;
    }

    // The next place, which is taken out; -1 where there is none.
    int take() {
        for (; first < WORDS; ++first)
            if (words[first] != 0) {
                const int place = 64 * first + __builtin_ctzll(words[first]);
                words[first] &= words[first] - 1;
                return place;
            }
        return -1;
    }
};
