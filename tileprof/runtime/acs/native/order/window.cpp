#include "order/window.h"

#include <algorithm>

namespace tileprof::acs {

namespace {

bool any_overlap(const std::vector<Range>& some, const std::vector<Range>& others) {
    for (const Range& a : some)
        for (const Range& b : others)
            if (overlap(a, b)) return true;
    return false;
}

}  // namespace

bool conflicts(const Access& earlier, const Access& later) {
    return any_overlap(earlier.writes, later.reads) || any_overlap(earlier.writes, later.writes) ||
           any_overlap(earlier.reads, later.writes);
}

Placement Window::place(const Access& access) const {
    Placement out{0, {}};
    Clock closure{};
    int newest = -1;  // the lane whose last launch is the newest for which this one waits
    uint64_t newest_number = 0;
    out.needs[0] = floor_;
    closure[0] = floor_;
    if (floor_ != 0 && tails_[0] == floor_) newest = 0, newest_number = floor_;
    for (int lane = 0; lane < lanes_; ++lane) {
        out.needs[lane] = std::max(out.needs[lane], evicted_clock_[lane]);
        closure[lane] = std::max(closure[lane], evicted_clock_[lane]);
    }
    for (auto item = items_.rbegin(); item != items_.rend(); ++item) {
        if (closure[item->lane] >= item->number) continue;  // implied by a newer one
        if (!conflicts(item->access, access)) continue;
        out.needs[item->lane] = std::max(out.needs[item->lane], item->number);
        raise(closure, item->clock);
        if (tails_[item->lane] == item->number && item->number > newest_number)
            newest = item->lane, newest_number = item->number;
    }
    if (newest >= 0) {
        out.lane = newest;
        return out;
    }
    // No lane ends with a launch that it waits for: take a lane whose launches are all ordered before it anyway, or
    // else the least recently used one.
    int settled = -1, oldest = 0;
    for (int lane = 0; lane < lanes_; ++lane) {
        if (settled < 0 && tails_[lane] <= closure[lane]) settled = lane;
        if (tails_[lane] < tails_[oldest]) oldest = lane;
    }
    out.lane = settled >= 0 ? settled : oldest;
    return out;
}

void Window::put(int lane, uint64_t key) {
    tails_[lane] = clocks_[lane][lane] = ++last_;
    tail_keys_[lane] = key;
}

const Item& Window::add(Access&& access, int lane, uint64_t key) {
    put(lane, key);
    items_.push_back(Item{last_, key, lane, clocks_[lane], std::move(access)});
    if (items_.size() > size_) {
        evicted_clock_[items_.front().lane] = items_.front().number;
        items_.pop_front();
    }
    return items_.back();
}

void Window::barrier(uint64_t key) {
    items_.clear();
    evicted_clock_.fill(0);
    put(0, key);
    floor_ = last_;
    floor_key_ = key;
}

uint64_t Window::key_of(uint64_t number) const {
    if (number == floor_) return floor_key_;
    auto at = std::lower_bound(items_.begin(), items_.end(), number,
                               [](const Item& item, uint64_t wanted) { return item.number < wanted; });
    return at != items_.end() && at->number == number ? at->key : 0;
}

bool Window::spread() const {
    for (int lane = 1; lane < lanes_; ++lane)
        if (tails_[lane] > clocks_[0][lane]) return true;
    return false;
}

std::vector<std::vector<int>> dependencies(const std::vector<Access>& accesses) {
    const int count = static_cast<int>(accesses.size());
    std::vector<std::vector<int>> out(count);
    std::vector<std::vector<bool>> before(count);  // all launches for which a launch waits, directly or not
    for (int later = 0; later < count; ++later) {
        before[later].assign(count, false);
        for (int earlier = later - 1; earlier >= 0; --earlier) {
            if (before[later][earlier] || !conflicts(accesses[earlier], accesses[later])) continue;
            out[later].push_back(earlier);
            before[later][earlier] = true;
            for (int other = 0; other < earlier; ++other)
                if (before[earlier][other]) before[later][other] = true;
        }
    }
    return out;
}

}  // namespace tileprof::acs
