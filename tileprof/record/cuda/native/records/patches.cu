// The device side: what runs inside the recorded kernels. Compiled with nvcc --compile-as-tools-patch, which
// allows neither shared memory nor many registers.
#include <sanitizer_patching.h>

#include "records/facts.h"
#include "records/pieces.h"
#include "records/records.h"
#include "records/share.h"

using namespace tileprof;

namespace {

__device__ __forceinline__ uint32_t lane_id() {
    uint32_t value;
    asm("mov.u32 %0, %%laneid;" : "=r"(value));
    return value;
}

__device__ __forceinline__ uint32_t sm_id() {
    uint32_t value;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(value));
    return value;
}

__device__ __forceinline__ uint64_t globaltimer() {
    uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

// L1 is not coherent: what other SMs append must be read from L2.
__device__ __forceinline__ uint4 load_relaxed_gpu_v4(const void* from) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint32_t load_relaxed_gpu(const uint32_t* from) {
    uint32_t value;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// Through L1, which may hold what was there before: for what is true whenever it was read.
__device__ __forceinline__ uint4 load_weak_v4(const void* from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint32_t load_weak(const uint32_t* from) {
    uint32_t value;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// The 16 bytes of a fact at once: what two threads store is never mixed.
__device__ __forceinline__ Fact load_fact(const Fact* from) {
    uint64_t low, high;
    asm volatile("{ .reg .b128 v; ld.relaxed.cta.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
                 : "=l"(low), "=l"(high)
                 : "l"(from)
                 : "memory");
    return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
            static_cast<uint32_t>(high >> 32)};
}

__device__ __forceinline__ void store_fact(Fact* to, const Fact& fact) {
    uint64_t low = fact.entry | static_cast<uint64_t>(fact.block) << 32;
    uint64_t high = fact.launch | static_cast<uint64_t>(fact.above) << 32;
    asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.cta.global.b128 [%0], v; }" ::"l"(to), "l"(low),
                 "l"(high)
                 : "memory");
}

__device__ __forceinline__ void store_v4(void* to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void store_relaxed_gpu(uint32_t* to, uint32_t value) {
    asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ void red_or(uint32_t* to, uint32_t bits) {
    asm volatile("red.global.or.b32 [%0], %1;" ::"l"(to), "r"(bits) : "memory");
}

// What every access needs of a header: two loads, neither of which waits for the other.
struct Hot {
    Entry* arena;
    Fact* facts;
    uint32_t launch, granule_shift, in_graph, table_mask;
};

__device__ __forceinline__ Hot hot_of(const Header* h) {
    uint4 a = load_weak_v4(h), b = load_weak_v4(reinterpret_cast<const char*>(h) + 16);
    return {reinterpret_cast<Entry*>(a.x | static_cast<uint64_t>(a.y) << 32),
            reinterpret_cast<Fact*>(a.z | static_cast<uint64_t>(a.w) << 32),
            b.x,
            b.y,
            b.z,
            b.w};
}

__device__ __forceinline__ uint32_t linear_block() {
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

__device__ __forceinline__ uint32_t linear_cluster() {
#if __CUDA_ARCH__ >= 900
    uint32_t x, y, z, nx, ny;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(x));
    asm("mov.u32 %0, %%clusterid.y;" : "=r"(y));
    asm("mov.u32 %0, %%clusterid.z;" : "=r"(z));
    asm("mov.u32 %0, %%nclusterid.x;" : "=r"(nx));
    asm("mov.u32 %0, %%nclusterid.y;" : "=r"(ny));
    return x + nx * (y + ny * z);
#else
    return linear_block();
#endif
}

__device__ __forceinline__ bool elected() { return lane_id() == __ffs(__activemask()) - 1u; }

constexpr uint64_t kFull = ~0ull;

// Room for n adjacent entries; kFull when there is none.
__device__ __forceinline__ uint64_t append(Header* h, uint32_t n) {
    uint64_t at = atomicAdd(h->count, static_cast<unsigned long long>(n));
    if (at + n <= h->capacity) return at;
    atomicAdd(&h->spilled, 1u);
    return kFull;
}

// Room for one entry: from the SM's piece.
__device__ uint64_t append_one(Header* h) {
    unsigned long long* counter = h->count + kCounterWords * (1 + sm_id() % kCounters);
    uint64_t was = atomicAdd(counter, 1ull);
    if (piece_serves(was)) return piece_entry(was);
    uint64_t at = append(h, piece_refills(was) ? kPiece : 1);
    if (at == kFull)
        atomicExch(counter, static_cast<unsigned long long>(kSpent));
    else if (piece_refills(was))
        atomicExch(counter, static_cast<unsigned long long>(piece_at(at)));
    return at;
}

__device__ __forceinline__ void write_entry(const Hot& hot, uint64_t at, uint64_t key, uint32_t block, uint32_t a,
                                            uint32_t b, uint32_t c, uint32_t d) {
    Entry* e = hot.arena + at;
    store_v4(e->payload, a, b, c, d);
    store_v4(e, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), block, hot.launch);
}

__device__ __forceinline__ void write_entry(Header* h, uint64_t at, uint64_t key, uint32_t block, uint32_t a,
                                            uint32_t b, uint32_t c, uint32_t d) {
    Entry* e = h->arena + at;
    store_v4(e->payload, a, b, c, d);
    store_v4(e, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), block, h->launch);
}

// The kernel nodes of a graph share a header. A thread that runs has not ended, so the number of ended nodes is the
// running one's place, as long as they do not overlap; the reader notices when they do.
__device__ __forceinline__ uint64_t key_of(Kind kind, uint64_t generation, uint64_t low) {
    return static_cast<uint64_t>(kind) << kKindShift | generation << kGenerationShift | (low & kLowMask);
}

__device__ __forceinline__ uint64_t key_of(const Header* h, Kind kind, uint64_t low) {
    return key_of(kind, h->in_graph ? load_relaxed_gpu(&h->generation) : 0, low);
}

// Adjacent windows of a block lie side by side in the index: one sector serves a streaming warp.
__device__ __forceinline__ uint32_t slot_of(const Header* h, uint64_t key, uint32_t block) {
    uint64_t salt = (static_cast<uint64_t>(h->launch) << 32 | block) * 0x9e3779b97f4a7c15ull;
    return (static_cast<uint32_t>(key) + static_cast<uint32_t>(salt >> 32)) & h->table_mask;
}

// What a slot of the index holds. Most slots that a new key meets are an earlier launch's, which their tag says without
// a look at the entry.
__device__ __forceinline__ uint32_t slot_value(const Header* h, uint64_t at) {
    return static_cast<uint32_t>(at | static_cast<uint64_t>(h->launch) << h->tag_shift);
}

__device__ __forceinline__ uint32_t entry_in(const Header* h, uint32_t slot) {
    return slot & static_cast<uint32_t>((1ull << h->tag_shift) - 1);
}

__device__ __forceinline__ bool may_be_of(const Header* h, uint32_t slot) {
    return static_cast<uint64_t>(slot ^ slot_value(h, 0)) >> h->tag_shift == 0;
}

__device__ void spill(Header* h, uint64_t address, uint64_t bytes, uint32_t mode) {
    for (uint64_t page = address >> kPageShift; page <= (address + bytes - 1) >> kPageShift; ++page) {
        uint32_t folded = static_cast<uint32_t>(page) & (kPages - 1);
        if (mode != kWrite) red_or(h->spill->read + folded / 32, 1u << (folded & 31));
        if (mode != kRead) red_or(h->spill->written + folded / 32, 1u << (folded & 31));
    }
}

// Addresses of the lower half have 47 bits. Others are memory of the host's that the GPU reaches through its page
// tables, or a program's mistake.
__device__ __noinline__ void spill_beyond(Header* h, uint64_t address, uint64_t bytes, uint32_t mode) {
    atomicAdd(&h->beyond, 1u);
    atomicAdd(h->count + 1, 1ull);
    spill(h, address, bytes, mode);
}

// Does a slot of the index lead to the entry of this key?
__device__ __forceinline__ bool find(const Header* h, uint32_t slot, uint64_t key, uint32_t block) {
    if (slot == kClaimed || !may_be_of(h, slot)) return false;
    uint4 is = load_relaxed_gpu_v4(h->arena + entry_in(h, slot));
    return is.x == static_cast<uint32_t>(key) && is.y == static_cast<uint32_t>(key >> 32) && is.z == block &&
           is.w == h->launch;
}

// The entry of a key that slot, which held `old`, does not lead to: another warp's, or a new one. The warps of a
// block often come here together; those that find the slot claimed wait a moment for the one that claimed it.
__device__ uint64_t insert(Header* h, uint32_t slot, uint32_t old, uint64_t key, uint32_t block) {
    constexpr int kPatience = 16;  // reads of the slot, about 10 us; after that a second entry is no harm
    uint32_t seen = old == kClaimed ? kClaimed : atomicCAS(h->table + slot, old, kClaimed);
    if (seen != old || old == kClaimed) {
        for (int i = 0; i < kPatience && seen == kClaimed; ++i) seen = load_relaxed_gpu(h->table + slot);
        if (find(h, seen, key, block)) return entry_in(h, seen);
    }
    uint64_t at = append_one(h);
    if (at != kFull) {
        // The bits are zero in a fresh arena and are only ever or-ed in: a thread that finds the key early cannot
        // take stale bits for its own.
        h->arena[at].payload[3] = static_cast<uint32_t>(globaltimer());
        store_v4(h->arena + at, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), block, h->launch);
    }
    store_relaxed_gpu(h->table + slot, at == kFull ? 0 : slot_value(h, at));
    return at;
}

// Whether this thread knows the entry of a window of its block, and then sets its bits.
__device__ __forceinline__ bool touch_known(Header* h, uint64_t window, uint32_t bits, uint32_t mode) {
    uint32_t block = linear_block();
    uint32_t generation = h->in_graph ? load_relaxed_gpu(&h->generation) : 0;
    Fact fact = load_fact(h->facts + fact_slot(h->launch, block, window));
    if (fact.block != block || fact.launch != h->launch || fact.above != fact_above(window, generation) ||
        !fact_holds(window, h->in_graph))
        return false;
    red_or(&h->arena[fact.entry].payload[mode], bits);
    return true;
}

// The same outside of graphs, of a window of addresses that keys hold.
__device__ __forceinline__ bool touch_known(const Hot& hot, uint64_t window, uint32_t bits, uint32_t mode) {
    uint32_t block = linear_block();
    Fact fact = load_fact(hot.facts + fact_slot(hot.launch, block, window));
    if (fact.block != block || fact.launch != hot.launch || fact.above != fact_above(window, 0)) return false;
    red_or(&hot.arena[fact.entry].payload[mode], bits);
    return true;
}

// The same through the index, for the lanes that are here. Afterwards all threads may know.
__device__ __noinline__ void touch_unknown(Header* h, uint64_t window, uint32_t bits, uint32_t mode) {
    uint32_t block = linear_block();
    uint32_t peers = __match_any_sync(__activemask(), window);
    uint64_t key = key_of(h, kAccess, window);
    uint32_t slot = slot_of(h, key, block);
    uint32_t leader = __ffs(peers) - 1;
    uint64_t at = 0;
    if (lane_id() == leader) {
        uint32_t held = load_relaxed_gpu(h->table + slot);
        at = find(h, held, key, block) ? entry_in(h, held) : insert(h, slot, held, key, block);
        if (at != kFull && fact_holds(window, h->in_graph)) {
            uint32_t generation = static_cast<uint32_t>(key >> kGenerationShift) & kLastGeneration;
            store_fact(h->facts + fact_slot(h->launch, block, window),
                       {static_cast<uint32_t>(at), block, h->launch, fact_above(window, generation)});
        }
    }
    at = __shfl_sync(peers, at, leader);
    if (at != kFull) return red_or(&h->arena[at].payload[mode], bits);
    spill(h, window << (h->granule_shift + 5), 1, mode);  // a window lies in one page
}

// Bits `first` to `last` of a window.
__device__ __forceinline__ uint32_t bits_of(uint32_t first, uint32_t last) {
    return (0xffffffffu >> (31 - (last - first))) << first;
}

// Granules `first` to `last`, of any windows.
__device__ __noinline__ void touch_granules(Header* h, uint64_t first, uint64_t last, uint32_t mode) {
    if (last >> (kGenerationShift - h->granule_shift) != 0)
        return spill_beyond(h, first << h->granule_shift, (last - first + 1) << h->granule_shift, mode);
    for (; first <= last; first = (first | 31) + 1) {
        uint64_t window = first >> 5;
        uint32_t bits = bits_of(first & 31, last >> 5 == window ? last & 31 : 31);
        if (!touch_known(h, window, bits, mode)) touch_unknown(h, window, bits, mode);
    }
}

// Record that this thread touches [address, address + bytes): accesses are naturally aligned and at most 16 bytes.
__device__ __forceinline__ void touch(Header* h, const Hot& hot, uint64_t address, uint32_t bytes, uint32_t mode) {
    uint32_t shift = hot.granule_shift, lanes = __activemask(), lane = lane_id();
    uint64_t before = __shfl_up_sync(lanes, address, 1);
    uint32_t on = __ballot_sync(lanes, goes_on(lanes, lane, address, before, bytes));
    bytes = share(lanes, lane, on, shift, address, before, bytes);
    if (bytes == 0) return;
    uint64_t first = address >> shift, last = (address + bytes - 1) >> shift;
    if (first >> 5 != last >> 5 || address >> kGenerationShift != 0 || hot.in_graph)
        return touch_granules(h, first, last, mode);
    uint32_t bits = bits_of(first & 31, last & 31);
    if (!touch_known(hot, first >> 5, bits, mode)) touch_unknown(h, first >> 5, bits, mode);
}

// The last threads of a graph's node make place for the next node. BLOCK_EXIT is called by all threads of a grid, but
// not by all lanes of a warp at once where they leave in turns (seen with 13.4.92: reductions, cuBLAS products), so
// threads are counted. No count is ever lost: should some leave unseen, or nodes overlap, then `exited` does not end at
// 0 or `generation` not at the number of nodes, and the reader tells none of them apart.
__device__ void end_threads(Header* h, unsigned long long leaving) {
    uint64_t blocks = static_cast<uint64_t>(gridDim.x) * gridDim.y * gridDim.z;
    uint64_t all = blocks * (blockDim.x * blockDim.y * blockDim.z);
    if (atomicAdd(&h->exited, leaving) + leaving != all) return;
    atomicAdd(&h->exited, 0ull - all);
    if (load_relaxed_gpu(&h->generation) < kLastGeneration) atomicAdd(&h->generation, 1u);
}

// Two adjacent entries, for a thread that appends many: it takes room for several at once and notes in its place among
// the facts how much is left. That note is this thread's alone, so that it never reads an older one than it wrote; what
// another key leaves there costs the rest of the room. Room that stays unused is zero, which the reader leaves out.
__device__ __forceinline__ uint64_t append_two(Header* h, const Hot& hot, uint32_t block, uint32_t thread) {
    Fact* slot = hot.facts + fact_slot(hot.launch, block, room_window(thread));
    Fact room = load_fact(slot);
    uint32_t left = room_left(room, block, hot.launch, thread);
    if (left >= 2) {
        store_fact(slot, room_of(room.entry + 2, block, hot.launch, thread, left - 2));
        return room.entry;
    }
    uint64_t at = append(h, kRoom);
    if (at != kFull) store_fact(slot, room_of(static_cast<uint32_t>(at) + 2, block, hot.launch, thread, kRoom - 2));
    return at;
}

__device__ __forceinline__ void bulk(Header* h, uint64_t address, uint32_t bytes, uint32_t mode, uint32_t mask) {
    if (!elected() || bytes == 0) return;
    if (address >> kGenerationShift != 0) return spill_beyond(h, address, bytes, mode);
    uint64_t at = append_one(h);
    if (at == kFull) return spill(h, address, bytes, mode);
    write_entry(h, at, key_of(h, kRange, address), linear_block(), bytes, mode, mask,
                static_cast<uint32_t>(globaltimer()));
}

__device__ __forceinline__ uint64_t word_at(uint64_t address) { return *reinterpret_cast<const uint64_t*>(address); }

// The kernel parameters among which a tensor map lies: their bounds, and whether they were found. A launch's constant
// bank says where it begins and where its parameters do, and so is known by itself; it begins a page, but in graphs
// (seen on sm_90 with driver 580), where it may begin in the page before: memory of the GPU is mapped in pieces of 64
// KiB and more. Where none is found: the map's page, which is always readable whole.
__device__ bool bounds_of_parameters(const Header* h, uint64_t map, uint64_t* begin, uint64_t* end) {
    constexpr uint64_t kPageBytes = 4096, kPieceBytes = 65536, kAlign = 64, kMost = 32768;
    constexpr uint64_t kSelf = 0xc0, kBegin = 0x198, kEnd = 0x1a0, kParameters = 0x210;
    uint64_t page = map & ~(kPageBytes - 1);
    *begin = page;
    *end = page + kPageBytes;
    if (h->in_graph && page % kPieceBytes != 0) page -= kPageBytes;
    if (map - page < kParameters) return false;
    for (uint64_t bank = (map - kParameters) & ~(kAlign - 1); bank >= page; bank -= kAlign) {
        if (word_at(bank + kSelf) != bank || word_at(bank + kBegin) != bank + kParameters) continue;
        uint64_t last = word_at(bank + kEnd);
        if (last <= map || last > bank + kParameters + kMost) continue;
        *begin = bank + kParameters;
        *end = last;
        return true;
    }
    return false;
}

// Copy what may be descriptors among the kernel's parameters, once per launch: this finds the maps that the kernel
// stores through, which no callback reports.
__device__ void copy_maps(Header* h, uint64_t map) {
    uint32_t turn = (h->in_graph ? load_relaxed_gpu(&h->generation) : 0) + 1;
    if (load_weak(&h->maps_taken) >= turn || atomicMax(&h->maps_taken, turn) >= turn) return;
    constexpr uint64_t kPart = 16;
    uint64_t begin, end;
    if (bounds_of_parameters(h, map, &begin, &end) && !h->in_graph) {  // nodes of a graph have parameters each
        h->parameters_begin = begin;
        h->parameters_end = end;
    }
    uint32_t parts = static_cast<uint32_t>((end - begin) / kPart);  // a map is no shorter than its last part
    uint64_t at = append(h, parts);
    if (at == kFull) return;
    for (uint32_t i = 0; i < parts; ++i) {
        uint64_t from = begin + i * kPart;
        uint4 v = *reinterpret_cast<const uint4*>(from);
        write_entry(h, at + i, key_of(h, kMap, from), kMapBeside, v.x, v.y, v.z, v.w);
    }
}

// The entry that the index has for a key of `kind_of_map` (where access entries hold their block); kClaimed: none.
__device__ __forceinline__ bool is_map(const uint4& seen, const Header* h, uint64_t key, uint32_t kind_of_map) {
    return seen.x == static_cast<uint32_t>(key) && seen.y == static_cast<uint32_t>(key >> 32) &&
           seen.z == kind_of_map && seen.w == h->launch;
}

__device__ __forceinline__ bool was_copied(const Header* h, uint64_t key, uint32_t kind_of_map, uint32_t slot) {
    uint32_t held = load_weak(h->table + slot);
    if (held != kClaimed && is_map(load_weak_v4(h->arena + entry_in(h, held)), h, key, kind_of_map)) return true;
    held = load_relaxed_gpu(h->table + slot);
    return held != kClaimed && is_map(load_relaxed_gpu_v4(h->arena + entry_in(h, held)), h, key, kind_of_map);
}

__device__ void copy_map(Header* h, uint64_t map) {
    uint64_t key = key_of(h, kMap, map);
    uint32_t slot = slot_of(h, key, kMapLoaded);
    if (was_copied(h, key, kMapLoaded, slot)) return;
    uint64_t at = append(h, 4);
    if (at == kFull) return;
    for (uint32_t i = 0; i < 4; ++i) {
        uint4 v = *reinterpret_cast<const uint4*>(map + i * 16);
        write_entry(h, at + i, key_of(h, kMap, map + i * 16), kMapLoaded, v.x, v.y, v.z, v.w);
    }
    store_relaxed_gpu(h->table + slot, slot_value(h, at));
}

__device__ __forceinline__ bool is_parameter(const Header* h, uint64_t map) {
    uint64_t begin = h->parameters_begin, end = h->parameters_end;
    if (begin == 0 || end == 0) {  // out of L1, maybe
        uint4 v = load_relaxed_gpu_v4(&h->parameters_begin);
        begin = v.x | static_cast<uint64_t>(v.y) << 32;
        end = v.z | static_cast<uint64_t>(v.w) << 32;
    }
    return begin != 0 && map >= begin && map < end;
}

// A map outside of the parameters may be another one at each load: what it holds now is copied where no thread has done
// so. Returns its name, a hash of that; the map's address where it cannot change.
__device__ __noinline__ uint64_t copy_contents(Header* h, uint64_t map) {
    if (h->in_graph || is_parameter(h, map)) return map;
    uint64_t hash = 0xcbf29ce484222325ull;
    for (uint32_t i = 0; i < 4; ++i) {
        uint4 v = load_relaxed_gpu_v4(reinterpret_cast<const void*>(map + i * 16));
        hash = (hash ^ v.x ^ static_cast<uint64_t>(v.y) << 32) * 0x9e3779b97f4a7c15ull;
        hash = ((hash ^ hash >> 29) ^ v.z ^ static_cast<uint64_t>(v.w) << 32) * 0xbf58476d1ce4e5b9ull;
        hash ^= hash >> 31;
    }
    uint64_t name = hash & kLowMask;
    if (name == map) ++name;
    uint64_t key = key_of(h, kMap, name);
    uint32_t slot = slot_of(h, key, kMapName);
    if (was_copied(h, key, kMapName, slot)) return name;
    uint64_t at = append(h, 5);
    if (at == kFull) return name;
    write_entry(h, at, key, kMapName, static_cast<uint32_t>(map), static_cast<uint32_t>(map >> 32), 0, 0);
    for (uint32_t i = 0; i < 4; ++i) {
        uint4 v = load_relaxed_gpu_v4(reinterpret_cast<const void*>(map + i * 16));
        write_entry(h, at + 1 + i, key_of(h, kMap, map + i * 16), kMapContents, v.x, v.y, v.z, v.w);
    }
    store_relaxed_gpu(h->table + slot, slot_value(h, at));
    return name;
}

// Copy what a load tells of its map. Returns the map's name, or its address where it cannot change during the launch.
__device__ __noinline__ uint64_t know_map(Header* h, uint64_t map) {
    copy_maps(h, map);
    copy_map(h, map);
    return copy_contents(h, map);
}

}  // namespace

extern "C" {

__device__ __noinline__ SanitizerPatchResult tileprof_nothing(void*, uint64_t) { return SANITIZER_PATCH_SUCCESS; }

__device__ __noinline__ SanitizerPatchResult tileprof_nothing_access(void*, uint64_t, void*, uint32_t, uint32_t,
                                                                     const void*) {
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_nothing_copy(void*, uint64_t, void*, uint32_t, uint32_t) {
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_nothing_tensor(void*, uint64_t, uint64_t, uint32_t, uint32_t,
                                                                     int32_t, int32_t, int32_t, int32_t, int32_t,
                                                                     uint32_t, uint32_t, uint32_t, uint32_t) {
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_block_enter(void* data, uint64_t pc) {
    Header* h = static_cast<Header*>(data);
    if (h == nullptr) return SANITIZER_PATCH_SUCCESS;
    if (h->end_bit != kKeepAll && ((linear_cluster() >> h->end_bit) & 1u) == h->end_value) return SANITIZER_PATCH_ERROR;
    if (h->launch == kKeepAll) return SANITIZER_PATCH_SUCCESS;
    if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
        uint64_t now = globaltimer();
        uint32_t block = linear_block();
        uint64_t at = append_one(h);
        if (at != kFull) {
            uint64_t key = key_of(h, kBlock, pc >> 4 << kSmBits | sm_id());
            write_entry(h, at, key, block, static_cast<uint32_t>(now), static_cast<uint32_t>(now >> 32), 0, 0);
            store_relaxed_gpu(h->table + slot_of(h, key_of(h, kBlock, 0), block), slot_value(h, at));
        }
    }
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_block_exit(void* data, uint64_t) {
    Header* h = static_cast<Header*>(data);
    uint32_t leaving = __activemask();  // once: from here on lanes may part
    if (h == nullptr || h->launch == kKeepAll || lane_id() != __ffs(leaving) - 1u) return SANITIZER_PATCH_SUCCESS;
    uint64_t now = globaltimer();
    uint32_t block = linear_block();
    uint64_t key = key_of(h, kBlock, 0);
    const uint32_t* slot = h->table + slot_of(h, key, block);
    auto entered = [&](const uint4& is) {
        constexpr uint32_t kAbove = kGenerationShift - 32;  // kind and generation; the low bits differ
        return is.y >> kAbove == static_cast<uint32_t>(key >> kGenerationShift) && is.z == block && is.w == h->launch;
    };
    uint32_t held = load_weak(slot);
    bool found = held != kClaimed && entered(load_weak_v4(h->arena + entry_in(h, held)));
    if (!found) {
        held = load_relaxed_gpu(slot);
        found = held != kClaimed && entered(load_relaxed_gpu_v4(h->arena + entry_in(h, held)));
    }
    if (found) {
        atomicMax(reinterpret_cast<unsigned long long*>(&h->arena[entry_in(h, held)].payload[2]),
                  static_cast<unsigned long long>(now));
    } else {
        uint64_t to = append_one(h);
        if (to != kFull)
            write_entry(h, to, key_of(h, kExit, sm_id()), block, 0, 0, static_cast<uint32_t>(now),
                        static_cast<uint32_t>(now >> 32));
    }
    if (h->in_graph) end_threads(h, __popc(leaving));
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_access(void* data, uint64_t, void* address, uint32_t bytes,
                                                             uint32_t flags, const void*) {
    Header* h = static_cast<Header*>(data);
    if (h == nullptr || (flags & SANITIZER_MEMORY_DEVICE_FLAG_PREFETCH) != 0) return SANITIZER_PATCH_SUCCESS;
    Hot hot = hot_of(h);
    if (hot.launch == kKeepAll) return SANITIZER_PATCH_SUCCESS;
    constexpr uint32_t kBoth = SANITIZER_MEMORY_DEVICE_FLAG_READ | SANITIZER_MEMORY_DEVICE_FLAG_WRITE;
    constexpr uint32_t kUpdate = SANITIZER_MEMORY_DEVICE_FLAG_ATOMSYS | SANITIZER_MEMORY_DEVICE_FLAG_ATOMIC_WRITE_ONLY;
    uint32_t mode = (flags & kBoth) == kBoth || (flags & kUpdate) != 0  ? kAtomic
                    : (flags & SANITIZER_MEMORY_DEVICE_FLAG_WRITE) != 0 ? kWrite
                                                                        : kRead;
    touch(h, hot, reinterpret_cast<uint64_t>(address), bytes, mode);
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_copy_async(void* data, uint64_t, void* from, uint32_t,
                                                                 uint32_t bytes) {
    Header* h = static_cast<Header*>(data);
    if (h == nullptr || from == nullptr) return SANITIZER_PATCH_SUCCESS;
    Hot hot = hot_of(h);
    if (hot.launch != kKeepAll) touch(h, hot, reinterpret_cast<uint64_t>(from), bytes, kRead);
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_bulk_load(void* data, uint64_t, uint64_t from, uint32_t, uint32_t,
                                                                uint32_t mask_and_size, uint32_t) {
    Header* h = static_cast<Header*>(data);
    if (h != nullptr && h->launch != kKeepAll) bulk(h, from, (mask_and_size & 0xffff) * 16, kRead, 0);
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_bulk_store(void* data, uint64_t, uint64_t to, uint32_t,
                                                                 uint32_t mask_and_size, uint32_t has_mask) {
    Header* h = static_cast<Header*>(data);
    if (h != nullptr && h->launch != kKeepAll)
        bulk(h, to, (mask_and_size & 0xffff) * 16, kWrite, has_mask ? mask_and_size >> 16 : 0);
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_bulk_reduce(void* data, uint64_t, uint64_t to, uint32_t,
                                                                  uint32_t blocks) {
    Header* h = static_cast<Header*>(data);
    if (h != nullptr && h->launch != kKeepAll) bulk(h, to, (blocks & 0xffff) * 16, kAtomic, 0);
    return SANITIZER_PATCH_SUCCESS;
}

__device__ __noinline__ SanitizerPatchResult tileprof_tensor_load(void* data, uint64_t, uint64_t map, uint32_t,
                                                                  uint32_t, int32_t c0, int32_t c1, int32_t c2,
                                                                  int32_t c3, int32_t c4, uint32_t dims,
                                                                  uint32_t multicast, uint32_t mask_and_im2col,
                                                                  uint32_t load_mode) {
    Header* h = static_cast<Header*>(data);
    // All lanes are called with the same arguments.
    if (h == nullptr || !elected()) return SANITIZER_PATCH_SUCCESS;
    Hot hot = hot_of(h);
    if (hot.launch == kKeepAll) return SANITIZER_PATCH_SUCCESS;
    uint32_t block = linear_block();
    uint64_t at, generation = 0, name = map;
    if (hot.in_graph) {
        generation = load_relaxed_gpu(&h->generation);
        name = know_map(h, map);
        at = append(h, 2);
    } else {
        Fact* slot = hot.facts + fact_slot(hot.launch, 0, map >> kMapAlignBits);
        Fact known = load_fact(slot);
        at = append_two(h, hot, block, threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
        if (!is_known_map(known, map, hot.launch)) {
            name = know_map(h, map);
            if (name == map) store_fact(slot, known_map(map, hot.launch));
        }
    }
    if (at == kFull) return SANITIZER_PATCH_SUCCESS;
    uint32_t flags = (dims & kTensorDims) | load_mode << kTensorModeShift | (multicast ? kTensorMulticast : 0);
    write_entry(hot, at, key_of(kTensor, generation, map), block, c0, c1, c2, c3);
    write_entry(hot, at + 1, key_of(kTensorTail, generation, name), block, c4, mask_and_im2col, flags,
                static_cast<uint32_t>(globaltimer()));
    return SANITIZER_PATCH_SUCCESS;
}

}  // extern "C"
