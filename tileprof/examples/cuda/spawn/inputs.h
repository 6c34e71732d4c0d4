// Generated inputs, which depend only on the seed, not on the machine; and graphs of files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace inputs {

struct Dice {
    std::uint64_t state;

    explicit Dice(std::uint64_t seed) : state(seed * 0x9E3779B97F4A7C15ull + 1) {}

    std::uint32_t next() {  // splitmix64
        std::uint64_t z = state += 0x9E3779B97F4A7C15ull;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        return static_cast<std::uint32_t>((z ^ z >> 31) >> 32);
    }
    int below(int most) { return static_cast<int>(static_cast<std::uint64_t>(next()) * most >> 32); }
    double unit() { return next() / 4294967296.0; }
};

// An undirected graph, with both directions stored, without loops and duplicates. The edges of vertex v are
// target[first[v] : first[v + 1]].
struct Graph {
    std::vector<int> first, target, weight;

    int vertices() const { return static_cast<int>(first.size()) - 1; }
};

inline Graph graph_of(int vertices, std::vector<std::pair<int, int>> edges, Dice& dice) {
    const std::size_t one_way = edges.size();
    for (std::size_t i = 0; i < one_way; ++i) edges.emplace_back(edges[i].second, edges[i].first);
    edges.erase(std::remove_if(edges.begin(), edges.end(), [](const auto& e) { return e.first == e.second; }),
                edges.end());
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    Graph graph;
    graph.first.assign(vertices + 1, 0);
    for (const auto& [from, to] : edges) {
        ++graph.first[from + 1];
        graph.target.push_back(to);
        graph.weight.push_back(1 + dice.below(100));
    }
    std::partial_sum(graph.first.begin(), graph.first.end(), graph.first.begin());
    return graph;
}

// A Kronecker graph with Graph500's parameters: few vertices have very many edges.
inline Graph kronecker(int scale, int per_vertex, std::uint64_t seed) {
    Dice dice(seed);
    std::vector<std::pair<int, int>> edges;
    for (long i = 0; i < (1l << scale) * per_vertex; ++i) {
        int from = 0, to = 0;
        for (int bit = 0; bit < scale; ++bit) {
            const double p = dice.unit();
            from = from << 1 | (p >= 0.76);
            to = to << 1 | ((p >= 0.57 && p < 0.76) || p >= 0.95);
        }
        edges.emplace_back(from, to);
    }
    return graph_of(1 << scale, std::move(edges), dice);
}

// Each vertex cites some earlier ones, with a probability that grows with their citations: the tail is shorter.
inline Graph citation(int scale, int cites, std::uint64_t seed) {
    Dice dice(seed);
    std::vector<std::pair<int, int>> edges;
    std::vector<int> ends = {0};
    for (int v = 1; v < 1 << scale; ++v)
        for (int i = 0; i < cites; ++i) {
            const int to = dice.below(2) ? ends[dice.below(static_cast<int>(ends.size()))] : dice.below(v);
            edges.emplace_back(v, to);
            ends.push_back(to);
        }
    return graph_of(1 << scale, std::move(edges), dice);
}

[[noreturn]] inline void refuse(const std::string& reason) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    std::exit(2);
}

// The graph of a file with an edge per line: two vertices, by any numbers. Lines that begin with # or % are comments.
// Vertices are numbered in the order of their numbers; weights are drawn.
inline Graph graph_of_file(const std::string& name) {
    std::ifstream file(name);
    if (!file) refuse("cannot read " + name);
    std::map<long long, int> numbers;
    std::vector<std::pair<long long, long long>> lines;
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
        long long from, to;
        if (line.empty() || line[0] == '#' || line[0] == '%') continue;
        if (std::sscanf(line.c_str(), "%lld %lld", &from, &to) != 2)
            refuse(name + ", line " + std::to_string(number) + ": expected an edge, which is two numbers");
        lines.emplace_back(from, to);
        numbers[from] = numbers[to] = 0;
    }
    if (lines.empty()) refuse(name + " has no edge");
    int vertices = 0;
    for (auto& [vertex, number] : numbers) number = vertices++;
    std::vector<std::pair<int, int>> edges;
    for (const auto& [from, to] : lines) edges.emplace_back(numbers[from], numbers[to]);
    Dice dice(3);
    return graph_of(vertices, std::move(edges), dice);
}

}  // namespace inputs
