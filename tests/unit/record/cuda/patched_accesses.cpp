// The patches of accesses on the CPU: stdin has the accesses of a launch's warps, stdout gets the entries and the
// filters of its blocks.
#include "patches/accesses.cuh"
#include "patches/blocks.cuh"

#include <stdio.h>

using namespace tileprof;

namespace {

// The settings of a test, before its accesses.
struct Asked {
    uint64_t granule_shift, filter_granule_shift, filter_bits_shift, filter_hashes, filters_only, blocks, capacity,
        in_graph, keeps_exits;
};

// One warp. Kind 0 is an access of `bytes` per lane, 1 a bulk copy, 2 a load through a tensor map. In kind 3 a block
// enters, in 4 lanes exit at an address, and in 5 another launch gets the place of the fact of an address's window.
struct Access {
    uint64_t kind, block, mode, bytes, lanes, address[32];
};

}  // namespace

int main() {
    Asked asked;
    if (fread(&asked, sizeof asked, 1, stdin) != 1) return 1;
    constexpr uint32_t kSlots = 1u << 12;
    std::vector<Entry> arena(asked.capacity + 1);
    std::vector<Fact> facts(kFactSlots);
    std::vector<uint32_t> table(kSlots);
    std::vector<unsigned long long> count(kCounterWords * (1 + kCounters));
    std::vector<Spill> spill(1);
    size_t words = (asked.blocks * 2 << asked.filter_bits_shift) / 32;
    std::vector<uint32_t> filters(words + 64);  // the memory behind belongs to another launch
    gridDim.x = static_cast<unsigned>(asked.blocks) + 2;  // two more blocks than filters

    Header h{};
    h.arena = arena.data();
    h.facts = facts.data();
    h.launch = 7;
    h.granule_shift = static_cast<uint8_t>(asked.granule_shift);
    h.filter_granule_shift = static_cast<uint8_t>(asked.filter_granule_shift);
    h.filter_bits_shift = static_cast<uint8_t>(asked.filter_bits_shift);
    h.filter_hashes = static_cast<uint8_t>(asked.filter_hashes);
    h.filters_only = static_cast<uint8_t>(asked.filters_only);
    h.keeps_exits = static_cast<uint8_t>(asked.keeps_exits);
    h.in_graph = static_cast<uint16_t>(asked.in_graph);
    h.filter_blocks = static_cast<uint32_t>(asked.blocks);
    h.filters = filters.data();
    h.table_mask = kSlots - 1;
    h.table = table.data();
    h.count = count.data();
    h.spill = spill.data();
    h.capacity = asked.capacity;
    h.tag_shift = 20;

    Access access;
    while (fread(&access, sizeof access, 1, stdin) == 1) {
        blockIdx.x = static_cast<unsigned>(access.block);
        uint32_t mode = static_cast<uint32_t>(access.mode), bytes = static_cast<uint32_t>(access.bytes);
        warp::run(static_cast<uint32_t>(access.lanes), [&](uint32_t lane) {
            if (access.kind == 1) return bulk(&h, access.address[0], bytes, mode, 0);
            if (access.kind == 2 && elected()) return fill_filter_of_reads(&h);
            if (access.kind == 5) {
                uint64_t window = access.address[lane] >> (h.granule_shift + 5);
                store_fact(h.facts + fact_slot(h.launch, blockIdx.x, window),
                           {0, blockIdx.x, h.launch - 1, fact_above(window, 0)});
            }
            if (access.kind == 3 && lane == 0) return enter_block(&h, access.address[0]);
            if (access.kind == 4 && elected())
                return exit_block(&h, access.address[0], __builtin_popcount(warp::lanes));
            if (access.kind == 0) touch(&h, access.address[lane], bytes, mode);
        });
    }
    uint64_t entries = 0;
    for (const Entry& entry : arena) entries += entry.launch != 0;
    fwrite(&entries, sizeof entries, 1, stdout);
    for (const Entry& entry : arena)
        if (entry.launch != 0) fwrite(&entry, sizeof entry, 1, stdout);
    fwrite(filters.data(), sizeof(uint32_t), filters.size(), stdout);
    return 0;
}
