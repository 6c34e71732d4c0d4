#include <string.h>

#include <algorithm>
#include <map>
#include <random>

#include "segment.h"

namespace tileprof::acs {

namespace {

constexpr size_t kChunk = 4 << 20;  // bytes compared at once

// Device memory, and a copy of it on the device.
struct Region {
    CUdeviceptr base = 0;
    size_t bytes = 0;
    CUdeviceptr before = 0, reordered = 0;
};

class Memory {
  public:
    Memory(const std::vector<Held>& segment, CUstream stream) : stream_(stream) {
        std::map<CUdeviceptr, size_t> found;
        for (const Held& held : segment)
            for (uint32_t slot : held.slots) {
                uint64_t address = 0, base = 0;
                size_t bytes = 0;
                memcpy(&address, reinterpret_cast<const char*>(held.words.data()) + slot, sizeof address);
                if (Driver::get().cuMemGetAddressRange_v2(&base, &bytes, address) == kSuccess) found[base] = bytes;
            }
        for (const auto& [base, bytes] : found) regions_.push_back({base, bytes, 0, 0});
    }
    ~Memory() {
        for (Region& r : regions_)
            for (CUdeviceptr copy : {r.before, r.reordered})
                if (copy != 0) Driver::get().cuMemFree_v2(copy);
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    uint64_t bytes() const {
        uint64_t all = 0;
        for (const Region& r : regions_) all += r.bytes;
        return all;
    }
    bool allocate() {
        for (Region& r : regions_)
            for (CUdeviceptr* copy : {&r.before, &r.reordered})
                if (Driver::get().cuMemAlloc_v2(copy, r.bytes) != kSuccess) return false;
        return true;
    }
    bool save(CUdeviceptr Region::* where) {
        for (Region& r : regions_)
            if (Driver::get().cuMemcpyDtoDAsync_v2(r.*where, r.base, r.bytes, stream_) != kSuccess) return false;
        return true;
    }
    bool restore() {
        for (Region& r : regions_)
            if (Driver::get().cuMemcpyDtoDAsync_v2(r.base, r.before, r.bytes, stream_) != kSuccess) return false;
        return true;
    }
    // The first address at which memory is not what it was after the other order; 0: none.
    CUdeviceptr difference() {
        std::vector<char> now(kChunk), then(kChunk);
        for (Region& r : regions_)
            for (size_t at = 0; at < r.bytes; at += kChunk) {
                const size_t size = std::min(kChunk, r.bytes - at);
                Driver::get().cuMemcpyDtoHAsync_v2(now.data(), r.base + at, size, stream_);
                Driver::get().cuMemcpyDtoHAsync_v2(then.data(), r.reordered + at, size, stream_);
                if (Driver::get().cuStreamSynchronize(stream_) != kSuccess) return 0;
                if (memcmp(now.data(), then.data(), size) == 0) continue;
                size_t byte = 0;
                while (now[byte] == then[byte]) ++byte;
                return r.base + at + byte;
            }
        return 0;
    }

  private:
    std::vector<Region> regions_;
    CUstream stream_;
};

// An order that the dependencies allow: the latest launch first, or a random one.
std::vector<int> order_of(const std::vector<std::vector<int>>& after, bool random, std::mt19937_64& generator) {
    const int count = static_cast<int>(after.size());
    std::vector<int> missing(count), ready, out;
    std::vector<std::vector<int>> children(count);
    for (int i = 0; i < count; ++i) {
        missing[i] = static_cast<int>(after[i].size());
        for (int parent : after[i]) children[parent].push_back(i);
        if (missing[i] == 0) ready.push_back(i);
    }
    while (!ready.empty()) {
        auto at = random ? ready.begin() + static_cast<long>(generator() % ready.size())
                         : std::max_element(ready.begin(), ready.end());
        const int next = *at;
        ready.erase(at);
        out.push_back(next);
        for (int child : children[next])
            if (--missing[child] == 0) ready.push_back(child);
    }
    return out;
}

}  // namespace

CUresult check(const std::vector<Held>& segment, CUstream stream, const Options& options, Counts* counts) {
    auto plainly = [&]() -> CUresult {
        for (const Held& held : segment)
            if (CUresult failed = held.run(stream)) return failed;
        return kSuccess;
    };
    Memory memory(segment, stream);
    std::vector<Access> accesses;
    for (const Held& held : segment) accesses.push_back(held.access);
    const std::vector<std::vector<int>> after = dependencies(accesses);
    static std::mt19937_64 generator(options.seed);
    if (segment.size() < 2) return plainly();
    if (2 * memory.bytes() > options.memory_bytes || !memory.allocate() || !memory.save(&Region::before)) {
        counts->unchecked += segment.size();
        return plainly();
    }
    counts->checked += segment.size();
    for (int number = 0; number < options.orders; ++number) {
        const std::vector<int> order = order_of(after, number != 0, generator);
        for (int i : order)
            if (CUresult failed = segment[i].run(stream)) return failed;
        if (!memory.save(&Region::reordered) || !memory.restore()) return plainly();
        if (CUresult failed = plainly()) return failed;
        CUdeviceptr differs = memory.difference();
        if (differs != 0) {
            // Does stream order give the same bits twice?
            if (!memory.save(&Region::reordered) || !memory.restore()) return plainly();
            if (CUresult failed = plainly()) return failed;
            const bool repeatable = memory.difference() == 0;
            std::string named;
            if (repeatable) {
                for (const Held& held : segment)
                    for (const Range& range : held.access.writes)
                        if (range.low <= differs && differs < range.high) named = held.function->symbol;
                ++counts->differing;
            }
            ++counts->differences[!repeatable     ? "(stream order itself does not repeat)"
                                  : named.empty() ? "(nothing was to write there)"
                                                  : named];
            return kSuccess;
        }
        if (number + 1 < options.orders && !memory.restore()) return kSuccess;
    }
    return kSuccess;
}

}  // namespace tileprof::acs
