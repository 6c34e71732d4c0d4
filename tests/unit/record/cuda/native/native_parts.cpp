// Parts of the injection library and of the patches that are pure functions, for tests; stdin has the queries.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "records/facts.h"
#include "records/pieces.h"
#include "patches/share.h"
#include "memory/tensormap.h"

using namespace tileprof;

// Records of 64 bytes, each after a byte that says whether a kernel loaded through it. Returns how each is decoded.
static void maps() {
    unsigned char record[65];
    while (fread(record, sizeof record, 1, stdin) == 1) {
        TensorMap map;
        bool is = map.decode(record + 1, record[0] != 0);
        printf("%d %llu %llu\n", is, is ? (unsigned long long)map.base : 0, is ? (unsigned long long)map.bytes : 0);
    }
}

// Keys: launch, block, generation, window, whether in a graph, and kind (0: of a window; 1, 2: of a granule, the
// window's number, in the filter of reads or of writes). Returns how many of the keys that may have facts share slot
// and contents with another key, and how many may have facts.
static void facts() {
    uint64_t key[6];
    std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>,
             std::set<std::tuple<uint64_t, uint64_t, uint64_t>>>
        seen;
    uint64_t mixed = 0, held = 0;
    while (fread(key, sizeof key, 1, stdin) == 1) {
        uint32_t launch = key[0], block = key[1], generation = key[2];
        if (!fact_holds(key[3], key[4])) continue;
        ++held;
        GranuleFact of{fact_slot(launch, block, key[3]), {0, block, launch, fact_above(key[3], generation)}};
        if (key[5] != 0) of = inserted_granule(key[3], key[5] - 1, block, launch);
        seen[{of.slot, of.fact.entry, of.fact.block, of.fact.launch, of.fact.above}].insert({key[2], key[3], key[5]});
    }
    for (const auto& [fact, keys] : seen) mixed += keys.size() - 1;
    printf("%llu %llu\n", (unsigned long long)mixed, (unsigned long long)held);
}

// Four words of a fact of any kind, and a query: launch, block, thread, map. Returns the remaining room, whether it is
// the map's fact, and the same for the facts that this thread and this map would store.
static void others() {
    uint64_t asked[8];
    while (fread(asked, sizeof asked, 1, stdin) == 1) {
        Fact fact{(uint32_t)asked[0], (uint32_t)asked[1], (uint32_t)asked[2], (uint32_t)asked[3]};
        uint32_t launch = asked[4], block = asked[5], thread = asked[6];
        Fact room = room_of(7, block, launch, thread, 30), map = known_map(asked[7], launch);
        printf("%u %d %u %d %d\n", room_left(fact, block, launch, thread), is_known_map(fact, asked[7], launch),
               room_left(room, block, launch, thread), is_known_map(map, asked[7], launch),
               room_left(map, block, launch, thread) != 0 || is_known_map(room, asked[7], launch));
    }
}

// Lanes, bytes, shift of a granule and 32 addresses. Returns the granules that the lanes touch, those that they record,
// the number of granules in only one of both, and the number of recording lanes.
static void shares() {
    uint64_t access[35];
    while (fread(access, sizeof access, 1, stdin) == 1) {
        uint32_t lanes = access[0], bytes = access[1], shift = access[2], recording = 0;
        const uint64_t* address = access + 3;
        std::set<uint64_t> touched, recorded;
        uint32_t on = 0;
        for (uint32_t lane = 0; lane < 32; ++lane)
            if (lanes >> lane & 1 && goes_on(lanes, lane, address[lane], address[lane == 0 ? 0 : lane - 1], bytes))
                on |= 1u << lane;
        for (uint32_t lane = 0; lane < 32; ++lane) {
            if (!(lanes >> lane & 1)) continue;
            uint64_t before = lane == 0 ? address[0] : address[lane - 1];  // of a lane that is inactive: anything
            uint32_t own = share(lanes, lane, on, shift, address[lane], before, bytes);
            recording += own != 0;
            for (uint64_t at = 0; at < bytes; ++at) touched.insert((address[lane] + at) >> shift);
            for (uint64_t at = 0; at < own; ++at) recorded.insert((address[lane] + at) >> shift);
        }
        uint64_t different = 0;
        for (uint64_t granule : touched) different += recorded.count(granule) == 0;
        for (uint64_t granule : recorded) different += touched.count(granule) == 0;
        printf("%llu %u\n", (unsigned long long)different, recording);
    }
}

// SMs, threads, entries of the arena, and then which thread continues by one access to memory. Returns the number of
// assigned entries, of those assigned more than once or beyond the arena, and of entries taken from the arena.
static void pieces() {
    uint64_t sms, number, capacity, next, taken = 0;
    if (fread(&sms, 8, 1, stdin) != 1 || fread(&number, 8, 1, stdin) != 1 || fread(&capacity, 8, 1, stdin) != 1) return;
    struct Thread {
        int at = 0;
        uint64_t was = 0, got = 0;
    };
    std::vector<Thread> threads(number);
    std::vector<uint64_t> counters(sms);
    std::map<uint64_t, int> handed;
    uint64_t full = 0;
    while (fread(&next, 8, 1, stdin) == 1) {
        Thread& t = threads[next % number];
        uint64_t& counter = counters[next % number % sms];
        if (t.at == 0) {
            t.was = counter++;
            if (piece_serves(t.was))
                ++handed[piece_entry(t.was)];
            else
                t.at = 1;
        } else if (t.at == 1) {
            uint64_t n = piece_refills(t.was) ? kPiece : 1;
            t.got = taken;
            taken += n;
            t.at = t.got + n > capacity || n > 1 ? 2 : 0;
            if (t.at == 0) ++handed[t.got];
        } else {
            uint64_t n = piece_refills(t.was) ? kPiece : 1;
            bool none = t.got + n > capacity;
            counter = none ? kSpent : piece_at(t.got);
            none ? ++full : static_cast<uint64_t>(++handed[t.got]);
            t.at = 0;
        }
    }
    uint64_t wrong = 0;
    for (const auto& [entry, times] : handed) wrong += times > 1 || entry >= capacity;
    printf("%zu %llu %llu %llu\n", handed.size(), (unsigned long long)wrong, (unsigned long long)taken,
           (unsigned long long)full);
}

int main(int, char** arguments) {
    if (strcmp(arguments[1], "maps") == 0) maps();
    if (strcmp(arguments[1], "facts") == 0) facts();
    if (strcmp(arguments[1], "others") == 0) others();
    if (strcmp(arguments[1], "pieces") == 0) pieces();
    if (strcmp(arguments[1], "shares") == 0) shares();
    return 0;
}
