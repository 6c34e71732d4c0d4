// Notes the launch sites of SPAWN's programs as they run flat on the CPU: which thread of which round has how many
// items, and which items have sites of their own. Compiled with -fsanitize-coverage=trace-pc, it also counts the basic
// blocks that each thread and each item run, as a measure of their relative durations.
#pragma once

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#define NOT_COUNTED __attribute__((no_sanitize_coverage))

namespace emulated {
inline unsigned long long blocks_run;
}
extern "C" NOT_COUNTED void __sanitizer_cov_trace_pc() { ++emulated::blocks_run; }

#include "spawning.h"

#undef SPAWN_PARENT
#define SPAWN_PARENT(kernel, blocks, threads, ...)                                    \
    emulated::begin_round(blocks, threads), emulated::run_grid(blocks, threads, [&] { \
        emulated::begin_thread();                                                     \
        kernel(__VA_ARGS__);                                                          \
        emulated::end_thread();                                                       \
    })
#define SPAWN_SITE(site, items) emulated::Noted site(items)

namespace emulated {

constexpr int TILE = 32;  // items of a child block

struct Node {
    int items = 0;
    std::vector<std::pair<int, int>> below;  // by item: the node of its site
    std::vector<unsigned long long> own;  // by item: basic blocks outside of its own site
};

inline std::vector<Node> nodes;
inline std::vector<std::vector<int>> rounds;  // by thread: its node, or -1
inline std::vector<int> waited;  // by round: 1 if the host read results before it launched the kernel, else 0
inline std::vector<std::vector<unsigned long long>> outside;  // by thread: basic blocks outside of its site
inline std::vector<std::pair<int, int>> open;  // nodes, and the current item of each
inline unsigned long long counted;  // basic blocks until now that are assigned

NOT_COUNTED inline std::size_t thread_of_round() { return std::size_t(blockIdx.x) * blockDim.x + threadIdx.x; }

// The basic blocks since the last call belong to the current item, or to the thread.
NOT_COUNTED inline void charge() {
    const unsigned long long since = blocks_run - counted;
    counted = blocks_run;
    if (!open.empty())
        nodes[open.back().first].own[open.back().second] += since;
    else if (!outside.empty() && thread_of_round() < outside.back().size())
        outside.back()[thread_of_round()] += since;
}

NOT_COUNTED inline void begin_round(int blocks, int threads) {
    rounds.emplace_back(static_cast<std::size_t>(blocks) * threads, -1);
    outside.emplace_back(static_cast<std::size_t>(blocks) * threads, 0);
    waited.push_back(std::exchange(host_waited, false));
}
NOT_COUNTED inline void begin_thread() { counted = blocks_run; }
NOT_COUNTED inline void end_thread() { charge(); }

class Noted {
  public:
    NOT_COUNTED explicit Noted(int items) {
        charge();
        const int node = static_cast<int>(nodes.size());
        nodes.push_back({items, {}, std::vector<unsigned long long>(items, 0)});
        if (open.empty())
            rounds.back()[thread_of_round()] = node;
        else
            nodes[open.back().first].below.emplace_back(open.back().second, node);
        open.emplace_back(node, 0);
        counted = blocks_run;  // basic blocks of the code above
    }
    Noted(const Noted&) = delete;
    NOT_COUNTED ~Noted() {
        charge();
        open.pop_back();
        counted = blocks_run;
    }
    NOT_COUNTED void at(int item) {
        charge();
        open.back().second = item;
    }
};

template <class T>
void print_row(const std::vector<T>& items, bool first) {
    std::printf("%s[", first ? "" : ", ");
    for (std::size_t i = 0; i < items.size(); ++i)
        std::printf("%s%lld", i ? "," : "", static_cast<long long>(items[i]));
    std::printf("]");
}

// Returns the basic blocks of an item list: those of all items, and of the longest item of each child block.
NOT_COUNTED inline std::pair<double, double> mean_and_longest(const std::vector<unsigned long long>& own) {
    unsigned long long sum = 0, longest = 0;
    int tiles = 0;
    for (std::size_t begin = 0; begin < own.size(); begin += TILE, ++tiles) {
        const auto end = own.begin() + std::min(begin + TILE, own.size());
        for (auto item = own.begin() + begin; item != end; ++item) sum += *item;
        longest += *std::max_element(own.begin() + begin, end);
    }
    return {double(sum) / own.size(), double(longest) / tiles};
}

// {"waited": of each round, "rounds": the items of each round's threads, "below": of the items of all of these, of the
//  items of those, ..., "own": blocks of all these threads and items outside of their sites, "mean", "longest": of the
//  items of each, in the mean, and of the longest of each child block in the mean}
NOT_COUNTED inline void print_sites() {
    std::vector<int> level, all;
    std::vector<unsigned long long> own;
    std::printf("\"waited\": "), print_row(waited, true), std::printf(", \"rounds\": [");
    for (std::size_t i = 0; i < rounds.size(); ++i) {
        std::vector<int> items;
        for (const int node : rounds[i]) items.push_back(node < 0 ? 0 : nodes[node].items), level.push_back(node);
        own.insert(own.end(), outside[i].begin(), outside[i].end());
        print_row(items, i == 0);
    }
    std::printf("], \"below\": [");
    for (bool first = true;; first = false) {
        all.insert(all.end(), level.begin(), level.end());
        std::vector<int> next, items;
        std::vector<unsigned long long> theirs;
        bool any = false;
        for (const int node : level) {
            if (node < 0) continue;
            const std::size_t begin = next.size();
            next.resize(begin + nodes[node].items, -1);
            theirs.insert(theirs.end(), nodes[node].own.begin(), nodes[node].own.end());
            for (const auto& [item, site] : nodes[node].below) next[begin + item] = site, any = true;
        }
        if (!any && first) break;  // no item has a site
        own.insert(own.end(), theirs.begin(), theirs.end());
        if (!any) {
            all.insert(all.end(), next.begin(), next.end());
            break;
        }
        for (const int node : next) items.push_back(node < 0 ? 0 : nodes[node].items);
        print_row(items, first);
        level = std::move(next);
    }
    std::printf("], \"own\": ");
    print_row(own, true);
    std::vector<double> means, longest;
    for (const int node : all) {
        const auto [mean, most] = node < 0 ? std::pair(0.0, 0.0) : mean_and_longest(nodes[node].own);
        means.push_back(100 * mean), longest.push_back(100 * most);
    }
    std::printf(", \"mean\": "), print_row(means, true);
    std::printf(", \"longest\": "), print_row(longest, true);
}

}  // namespace emulated
