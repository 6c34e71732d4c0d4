// Finds the writers of stores that no callback reports, by group testing.
//
// The launch is repeated over a poisoned output, and every cluster whose id has bit b set ends at entry: bytes that
// stay poisoned were written by such a cluster. With both values of each bit, 2 ceil(log2 clusters) replays name the
// one writer of every granule, or show that it has none or several. The unit is the cluster because ending one block
// of a cluster faults. The blocks must not wait for each other through memory or take work from a counter: a kernel
// that stores or updates memory in any reported way is refused.
#include <string.h>

#include <algorithm>
#include <map>

#include "log/events.h"
#include "log/log.h"
#include "recorder.h"
#include "memory/tensormap.h"

namespace tileprof {

thread_local Header* replaying = nullptr;

namespace {

constexpr uint32_t kGranule = 16;  // the smallest run that a tensor-map store writes
constexpr uint64_t kMostBytes = 1ull << 30;
constexpr uint64_t kPatienceNs = 1000000000;
constexpr int32_t kNobody = -1, kSeveral = -2;

struct Region {
    uint32_t at = 0;      // offset of its map in the parameter block
    bool loaded = false;  // the kernel loads through a map of the same tensor
    uint64_t base = 0, bytes = 0;
    std::vector<char> result, poison, now;
    std::vector<int32_t> owner;  // writer of each granule

    void save() {
        result.resize(bytes);
        now.resize(bytes);
        check(api.sanitizerMemcpyDeviceToHost(result.data(), device(), bytes, nullptr), "saving an output");
        poison = result;
        for (char& c : poison) c = static_cast<char>(~c);
        owner.assign((bytes + kGranule - 1) / kGranule, 0);
    }
    void put(std::vector<char>& what, Sanitizer_StreamHandle stream) {
        check(api.sanitizerMemcpyHostToDeviceAsync(device(), what.data(), bytes, stream), "writing an output");
    }
    void get() { check(api.sanitizerMemcpyDeviceToHost(now.data(), device(), bytes, nullptr), "reading an output"); }
    bool written(size_t granule) const {
        size_t at_byte = granule * kGranule, n = std::min<size_t>(kGranule, bytes - at_byte);
        return memcmp(now.data() + at_byte, poison.data() + at_byte, n) != 0;
    }
    void* device() const { return reinterpret_cast<void*>(base); }
};

struct ReplayResult {
    uint32_t id = 0;
    bool whole = false;  // the answer is complete; a thread finds it otherwise
    std::string refused;
    std::vector<uint32_t> maps;  // offsets of the written regions' maps in the parameter block
};

std::map<uint64_t, ReplayResult>& results = *new std::map<uint64_t, ReplayResult>;
uint32_t next_id = 0;  // ids are not reused, because launches may refer to them

const ReplayResult* complete_result(uint64_t shape) {
    auto entry = results.find(shape);
    return entry != results.end() && entry->second.whole ? &entry->second : nullptr;
}

uint64_t shape_of(const OpenLaunch& launch, const std::vector<char>& parameters) {
    uint64_t hash = launch.geometry ^ launch.kernel->code.fingerprint;
    for (size_t at = 0; at + 8 <= parameters.size(); at += 8) {
        uint64_t word;
        memcpy(&word, parameters.data() + at, sizeof word);
        if (recorder.memory.allocation(word).second != 0) word = 0;  // the addresses of the buffers do not matter
        hash = (hash ^ word) * 0x100000001b3ull;
        hash ^= hash >> 29;
    }
    return hash;
}

// `loaded`: the addresses of tensors that the kernel loads through maps.
std::vector<Region> candidates(const std::vector<char>& parameters, const std::vector<uint64_t>& loaded) {
    std::vector<Region> out;
    for (size_t at = 0; at + 64 <= parameters.size(); at += 16) {
        TensorMap map;
        uint64_t base;
        memcpy(&base, parameters.data() + at, sizeof base);
        if (!map.decode(parameters.data() + at, std::count(loaded.begin(), loaded.end(), base) != 0)) continue;
        if (!recorder.memory.holds(map.base, map.bytes)) continue;
        bool again = std::any_of(out.begin(), out.end(), [&](const Region& r) { return r.base == map.base; });
        if (again) continue;
        Region region;
        region.at = static_cast<uint32_t>(at);
        region.base = map.base;
        region.bytes = map.bytes;
        out.push_back(std::move(region));
    }
    return out;
}

// Facts from the records of the launch: whether it stores or updates memory in a reported way, and the addresses of
// the tensors that it loads through tensor maps.
struct LaunchRecords {
    bool whole = false;  // all its records are in the arena
    bool stores = false;
    std::vector<uint64_t> loaded;
};

LaunchRecords records_of(const OpenLaunch& launch) {
    LaunchRecords out;
    uint64_t blocks = 0;
    for (const Entry& e : launch.arena->entries_now()) {
        if (e.launch != launch.launch) continue;
        uint64_t kind = e.key >> kKindShift;
        blocks += kind == kBlock;
        out.stores |= kind == kAccess && (e.payload[kWrite] | e.payload[kAtomic]) != 0;
        out.stores |= kind == kRange && e.payload[1] != kRead;
        if (kind == kMap && e.block == kMapLoaded && (e.key & kLowMask) % 64 == 0)
            out.loaded.push_back(static_cast<uint64_t>(e.payload[1]) << 32 | e.payload[0]);
    }
    out.whole = blocks == launch.blocks && !launch.arena->full();
    return out;
}

class Replay {
  public:
    Replay(const OpenLaunch& launch, bool (*again)(const void*), const void* call)
        : launch_(launch), again_(again), call_(call) {}

    // Returns an empty string, or the reason for failure. On success `regions` holds the regions that were written,
    // and all of them have their results again.
    std::string run(std::vector<Region>* regions) {
        for (Region& r : *regions) r.save();
        std::string refused = find_written(regions);
        if (refused.empty() && !regions->empty()) refused = find_owners(regions);
        for (Region& r : saved_) r.put(r.result, launch_.handle);
        for (Region& r : *regions) r.put(r.result, launch_.handle);
        api.sanitizerStreamSynchronize(launch_.handle);
        return refused.empty() && regions->empty() ? "no tensor was found that it writes" : refused;
    }

  private:
    bool run_again(uint32_t bit, uint32_t value) {
        replaying = launch_.arena->ending(bit, value, launch_.handle);
        bool ok = again_(call_);
        if (!launch_.arena->rest(launch_.handle))  // its memory is poisoned: the program cannot continue
            end_process(launch_.kernel->name, "it was being repeated to learn what it stores (--no-replay never does)");
        replaying = nullptr;
        return ok;
    }

    // Keeps in `regions` those that the launch writes. Tensors that it loads are not poisoned: if it stores where no
    // map was found, it stores the same values again.
    std::string find_written(std::vector<Region>* regions) {
        for (Region& r : *regions)
            if (!r.loaded) r.put(r.poison, launch_.handle);
        if (!run_again(kKeepAll, 0)) return "the launch could not be repeated";
        std::vector<Region> written;
        for (Region& r : *regions) {
            r.get();
            bool any = false;
            for (size_t g = 0; g < r.owner.size(); ++g) {
                bool w = !r.loaded && r.written(g);
                any |= w;
                if (!w) r.owner[g] = kNobody;
            }
            (any ? written : saved_).push_back(std::move(r));
        }
        *regions = std::move(written);
        for (Region& r : saved_) {
            r.get();
            if (r.loaded && r.now != r.result) return "it writes to a tensor that it also reads";
            r.put(r.result, launch_.handle);
        }
        return "";
    }

    std::string find_owners(std::vector<Region>* regions) {
        for (uint32_t bit = 0; (1u << bit) < launch_.clusters; ++bit) {
            std::vector<std::vector<bool>> alive(regions->size());
            for (uint32_t value = 0; value < 2; ++value) {
                for (Region& r : *regions) r.put(r.poison, launch_.handle);
                if (!run_again(bit, value)) return "a replay failed";
                for (size_t i = 0; i < regions->size(); ++i) note(&(*regions)[i], &alive[i], bit, value);
            }
        }
        return "";
    }

    // Called after a run without the clusters whose `bit` equals `value`.
    static void note(Region* r, std::vector<bool>* first, uint32_t bit, uint32_t value) {
        r->get();
        if (value == 0) first->resize(r->owner.size());
        for (size_t g = 0; g < r->owner.size(); ++g) {
            bool written = r->written(g);
            if (value == 0) {
                (*first)[g] = written;  // written by a cluster whose bit is 1
            } else if (r->owner[g] >= 0) {
                if ((*first)[g] == written)
                    r->owner[g] = kSeveral;
                else if ((*first)[g])
                    r->owner[g] |= 1 << bit;
            }
        }
    }

    const OpenLaunch& launch_;
    bool (*again_)(const void*);
    const void* call_;
    std::vector<Region> saved_;
};

void report(const OpenLaunch& launch, const ReplayResult& k, const std::vector<Region>& regions) {
    std::string name = "owners-" + std::to_string(k.id) + ".bin";
    events::Ranges places;
    std::vector<int32_t> all;
    for (const Region& r : regions) {
        places.emplace_back(r.at, r.bytes);
        all.insert(all.end(), r.owner.begin(), r.owner.end());
    }
    log_.file(name, all.data(), all.size() * sizeof(int32_t));
    events::owners(k.id, launch.launch, name, kGranule, launch.clusters, places, k.refused);
}

}  // namespace

bool was_replayed(const OpenLaunch& launch, const std::vector<char>& parameters) {
    return results.count(shape_of(launch, parameters)) != 0;
}

namespace {

// Whether a tensor lies on another GPU than that of the launch: it cannot be copied and restored from here.
bool any_elsewhere(const std::vector<Region>& regions) {
    CUcontext here = nullptr;
    api.cuCtxGetCurrent(&here);
    return std::any_of(regions.begin(), regions.end(), [&](const Region& r) {
        CUcontext owner = recorder.memory.owner(recorder.memory.allocation(r.base).first);
        return owner != nullptr && owner != here;
    });
}

// Finds the writers; returns false if that must be left to another launch.
bool learn(ReplayResult* k, const OpenLaunch& launch, const std::vector<char>& parameters, bool (*again)(const void*),
           const void* call) {
    bool ended = launch.arena->rest(launch.handle);
    LaunchRecords records = ended ? records_of(launch) : LaunchRecords{};
    if (!records.whole)
        return false;  // another thread drained the records, or there was no room for them: its stores are unknown
    std::vector<Region> regions = candidates(parameters, records.loaded);
    uint64_t bytes = 0;
    for (const Region& r : regions) bytes += r.bytes;
    // one map is outside the parameters, so the map that it stores through may be outside, too
    bool has_outside_map = false;
    for (uint64_t base : records.loaded) {
        bool listed = false;
        for (Region& r : regions)
            if (r.base == base) listed = r.loaded = true;
        has_outside_map |= !listed;
    }
    if (regions.empty()) {
        k->refused = "no tensor map was found among the kernel's parameters";
    } else if (bytes > kMostBytes) {
        k->refused = "its tensors are larger than 1 GiB";
    } else if (any_elsewhere(regions)) {
        k->refused = "a tensor of its lies on another GPU";
    } else if (has_outside_map) {
        k->refused = "it uses tensor maps that are not among its parameters";
    } else if (records.stores) {
        k->refused = "it also stores in ways that may order its blocks or hand out work";
    } else {
        k->refused = Replay(launch, again, call).run(&regions);
    }
    for (const Region& r : regions) k->maps.push_back(r.at);
    report(launch, *k, k->refused.empty() ? regions : std::vector<Region>{});
    return true;
}

}  // namespace

void replay(const OpenLaunch& launch, const std::vector<char>& parameters, bool (*again)(const void*),
            const void* call) {
    uint64_t shape = shape_of(launch, parameters);
    if (complete_result(shape) == nullptr) {
        ClosedGate closed_gate(kPatienceNs);  // launches of other threads would see poisoned memory
        if (!closed_gate) return;
        if (complete_result(shape) == nullptr) {  // and no other thread has found the answer meanwhile
            ReplayResult& fresh = results[shape];
            fresh.id = next_id++;
            if (!learn(&fresh, launch, parameters, again, call)) {
                results.erase(shape);
                return;
            }
            fresh.whole = true;
        }
    }
    const ReplayResult& k = *complete_result(shape);
    std::vector<uint64_t> bases;
    for (uint32_t map : k.maps) {
        uint64_t base = 0;
        if (map + sizeof base <= parameters.size()) memcpy(&base, parameters.data() + map, sizeof base);
        bases.push_back(base);
    }
    events::owned(launch.launch, k.id, bases);
    // The machine code may show how the kernel uses them.
    if (!k.refused.empty())
        log_.file("parameters-" + std::to_string(launch.launch) + ".bin", parameters.data(), parameters.size());
}

}  // namespace tileprof
