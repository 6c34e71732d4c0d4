// Parts of the injection library and of the patches that are pure functions, for tests: what is asked comes on stdin.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <map>
#include <set>
#include <tuple>

#include "facts.h"
#include "tensormap.h"

using namespace tileprof;

// 64 bytes each, with a byte before that says whether a kernel loaded through it: what is made of them.
static void maps() {
    unsigned char record[65];
    while (fread(record, sizeof record, 1, stdin) == 1) {
        TensorMap map;
        bool is = map.decode(record + 1, record[0] != 0);
        printf("%d %llu %llu\n", is, is ? (unsigned long long)map.base : 0, is ? (unsigned long long)map.bytes : 0);
    }
}

// Keys of launch, block, generation, window and whether in a graph: how many share slot and contents with another key,
// of those that may be facts; and how many may.
static void facts() {
    uint64_t key[5];
    std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>, std::set<std::tuple<uint64_t, uint64_t>>> seen;
    uint64_t mixed = 0, held = 0;
    while (fread(key, sizeof key, 1, stdin) == 1) {
        uint32_t launch = key[0], block = key[1], generation = key[2];
        if (!fact_holds(key[3], key[4])) continue;
        ++held;
        seen[{fact_slot(launch, block, key[3]), launch, block, fact_above(key[3], generation)}].insert(
            {key[2], key[3]});
    }
    for (const auto& [fact, keys] : seen) mixed += keys.size() - 1;
    printf("%llu %llu\n", (unsigned long long)mixed, (unsigned long long)held);
}

int main(int, char** arguments) {
    strcmp(arguments[1], "maps") == 0 ? maps() : facts();
    return 0;
}
