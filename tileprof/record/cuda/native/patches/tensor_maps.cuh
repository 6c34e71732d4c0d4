// Tensor maps: their contents when a kernel loaded through them, and the other maps among the parameters.
#pragma once

#include "patches/index.cuh"

namespace tileprof {

namespace {

__device__ __forceinline__ uint64_t word_at(uint64_t address) { return *reinterpret_cast<const uint64_t*>(address); }

// The kernel parameters that contain a tensor map: their bounds, and whether they were found. The constant bank of a
// launch contains its own address and that of the parameters, by which it is recognised. It begins at a page except
// in graphs (seen on sm_90 with driver 580), where it may begin in the page before; memory of the GPU is mapped in
// pieces of at least 64 KiB. If no bank is found, the bounds are those of the map's page, which is always readable as
// a whole.
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

// Copies possible descriptors among the kernel's parameters, once per launch. This finds the maps through which the
// kernel stores, which no callback reports.
__device__ void copy_maps(Header* h, uint64_t map) {
    uint32_t turn = (h->in_graph ? load_relaxed_gpu(&h->generation) : 0) + 1;
    if (load_weak(&h->maps_taken) >= turn || atomicMax(&h->maps_taken, turn) >= turn) return;
    constexpr uint64_t kPart = 16;
    uint64_t begin, end;
    if (bounds_of_parameters(h, map, &begin, &end) && !h->in_graph) {  // each node of a graph has its own parameters
        h->parameters_begin = begin;
        h->parameters_end = end;
    }
    uint32_t parts = static_cast<uint32_t>((end - begin) / kPart);  // a map is not shorter than its last part
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
    uint32_t slot_entry = load_weak(h->table + slot);
    if (slot_entry != kClaimed && is_map(load_weak_v4(h->arena + entry_in(h, slot_entry)), h, key, kind_of_map))
        return true;
    slot_entry = load_relaxed_gpu(h->table + slot);
    return slot_entry != kClaimed &&
           is_map(load_relaxed_gpu_v4(h->arena + entry_in(h, slot_entry)), h, key, kind_of_map);
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
    if (begin == 0 || end == 0) {  // possibly from L1
        uint4 v = load_relaxed_gpu_v4(&h->parameters_begin);
        begin = v.x | static_cast<uint64_t>(v.y) << 32;
        end = v.z | static_cast<uint64_t>(v.w) << 32;
    }
    return begin != 0 && map >= begin && map < end;
}

// A map outside of the parameters may differ at each load: its contents are copied unless a thread has already done
// so. Returns its name, a hash of the contents, or the map's address if it cannot change.
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

// Copies the map of a load. Returns the map's name, or its address if it cannot change during the launch.
__device__ __noinline__ uint64_t record_map(Header* h, uint64_t map) {
    copy_maps(h, map);
    copy_map(h, map);
    return copy_contents(h, map);
}

}  // namespace

}  // namespace tileprof
