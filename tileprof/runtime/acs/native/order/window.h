// Which launch must wait for which, by ranges of addresses, and in which lane (stream) it is placed. This code does
// not use CUDA.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <array>
#include <deque>
#include <vector>

namespace tileprof::acs {

constexpr int kMostLanes = 32;

struct Range {
    uint64_t low, high;  // [low, high)
};

inline bool overlap(const Range& a, const Range& b) { return a.low < b.high && b.low < a.high; }

// The ranges that a launch touches. Updates (atomics) are in both.
struct Access {
    std::vector<Range> reads, writes;
    void clear() {
        reads.clear();
        writes.clear();
    }
};

// Returns whether the later of two launches must wait for the earlier: RAW, WAW, WAR.
bool conflicts(const Access& earlier, const Access& later);

// Per lane: everything up to this launch of the lane is ordered before. Launches of one lane are always ordered.
using Clock = std::array<uint64_t, kMostLanes>;

inline void raise(Clock& clock, const Clock& other) {
    for (int lane = 0; lane < kMostLanes; ++lane)
        if (clock[lane] < other[lane]) clock[lane] = other[lane];
}

// A launch in the window.
struct Item {
    uint64_t number;  // number of the launch, from 1
    uint64_t key;     // key of the launch in its program: equal if the program repeats itself
    int lane;
    Clock clock;  // everything that is ordered before its end, itself included
    Access access;
};

struct Placement {
    int lane;
    Clock needs;  // per lane: the last launch that must have ended before; 0: none
};

// Launches of one stream of the program, spread over lanes; lane 0 is that stream. A launch waits for those in the
// window with which it conflicts, for the last barrier, and for every launch that has left the window, because these
// are no longer compared.
class Window {
  public:
    Window(size_t size, int lanes) : size_(size), lanes_(lanes) {}

    Placement place(const Access& access) const;
    // Places the launch in a lane whose clock was passed to `note_order`.
    const Item& add(Access&& access, int lane, uint64_t key);
    // Places an unknown operation in lane 0, behind everything.
    void barrier(uint64_t key);
    // Orders the end of a lane's launches after these.
    void note_order(int lane, const Clock& clock) { raise(clocks_[lane], clock); }

    const Clock& clock(int lane) const { return clocks_[lane]; }
    uint64_t tail(int lane) const { return tails_[lane]; }
    uint64_t tail_key(int lane) const { return tail_keys_[lane]; }
    // Returns the key of a launch in the window; 0 if it has left.
    uint64_t key_of(uint64_t number) const;
    int lanes() const { return lanes_; }
    // Returns whether launches are in progress that lane 0 is not ordered after.
    bool spread() const;

  private:
    void put(int lane, uint64_t key);

    size_t size_;
    int lanes_;
    uint64_t last_ = 0;
    uint64_t floor_ = 0, floor_key_ = 0;  // the last barrier, on lane 0
    std::deque<Item> items_;
    Clock evicted_clock_{};
    std::array<Clock, kMostLanes> clocks_{};
    Clock tails_{}, tail_keys_{};
};

// The numbers of the launches for which each launch waits, without those for which another of them already waits.
std::vector<std::vector<int>> dependencies(const std::vector<Access>& accesses);

}  // namespace tileprof::acs
