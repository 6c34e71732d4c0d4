// The programs on the host: their inputs, rounds of launches, and checks of their results.
#pragma once

#include <regex.h>  // std::regex takes as long to compile as the programs

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <queue>
#include <string>

#include "inputs.h"
#include "pattern.h"
#include "works.cuh"

using spawn::Control;
using spawn::u64;

#define CHECK(call)                                                                                  \
    do {                                                                                             \
        const cudaError_t error = call;                                                              \
        if (error != cudaSuccess)                                                                    \
            std::printf("%s: %s\n", #call, cudaGetErrorString(error)), std::fflush(stdout), exit(1); \
    } while (false)

namespace {

constexpr int PARENT_THREADS = 256, MOST_PENDING = 1 << 17, STACK_BYTES = 4096;

template <class T>
struct Buffer {
    T* at = nullptr;
    std::size_t count;

    explicit Buffer(std::size_t count) : count(count) {
        CHECK(cudaMalloc(reinterpret_cast<void**>(&at), std::max<std::size_t>(count, 1) * sizeof(T)));
    }
    explicit Buffer(const std::vector<T>& from) : Buffer(from.size()) { put(from); }
    Buffer(const Buffer&) = delete;
    ~Buffer() { cudaFree(at); }

    void put(const std::vector<T>& from) {
        CHECK(cudaMemcpy(at, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    void fill(int byte) { CHECK(cudaMemset(at, byte, count * sizeof(T))); }
    std::vector<T> get(std::size_t some) const {
        std::vector<T> to(some);
        CHECK(cudaMemcpy(to.data(), at, some * sizeof(T), cudaMemcpyDeviceToHost));
        return to;
    }
    std::vector<T> get() const { return get(count); }
};

int blocks_for(int threads) { return (threads + PARENT_THREADS - 1) / PARENT_THREADS; }

// A program: begin() initialises its memory, run() computes, and result() must be the same under all rules. Checks
// return "" or the error in a result.
struct Work {
    std::string name;
    int threshold;  // threshold of the program as its authors wrote it
    std::function<void()> begin;
    std::function<void(Control*)> run;
    std::function<std::vector<u64>()> result;
    std::function<std::string(const std::vector<u64>&)> mismatch;
};

std::vector<u64> wide(const std::vector<int>& from) { return {from.begin(), from.end()}; }

struct Search {
    const inputs::Graph& graph;
    bool weighted;
    int source = 0;
    Buffer<int> first, target, weight, distance, mark, here, next, size;

    Search(const inputs::Graph& graph, bool weighted)
        : graph(graph),
          weighted(weighted),
          first(graph.first),
          target(graph.target),
          weight(graph.weight),
          distance(graph.vertices()),
          mark(graph.vertices()),
          here(graph.vertices()),
          next(graph.vertices()),
          size(1) {
        for (int v = 0; v < graph.vertices(); ++v)
            if (graph.first[v + 1] - graph.first[v] > graph.first[source + 1] - graph.first[source]) source = v;
    }

    void begin() {
        std::vector<int> far(graph.vertices(), works::FAR);
        far[source] = 0;
        distance.put(far);
        mark.fill(0);
        here.put({source});
    }

    void run(Control* control) {
        int count = 1;
        int *from = here.at, *to = next.at;
        for (int round = 1; count > 0; ++round) {
            size.fill(0);
            SPAWN_PARENT(works::search, blocks_for(count), PARENT_THREADS, control,
                         works::Edges{first.at, target.at, weight.at}, from, count, distance.at, mark.at, to, size.at,
                         round, weighted);
            CHECK(cudaGetLastError());
            count = size.get()[0];
            std::swap(from, to);
        }
    }

    std::string mismatch(const std::vector<u64>& values) const {
        std::vector<int> known(graph.vertices(), works::FAR);
        std::priority_queue<std::pair<int, int>, std::vector<std::pair<int, int>>, std::greater<>> open;
        open.emplace(known[source] = 0, source);
        while (!open.empty()) {
            const auto [away, v] = open.top();
            open.pop();
            for (int e = graph.first[v]; away == known[v] && e < graph.first[v + 1]; ++e)
                if (const int other = away + (weighted ? graph.weight[e] : 1); other < known[graph.target[e]])
                    open.emplace(known[graph.target[e]] = other, graph.target[e]);
        }
        return values == wide(known) ? "" : "distances are not those of Dijkstra's algorithm";
    }
};

struct Colouring {
    const inputs::Graph& graph;
    Buffer<int> first, target, weight, colour, wins, left;
    Buffer<unsigned> masks;

    explicit Colouring(const inputs::Graph& graph)
        : graph(graph),
          first(graph.first),
          target(graph.target),
          weight(graph.weight),
          colour(graph.vertices()),
          wins(graph.vertices()),
          left(1),
          masks(static_cast<std::size_t>(graph.vertices()) * works::COLOUR_WORDS) {}

    void begin() {
        colour.fill(-1);
        masks.fill(0);
        wins.put(std::vector<int>(graph.vertices(), 1));
    }

    void run(Control* control) {
        const works::Edges edges = {first.at, target.at, weight.at};
        const int blocks = blocks_for(graph.vertices());
        for (int remain = 1; remain > 0; remain = left.get()[0]) {
            left.fill(0);
            SPAWN_PARENT(works::contest, blocks, PARENT_THREADS, control, edges, graph.vertices(), colour.at, wins.at);
            SPAWN_PARENT(works::gather, blocks, PARENT_THREADS, control, edges, graph.vertices(), colour.at, wins.at,
                         masks.at);
            SPAWN_PARENT(works::settle, blocks, PARENT_THREADS, graph.vertices(), colour.at, wins.at, masks.at,
                         left.at);
            CHECK(cudaGetLastError());
        }
    }

    std::string mismatch(const std::vector<u64>& values) const {
        for (int v = 0; v < graph.vertices(); ++v)
            for (int e = graph.first[v]; e < graph.first[v + 1]; ++e)
                if (values[v] == values[graph.target[e]] && values[v] != 32 * works::COLOUR_WORDS - 1)
                    return "neighbours have one colour";
        return "";
    }
};

struct Join {
    Buffer<int> key, first, rows, place, out;
    int count;

    // `spread`: standard deviation of a normal distribution over the keys, as a share of them; 0 for uniform keys.
    static Join* of(int scale, int matches, double spread) {
        inputs::Dice dice(7);
        const int count = 1 << scale, keys = std::max(1, count / matches);
        const auto draw = [&] {
            if (spread <= 0) return dice.below(keys);
            double sum = -6;
            for (int i = 0; i < 12; ++i) sum += dice.unit();
            return std::min(keys - 1, std::max(0, static_cast<int>(keys * (0.5 + spread * sum))));
        };
        std::vector<int> probe(count), build(count), first(keys + 1, 0), rows(count), place(count + 1, 0);
        for (int& k : probe) k = draw();
        for (int& k : build) ++first[(k = draw()) + 1];
        std::partial_sum(first.begin(), first.end(), first.begin());
        std::vector<int> at = first;
        for (int row = 0; row < count; ++row) rows[at[build[row]]++] = row;
        std::sort(probe.begin(), probe.end());
        for (int row = 0; row < count; ++row) place[row + 1] = place[row] + first[probe[row] + 1] - first[probe[row]];
        return new Join(probe, first, rows, place);
    }

    Join(const std::vector<int>& probe, const std::vector<int>& first, const std::vector<int>& rows,
         const std::vector<int>& place)
        : key(probe),
          first(first),
          rows(rows),
          place(place),
          out(place.back()),
          count(static_cast<int>(probe.size())) {}

    void begin() { out.fill(-1); }
    void run(Control* control) {
        SPAWN_PARENT(works::join, blocks_for(count), PARENT_THREADS, control, key.at, count, first.at, rows.at,
                     place.at, out.at);
        CHECK(cudaGetLastError());
    }
    std::string mismatch(const std::vector<u64>& values) const {
        const auto keys = key.get(), begins = first.get(), built = rows.get(), places = place.get();
        for (int row = 0; row < count; ++row)
            for (int i = 0; i < places[row + 1] - places[row]; ++i)
                if (static_cast<int>(values[places[row] + i]) != ((row * 31 + built[begins[keys[row]] + i]) ^ row >> 3))
                    return "a pair is not where it belongs";
        return "";
    }
};

struct Mandelbrot {
    works::Plane plane;
    Buffer<int> image;

    Mandelbrot(int width, int tile)
        : plane{width, tile, -2.0f, -1.25f, 2.5f / static_cast<float>(width)},
          image(static_cast<std::size_t>(width) * width) {}
    void begin() { image.fill(-1); }
    void run(Control* control) {
        const int across = plane.width / plane.tile;
        SPAWN_PARENT(works::mandelbrot, blocks_for(across * across), PARENT_THREADS, control, plane, image.at);
        CHECK(cudaGetLastError());
    }
};

struct Refinement {
    works::Field field;
    int parts, levels, steep;
    std::size_t most = std::size_t(1) << 23;
    Buffer<works::Cell> here, next;
    Buffer<int> created;
    Buffer<u64> sum;
    u64 cells = 0;

    Refinement(int side, int parts, int levels, int steep)
        : field{side}, parts(parts), levels(levels), steep(steep), here(most), next(most), created(1), sum(1) {}
    static constexpr int ALONG = 32, COARSE = ALONG * ALONG;
    int coarse_size() const { return field.side / ALONG; }
    std::vector<works::Cell> coarse() const {
        std::vector<works::Cell> all;
        for (int i = 0; i < COARSE; ++i) all.push_back({i % ALONG * coarse_size(), i / ALONG * coarse_size()});
        return all;
    }
    void begin() {
        sum.fill(0);
        cells = 0;
        here.put(coarse());
    }
    std::vector<u64> result() const { return {cells, sum.get()[0]}; }
    void run(Control* control) {
        int count = COARSE, size = coarse_size();
        works::Cell *from = here.at, *to = next.at;
        for (int level = 0; level < levels && count > 0 && size >= parts; ++level, size /= parts) {
            if (static_cast<std::size_t>(count) * parts * parts > most) {
                cells = 0;  // more results than there is room for
                return;
            }
            created.fill(0);
            SPAWN_PARENT(works::refine, blocks_for(count), PARENT_THREADS, control, field, from, count, size, parts,
                         steep, to, created.at, sum.at);
            CHECK(cudaGetLastError());
            count = created.get()[0];
            cells += count;
            std::swap(from, to);
        }
    }
};

struct QuickSort {
    std::vector<int> keys;
    Buffer<int> here, there, sorted, pivots, low, high, created;
    Buffer<works::Segment> segments, next;

    explicit QuickSort(std::vector<int> keys)
        : keys(keys),
          here(keys),
          there(keys.size()),
          sorted(keys.size()),
          pivots(keys.size()),
          low(keys.size()),
          high(keys.size()),
          created(1),
          segments(keys.size()),
          next(keys.size()) {}
    void begin() {
        here.put(keys);
        sorted.fill(-1);
        segments.put({{0, static_cast<int>(keys.size())}});
    }
    void run(Control* control) {
        int *from = here.at, *to = there.at;
        works::Segment *now = segments.at, *then = next.at;
        for (int count = 1; count > 0; count = created.get()[0], std::swap(from, to), std::swap(now, then)) {
            created.fill(0);
            SPAWN_PARENT(works::partition, blocks_for(count), PARENT_THREADS, control, now, count, from, to, pivots.at,
                         low.at, high.at);
            SPAWN_PARENT(works::divide, blocks_for(count), PARENT_THREADS, now, count, to, pivots.at, low.at, high.at,
                         then, created.at, sorted.at);
            CHECK(cudaGetLastError());
        }
    }
    std::string mismatch(const std::vector<u64>& values) const {
        std::vector<int> known = keys;
        std::sort(known.begin(), known.end());
        return values == wide(known) ? "" : "keys are not sorted";
    }
};

struct Bezier {
    std::vector<works::Line> curves;
    Buffer<works::Line> lines;
    Buffer<int> created, out;

    // Most lines bend a little, some a lot.
    static std::vector<works::Line> drawn(int count) {
        inputs::Dice dice(11);
        std::vector<works::Line> curves(count);
        for (works::Line& line : curves) {
            const int reach = 64 << dice.below(dice.below(12) + 1);
            for (int i = 0; i < 3; ++i) line.x[i] = dice.below(reach), line.y[i] = dice.below(reach);
        }
        return curves;
    }

    explicit Bezier(int count)
        : curves(drawn(count)),
          lines(curves),
          created(count),
          out(static_cast<std::size_t>(count) * 2 * works::MOST_POINTS) {}
    void begin() { created.fill(-1), out.fill(-1); }
    void run(Control* control) {
        const int count = static_cast<int>(curves.size());
        SPAWN_PARENT(works::bezier, blocks_for(count), PARENT_THREADS, control, lines.at, count, created.at, out.at);
        CHECK(cudaGetLastError());
    }
    std::vector<u64> result() const {  // the points of each line behind their number
        std::vector<u64> all;
        const auto points = created.get(), places = out.get();
        for (std::size_t n = 0; n < points.size(); ++n) {
            all.push_back(points[n]);
            for (int i = 0; i < 2 * points[n]; ++i) all.push_back(places[n * 2 * works::MOST_POINTS + i]);
        }
        return all;
    }
    std::string mismatch(const std::vector<u64>& values) const {  // compared with de Casteljau's steps
        std::size_t at = 0;
        for (const works::Line& line : curves) {
            if (at >= values.size() || values[at] < works::LEAST_POINTS || values[at] > works::MOST_POINTS)
                return "a line has no points";
            const int points = static_cast<int>(values[at++]);
            for (int i = 0; i < points; ++i)
                for (const int* p : {line.x, line.y}) {
                    const double t = i / (points - 1.0), a = p[0] + t * (p[1] - p[0]), b = p[1] + t * (p[2] - p[1]);
                    if (std::abs(static_cast<double>(values[at++]) - (a + t * (b - a))) > 1.001)
                        return "a point lies beside its line";
                }
        }
        return at == values.size() ? "" : "there are more points than lines have";
    }
};

// `amr` in one launch; the results must be equal.
struct DeepRefinement {
    Refinement& rounds;
    Buffer<works::Cell> coarse;
    Buffer<int> cells;
    Buffer<u64> sum;

    explicit DeepRefinement(Refinement& rounds) : rounds(rounds), coarse(Refinement::COARSE), cells(1), sum(1) {
        coarse.put(rounds.coarse());
    }
    void begin() { cells.fill(0), sum.fill(0); }
    void run(Control* control) {
        SPAWN_PARENT(works::deepen, blocks_for(Refinement::COARSE), PARENT_THREADS, control, rounds.field, coarse.at,
                     Refinement::COARSE, rounds.coarse_size(), rounds.parts, rounds.steep, rounds.levels, cells.at,
                     sum.at);
        CHECK(cudaGetLastError());
    }
    std::vector<u64> result() const { return {static_cast<u64>(cells.get()[0]), sum.get()[0]}; }
    std::string mismatch(const std::vector<u64>& values) const {
        Buffer<Control> flat(std::vector<Control>{{}});
        rounds.begin(), rounds.run(flat.at);
        return values == rounds.result() ? "" : "not what a launch for each level makes";
    }
};

struct MarianiSilver : Mandelbrot {
    using Mandelbrot::Mandelbrot;
    void run(Control* control) {
        const int across = plane.width / plane.tile;
        SPAWN_PARENT(works::mariani_silver, blocks_for(across * across), PARENT_THREADS, control, plane, image.at);
        CHECK(cudaGetLastError());
    }
};

struct Matching {
    static constexpr const char* PATTERN =
        "GET /[a-z]+|POST /[a-z0-9]+|[0-9]+\\.[0-9]+\\.[0-9]+\\.[0-9]+|(ab|ba)+c|\\.?[a-z]+@[a-z]+\\.(com|org)";
    std::vector<int> lines;  // where each line begins, and the end of the last one
    std::string text;
    Buffer<works::Automaton> automaton;
    Buffer<unsigned char> letters;
    Buffer<int> line, matches, longest;

    // Lines with the lengths of requests in a log: most are short, few have many thousand characters.
    static std::string written(int count, std::vector<int>& lines) {
        static const char* const pieces[] = {"GET /index", "POST /form7", "192.168.10.25", "abbaabc", "user@mail.org"};
        inputs::Dice dice(13);
        std::string text;
        for (int n = 0; n < count; ++n) {
            lines.push_back(static_cast<int>(text.size()));
            const int length = dice.below(16 << dice.below(dice.below(9) + 1)) + 1;
            const std::size_t end = text.size() + length;
            while (text.size() < end) {
                if (dice.below(8) == 0)
                    text += pieces[dice.below(5)];
                else
                    text += "abcxyz 0189./@"[dice.below(14)];
            }
            text.resize(end);
        }
        lines.push_back(static_cast<int>(text.size()));
        return text;
    }

    explicit Matching(int count)
        : text(written(count, lines)),
          automaton(std::vector<works::Automaton>{pattern::Compiler<works::Automaton>(PATTERN).automaton()}),
          letters(std::vector<unsigned char>(text.begin(), text.end())),
          line(lines),
          matches(count),
          longest(count) {}
    int count() const { return static_cast<int>(lines.size()) - 1; }
    void begin() { matches.fill(0), longest.fill(0); }
    void run(Control* control) {
        SPAWN_PARENT(works::match, blocks_for(count()), PARENT_THREADS, control, automaton.at, letters.at, line.at,
                     count(), matches.at, longest.at);
        CHECK(cudaGetLastError());
    }
    std::vector<u64> result() const {
        std::vector<u64> all = wide(matches.get()), ends = wide(longest.get());
        all.insert(all.end(), ends.begin(), ends.end());
        return all;
    }
    // compared with the library's matcher, at some of the lines
    std::string mismatch(const std::vector<u64>& values) const {
        regex_t known;
        if (regcomp(&known, ("^(" + std::string(PATTERN) + ")").c_str(), REG_EXTENDED | REG_NOSUB) != 0)
            return "the library's matcher does not take the pattern";
        const int every = std::max(1, count() / 256);
        std::string problem;
        for (int n = 0; n < count() && problem.empty(); n += every) {
            u64 some = 0;
            for (int at = lines[n]; at < lines[n + 1]; ++at)
                some += regexec(&known, text.substr(at, lines[n + 1] - at).c_str(), 0, nullptr, 0) == 0;
            if (some != values[n]) problem = "a line has other matches";
        }
        regfree(&known);
        return problem;
    }
};

std::string image_is_whole(const std::vector<u64>& values) {
    return std::count(values.begin(), values.end(), u64(-1)) ? "a pixel is missing" : "";
}

// `given`: a graph for three more programs, which must live as long as they do.
std::vector<Work> works_of(int scale, const inputs::Graph* given = nullptr) {
    static const inputs::Graph kron = inputs::kronecker(scale, 16, 1), cites = inputs::citation(scale, 8, 2);
    std::vector<Work> all;
    const auto search = [&](const std::string& name, const inputs::Graph& graph, bool weighted) {
        auto* one = new Search(graph, weighted);
        all.push_back({name, 32, [=] { one->begin(); }, [=](Control* c) { one->run(c); },
                       [=] { return wide(one->distance.get()); },
                       [=](const std::vector<u64>& values) { return one->mismatch(values); }});
    };
    search("bfs", kron, false), search("bfs-citation", cites, false), search("sssp", kron, true),
        search("sssp-citation", cites, true);
    const auto colouring = [&](const std::string& name, const inputs::Graph& graph) {
        auto* one = new Colouring(graph);
        all.push_back({name, 32, [=] { one->begin(); }, [=](Control* c) { one->run(c); },
                       [=] { return wide(one->colour.get()); },
                       [=](const std::vector<u64>& values) { return one->mismatch(values); }});
    };
    colouring("colouring", kron), colouring("colouring-citation", cites);
    const auto join = [&](const std::string& name, double spread) {
        auto* one = Join::of(scale, 64, spread);
        all.push_back({name, 32, [=] { one->begin(); }, [=](Control* c) { one->run(c); },
                       [=] { return wide(one->out.get()); },
                       [=](const std::vector<u64>& values) { return one->mismatch(values); }});
    };
    join("join", 0), join("join-gaussian", 0.1);
    auto* image = new Mandelbrot(64 << scale / 3, 32);
    all.push_back({"mandelbrot", 32, [=] { image->begin(); }, [=](Control* c) { image->run(c); },
                   [=] { return wide(image->image.get()); }, image_is_whole});
    auto* amr = new Refinement(1 << 20, 8, 2, scale < 10 ? 400 : 40);
    all.push_back(
        {"amr", 32, [=] { amr->begin(); }, [=](Control* c) { amr->run(c); }, [=] { return amr->result(); },
         [](const std::vector<u64>& values) { return values[0] > 0 ? "" : "nothing is refined, or too much"; }});
    inputs::Dice dice(5);
    std::vector<int> keys(std::size_t(4) << scale);
    for (int& key : keys) key = dice.below(1 << 20);
    auto* sort = new QuickSort(keys);
    all.push_back({"quick-sort", 32, [=] { sort->begin(); }, [=](Control* c) { sort->run(c); },
                   [=] { return wide(sort->sorted.get()); },
                   [=](const std::vector<u64>& values) { return sort->mismatch(values); }});
    auto* lines = new Bezier(16 << scale / 2);
    all.push_back({"bezier", 32, [=] { lines->begin(); }, [=](Control* c) { lines->run(c); },
                   [=] { return lines->result(); },
                   [=](const std::vector<u64>& values) { return lines->mismatch(values); }});
    auto* fine = new Refinement(1 << 20, 8, 2, scale < 10 ? 400 : 40);
    auto* deep = new DeepRefinement(*fine);
    all.push_back({"amr-nested", 32, [=] { deep->begin(); }, [=](Control* c) { deep->run(c); },
                   [=] { return deep->result(); },
                   [=](const std::vector<u64>& values) { return deep->mismatch(values); }});
    auto* squares = new MarianiSilver(64 << scale / 3, 128);
    all.push_back({"mandelbrot-nested", 32, [=] { squares->begin(); }, [=](Control* c) { squares->run(c); },
                   [=] { return wide(squares->image.get()); }, image_is_whole});
    auto* log = new Matching(1 << scale * 3 / 4);
    all.push_back({"regular-expressions", 32, [=] { log->begin(); }, [=](Control* c) { log->run(c); },
                   [=] { return log->result(); },
                   [=](const std::vector<u64>& values) { return log->mismatch(values); }});
    if (given) {
        search("bfs-file", *given, false), search("sssp-file", *given, true);
        colouring("colouring-file", *given);
    }
    return all;
}

}  // namespace
