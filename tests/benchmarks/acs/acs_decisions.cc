// What `tileprof run --scheduler acs` decides per launch, and how long a CPU takes for it; needs no GPU.
//
//     g++ -O2 -std=c++17 -I tileprof/runtime/acs/native tests/benchmarks/acs/acs_decisions.cc
//         tileprof/runtime/acs/native/order/table.cpp tileprof/runtime/acs/native/order/window.cpp -o acs_decisions
//     ./acs_decisions TABLE LAUNCHES
//
// TABLE: a footprint table; LAUNCHES: a log that the library wrote in its mode `log`. Prints nanoseconds per launch.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "order/table.h"
#include "order/window.h"

namespace acs = tileprof::acs;

namespace {

constexpr int kRounds = 20, kWindow = 128, kLanes = 8;

struct Logged {
    acs::Shape shape{};
    std::vector<uint64_t> words;
    const acs::KernelEntries* entries = nullptr;
};

// As Engine::logged writes them.
std::vector<Logged> read(const char* path, const acs::Table& table) {
    std::vector<Logged> out;
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream in(line);
        uint64_t begin = 0, end = 0;
        std::string symbol, hex;
        size_t bytes = 0;
        int whole = 0;
        Logged one;
        acs::Shape& s = one.shape;
        if (!(in >> begin >> end >> symbol >> s.grid[0] >> s.grid[1] >> s.grid[2] >> s.block[0] >> s.block[1] >>
              s.block[2] >> s.shared_bytes >> whole >> bytes >> hex))
            continue;
        one.words.assign((bytes + 7) / 8, 0);
        auto* block = reinterpret_cast<unsigned char*>(one.words.data());
        for (size_t i = 0; i < bytes && 2 * i + 1 < hex.size(); ++i)
            block[i] = static_cast<unsigned char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
        one.entries = table.of(symbol.c_str());
        out.push_back(std::move(one));
    }
    return out;
}

}  // namespace

int main(int count, char** words) {
    acs::Table table;
    if (count != 3) return fprintf(stderr, "acs_decisions TABLE LAUNCHES\n"), 2;
    if (std::string wrong = table.read(words[1]); !wrong.empty()) return fprintf(stderr, "%s\n", wrong.c_str()), 1;
    const std::vector<Logged> launches = read(words[2], table);
    size_t known = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (int round = 0; round < kRounds; ++round) {
        acs::Window window(kWindow, kLanes);
        for (const Logged& launch : launches) {
            const acs::Entry* entry =
                launch.entries == nullptr
                    ? nullptr
                    : launch.entries->find(launch.shape, launch.words.data(), launch.words.size());
            if (entry == nullptr) {
                window.barrier(1);
                continue;
            }
            ++known;
            acs::Access access;
            entry->access(launch.words.data(), &access);
            const acs::Placement placement = window.place(access);
            window.add(std::move(access), placement.lane, entry->id);
        }
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    printf("%zu launches, %zu known, %.0f ns each\n", launches.size(), known / kRounds,
           took.count() / kRounds / static_cast<double>(launches.size()));
    return launches.empty();
}
