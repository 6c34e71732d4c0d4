// The launch sites of SPAWN's programs, found on the CPU: a line of JSON for each program that is named.
//
//     spawn_sites scale name ...
//
// Programs run flat, except for shortest paths: how often a vertex comes again depends on how soon its neighbours see
// its distance, and on a GPU nearly all parents of a round have read theirs before the first child runs.
#include <algorithm>

#include "programs.cuh"

int main(int count, char** given) {
    for (const Work& work : works_of(std::atoi(given[1]))) {
        if (std::find(given + 2, given + count, work.name) == given + count) continue;
        emulated::nodes.clear(), emulated::rounds.clear(), emulated::outside.clear(), emulated::waited.clear();
        Control rule = {};
        if (work.name.rfind("sssp", 0) == 0) rule.rule = spawn::ALWAYS;
        Buffer<Control> control(std::vector<Control>{rule});
        work.begin(), work.run(control.at);
        std::printf("{\"name\": \"%s\", ", work.name.c_str());
        emulated::print_sites();
        std::printf("}\n");
    }
}
