// The launch sites of SPAWN's programs, found on the CPU: a line of JSON for each program that is named.
//
//     spawn_sites scale name ...
#include <algorithm>

#include "programs.cuh"

int main(int count, char** given) {
    for (const Work& work : works_of(std::atoi(given[1]))) {
        if (std::find(given + 2, given + count, work.name) == given + count) continue;
        emulated::nodes.clear(), emulated::rounds.clear();
        Buffer<Control> flat(std::vector<Control>{{}});
        work.begin(), work.run(flat.at);
        std::printf("{\"name\": \"%s\", ", work.name.c_str());
        emulated::print_sites();
        std::printf("}\n");
    }
}
