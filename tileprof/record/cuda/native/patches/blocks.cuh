// Blocks that enter and exit.
#pragma once

#include "patches/index.cuh"

namespace tileprof {

namespace {

// The last threads of a graph's node make place for the next node. BLOCK_EXIT is called by all threads of a grid, but
// not by all lanes of a warp at once where they leave in turns (seen with 13.4.92: reductions, cuBLAS products), so
// threads are counted. No count is ever lost: should some leave unseen, or nodes overlap, then `exited` does not end at
// 0 or `generation` not at the number of nodes, and the reader tells no node from another.
__device__ void end_threads(Header* h, unsigned long long leaving) {
    uint64_t blocks = static_cast<uint64_t>(gridDim.x) * gridDim.y * gridDim.z;
    uint64_t all = blocks * (blockDim.x * blockDim.y * blockDim.z);
    if (atomicAdd(&h->exited, leaving) + leaving != all) return;
    atomicAdd(&h->exited, 0ull - all);
    if (load_relaxed_gpu(&h->generation) < kLastGeneration) atomicAdd(&h->generation, 1u);
}

// By the first thread of a block.
__device__ __forceinline__ void enter_block(Header* h, uint64_t pc) {
    uint64_t now = globaltimer();
    uint32_t block = linear_block();
    uint64_t at = append_one(h);
    if (at == kFull) return;
    uint64_t key = key_of(h, kBlock, pc >> 4 << kSmBits | sm_id());
    write_entry(h, at, key, block, static_cast<uint32_t>(now), static_cast<uint32_t>(now >> 32), 0, 0);
    store_relaxed_gpu(h->table + slot_of(h, key_of(h, kBlock, 0), block), slot_value(h, at));
    if (!h->in_graph)
        store_fact(h->facts + fact_slot(h->launch, block, kBlockWindow), known_block(at, block, h->launch));
}

// The entry of this block that a fact or the index leads to; kFull where they lead elsewhere.
__device__ __forceinline__ uint64_t entry_of_block(const Header* h, uint32_t block) {
    Fact fact = load_fact(h->facts + fact_slot(h->launch, block, kBlockWindow));
    if (is_same(fact, known_block(fact.entry, block, h->launch)) && !h->in_graph) return fact.entry;
    uint64_t key = key_of(h, kBlock, 0);
    const uint32_t* slot = h->table + slot_of(h, key, block);
    auto entered = [&](const uint4& is) {
        constexpr uint32_t kAbove = kGenerationShift - 32;  // kind and generation; the low bits differ
        return is.y >> kAbove == static_cast<uint32_t>(key >> kGenerationShift) && is.z == block && is.w == h->launch;
    };
    uint32_t slot_entry = load_weak(slot);
    if (slot_entry != kClaimed && entered(load_weak_v4(h->arena + entry_in(h, slot_entry))))
        return entry_in(h, slot_entry);
    slot_entry = load_relaxed_gpu(slot);
    bool has_entry = slot_entry != kClaimed && entered(load_relaxed_gpu_v4(h->arena + entry_in(h, slot_entry)));
    return has_entry ? entry_in(h, slot_entry) : kFull;
}

// By one of the threads that exit together, `leaving` in number. The entry of a block may be that of another grid's,
// where a launch's kernels launch others.
__device__ __forceinline__ void exit_block(Header* h, uint64_t pc, uint32_t leaving) {
    uint64_t now = globaltimer();
    uint32_t block = linear_block();
    uint64_t entry = h->keeps_exits ? kFull : entry_of_block(h, block);
    if (entry != kFull) {
        red_max(&h->arena[entry].payload[2], now);
    } else {
        uint64_t to = append_one(h);
        if (to != kFull)
            write_entry(h, to, key_of(h, kExit, pc >> 4 << kSmBits | sm_id()), block, leaving, 0,
                        static_cast<uint32_t>(now), static_cast<uint32_t>(now >> 32));
    }
    if (h->in_graph) end_threads(h, leaving);
}

}  // namespace

}  // namespace tileprof
