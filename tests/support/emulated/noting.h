// Notes the sites of SPAWN's programs as they run flat on the CPU: which thread of which round has how many items, and
// which items have sites of their own.
#pragma once

#include <cstdio>
#include <utility>
#include <vector>

#include "spawning.h"

#undef SPAWN_PARENT
#define SPAWN_PARENT(kernel, blocks, threads, ...) \
    emulated::begin_round(blocks, threads), emulated::run_grid(blocks, threads, [&] { kernel(__VA_ARGS__); })
#define SPAWN_SITE(site, items) emulated::Noted site(items)

namespace emulated {

struct Node {
    int items = 0;
    std::vector<std::pair<int, int>> below;  // an item, its site's node
};

inline std::vector<Node> nodes;
inline std::vector<std::vector<int>> rounds;  // the node of each thread, or -1
inline std::vector<std::pair<int, int>> open;  // nodes, and the item of each that runs

inline void begin_round(int blocks, int threads) {
    rounds.emplace_back(static_cast<std::size_t>(blocks) * threads, -1);
}

class Noted {
  public:
    explicit Noted(int items) {
        const int node = static_cast<int>(nodes.size());
        nodes.push_back({items, {}});
        if (open.empty())
            rounds.back()[blockIdx.x * blockDim.x + threadIdx.x] = node;
        else
            nodes[open.back().first].below.emplace_back(open.back().second, node);
        open.emplace_back(node, 0);
    }
    Noted(const Noted&) = delete;
    ~Noted() { open.pop_back(); }
    void at(int item) { open.back().second = item; }
};

inline void print_row(const std::vector<int>& items, bool first) {
    std::printf("%s[", first ? "" : ", ");
    for (std::size_t i = 0; i < items.size(); ++i) std::printf("%s%d", i ? "," : "", items[i]);
    std::printf("]");
}

// {"rounds": the items of each round's threads, "below": of the items of all of these, of the items of those, ...}
inline void print_sites() {
    std::vector<int> level;
    std::printf("\"rounds\": [");
    for (std::size_t i = 0; i < rounds.size(); ++i) {
        std::vector<int> items;
        for (const int node : rounds[i]) items.push_back(node < 0 ? 0 : nodes[node].items), level.push_back(node);
        print_row(items, i == 0);
    }
    std::printf("], \"below\": [");
    for (bool first = true;; first = false) {
        std::vector<int> next, items;
        bool any = false;
        for (const int node : level) {
            if (node < 0) continue;
            const std::size_t begin = next.size();
            next.resize(begin + nodes[node].items, -1);
            for (const auto& [item, site] : nodes[node].below) next[begin + item] = site, any = true;
        }
        if (!any) break;
        for (const int node : next) items.push_back(node < 0 ? 0 : nodes[node].items);
        print_row(items, first);
        level = std::move(next);
    }
    std::printf("]");
}

}  // namespace emulated
