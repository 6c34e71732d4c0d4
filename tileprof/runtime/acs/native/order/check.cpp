#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <random>

#include "order/segment.h"

namespace tileprof::acs {

namespace {

constexpr size_t kChunk = 4 << 20;  // bytes compared at a time
constexpr unsigned char kPoison = 0xa5;
constexpr int kProbes = 2;  // number of launches of an entry that are probed

// Device memory, and a copy of it on the device.
struct Region {
    CUdeviceptr base = 0;
    size_t bytes = 0;
    bool of_host = false;  // it may be read at any time
    CUdeviceptr before = 0, reordered = 0;
};

// Returns how many of the first bytes are equal.
size_t same_bytes(const char* one, const char* other, size_t bytes) {
    if (memcmp(one, other, bytes) == 0) return bytes;
    size_t same = 0;
    while (one[same] == other[same]) ++same;
    return same;
}

// Device memory that contains arguments of launches.
class Memory {
  public:
    Memory(const SegmentLaunch* segment, size_t count, CUstream stream) : stream_(stream) {
        std::map<CUdeviceptr, size_t> allocations;
        for (const SegmentLaunch* member = segment; member != segment + count; ++member)
            for (uint32_t slot : member->slots) {
                uint64_t address = 0, base = 0;
                size_t bytes = 0;
                memcpy(&address, reinterpret_cast<const char*>(member->words.data()) + slot, sizeof address);
                if (Driver::get().cuMemGetAddressRange_v2(&base, &bytes, address) == kSuccess)
                    allocations[base] = bytes;
            }
        for (const auto& [base, bytes] : allocations) {
            unsigned type = kDeviceMemory;
            const bool has_type = Driver::get().cuPointerGetAttribute(&type, kMemoryType, base) == kSuccess;
            regions_.push_back({base, bytes, has_type && type != kDeviceMemory, 0, 0});
        }
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
    bool restore(CUdeviceptr Region::* from = &Region::before) {
        for (Region& r : regions_)
            if (Driver::get().cuMemcpyDtoDAsync_v2(r.base, r.*from, r.bytes, stream_) != kSuccess) return false;
        return true;
    }
    // Fills all memory that is not in the ranges, except host memory.
    bool poison(const std::vector<Range>& preserved) {
        for (const Region& r : regions_)
            for (const Part& part : parts(r, preserved, {}))
                if (!part.read && !r.of_host &&
                    Driver::get().cuMemsetD8Async(part.low, kPoison, part.high - part.low, stream_) != kSuccess)
                    return false;
        return true;
    }
    // Returns the first address whose contents differ from those after the other order; 0: none.
    CUdeviceptr difference() {
        const size_t chunk = chunk_bytes();
        std::vector<char> now(chunk), other(chunk);
        for (Region& r : regions_)
            for (size_t at = 0; at < r.bytes; at += chunk) {
                const size_t size = std::min(chunk, r.bytes - at);
                Driver::get().cuMemcpyDtoHAsync_v2(now.data(), r.base + at, size, stream_);
                Driver::get().cuMemcpyDtoHAsync_v2(other.data(), r.reordered + at, size, stream_);
                if (Driver::get().cuStreamSynchronize(stream_) != kSuccess) return 0;
                const size_t same = same_bytes(now.data(), other.data(), size);
                if (same != size) return r.base + at + same;
            }
        return 0;
    }

    // A launch ran twice: on memory as it was (`before`), which gave `reordered`, and with poison outside of the
    // ranges that it reads. Returns the first address whose contents contradict these ranges; 0: none.
    CUdeviceptr outside_ranges(const std::vector<Range>& reads, const std::vector<Range>& writes) {
        const size_t chunk = chunk_bytes();
        std::vector<char> before(chunk), plain(chunk), now(chunk);
        const std::vector<char> poison(chunk, static_cast<char>(kPoison));
        for (const Region& r : regions_)
            for (const Part& part : parts(r, reads, writes))
                for (CUdeviceptr at = part.low; at < part.high; at += chunk) {
                    const size_t size = std::min<size_t>(chunk, part.high - at);
                    Driver::get().cuMemcpyDtoHAsync_v2(before.data(), r.before + (at - r.base), size, stream_);
                    Driver::get().cuMemcpyDtoHAsync_v2(plain.data(), r.reordered + (at - r.base), size, stream_);
                    Driver::get().cuMemcpyDtoHAsync_v2(now.data(), at, size, stream_);
                    if (Driver::get().cuStreamSynchronize(stream_) != kSuccess) return 0;
                    // address in the second run
                    const char* first = part.read || r.of_host ? before.data() : poison.data();
                    if (!part.written) {
                        const size_t same = std::min(same_bytes(plain.data(), before.data(), size),
                                                     same_bytes(now.data(), first, size));
                        if (same != size) return at + same;
                        continue;
                    }
                    if (memcmp(plain.data(), now.data(), size) == 0) continue;
                    for (size_t i = 0; i < size; ++i)  // written, or left alone by both
                        if (plain[i] != now[i] && (plain[i] != before[i] || now[i] != first[i])) return at + i;
                }
        return 0;
    }

  private:
    // Bytes that are compared at once: buffers larger than the largest region would only take time to clear.
    size_t chunk_bytes() const {
        size_t largest = 0;
        for (const Region& r : regions_) largest = std::max(largest, r.bytes);
        return std::min(kChunk, largest);
    }

    // Bytes of a region of which the ranges say the same.
    struct Part {
        CUdeviceptr low, high;
        bool read, written;
    };
    static std::vector<Part> parts(const Region& r, const std::vector<Range>& reads, const std::vector<Range>& writes) {
        std::vector<CUdeviceptr> edges{r.base, r.base + r.bytes};
        for (const std::vector<Range>* ranges : {&reads, &writes})
            for (const Range& range : *ranges)
                for (CUdeviceptr edge : {range.low, range.high})
                    if (edge > r.base && edge < r.base + r.bytes) edges.push_back(edge);
        std::sort(edges.begin(), edges.end());
        auto in = [](const std::vector<Range>& ranges, CUdeviceptr at) {
            return std::any_of(ranges.begin(), ranges.end(),
                               [&](const Range& x) { return x.low <= at && at < x.high; });
        };
        std::vector<Part> out;
        for (size_t i = 0; i + 1 < edges.size(); ++i)
            if (edges[i] < edges[i + 1])
                out.push_back({edges[i], edges[i + 1], in(reads, edges[i]), in(writes, edges[i])});
        return out;
    }

    std::vector<Region> regions_;
    CUstream stream_;
};

// Tests whether a launch touches what its entry says, by running it on other memory as well: steps with equal inputs
// leave equal bytes, so that a read that comes too early may see the right values. Afterwards memory is as after the
// launch. Returns false if it was not tried.
bool probe(const SegmentLaunch& member, CUstream stream, const Options& options, Counts* counts) {
    Memory memory(&member, 1, stream);
    auto run_again = [&](const std::vector<Range>& preserved) {
        return memory.restore() && memory.poison(preserved) && member.run(stream) == kSuccess;
    };
    if (2 * memory.bytes() > options.memory_bytes || !memory.allocate() || !memory.save(&Region::before)) return false;
    if (member.run(stream) != kSuccess || !memory.save(&Region::reordered)) return true;
    if (!run_again(member.access.reads)) return true;
    ++counts->probed;
    if (Driver::get().cuStreamSynchronize(stream) != kSuccess) {
        fprintf(stderr, "tileprof: %s fails where memory that it does not read, by the table, holds something else\n",
                member.function->symbol.c_str());
        ++counts->differing;
        ++counts->differences[member.function->symbol];
        return true;
    }
    if (memory.outside_ranges(member.access.reads, member.access.writes) != 0) {
        const std::vector<Range> all{{0, ~uint64_t{0}}};  // repeat the launch: are its bits the same?
        const bool repeats = run_again(all) && memory.outside_ranges(all, all) == 0;
        counts->differing += repeats;
        ++counts
              ->differences[repeats ? member.function->symbol : std::string("(a launch that does not repeat itself)")];
    }
    memory.restore(&Region::reordered);
    return true;
}

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

CUresult check(const std::vector<SegmentLaunch>& segment, CUstream stream, const Options& options, Counts* counts) {
    auto run_in_order = [&]() -> CUresult {
        for (const SegmentLaunch& member : segment)
            if (CUresult failure = member.run(stream)) return failure;
        return kSuccess;
    };
    Memory memory(segment.data(), segment.size(), stream);
    std::vector<Access> accesses;
    for (const SegmentLaunch& member : segment) accesses.push_back(member.access);
    const std::vector<std::vector<int>> after = dependencies(accesses);
    static std::mt19937_64 generator(options.seed);
    static std::map<uint64_t, int> probes;
    auto run_and_probe = [&]() -> CUresult {  // in stream order, too
        for (const SegmentLaunch& member : segment)
            if (probes[member.id] >= kProbes || !probe(member, stream, options, counts)) {
                if (CUresult failure = member.run(stream)) return failure;
            } else {
                ++probes[member.id];
            }
        return kSuccess;
    };
    if (segment.size() < 2) return run_and_probe();
    if (2 * memory.bytes() > options.memory_bytes || !memory.allocate() || !memory.save(&Region::before)) {
        counts->unchecked += segment.size();
        return run_in_order();
    }
    counts->checked += segment.size();
    if (CUresult failure = run_and_probe()) return failure;
    if (!memory.restore()) return kSuccess;
    for (int number = 0; number < options.orders; ++number) {
        const std::vector<int> order = order_of(after, number != 0, generator);
        for (int i : order)
            if (CUresult failure = segment[i].run(stream)) return failure;
        if (!memory.save(&Region::reordered) || !memory.restore()) return run_in_order();
        if (CUresult failure = run_in_order()) return failure;
        CUdeviceptr differs = memory.difference();
        if (differs != 0) {
            // repeat stream order: are its bits the same?
            if (!memory.save(&Region::reordered) || !memory.restore()) return run_in_order();
            if (CUresult failure = run_in_order()) return failure;
            const bool repeatable = memory.difference() == 0;
            std::string symbol;
            if (repeatable) {
                for (const SegmentLaunch& member : segment)
                    for (const Range& range : member.access.writes)
                        if (range.low <= differs && differs < range.high) symbol = member.function->symbol;
                ++counts->differing;
            }
            ++counts->differences[!repeatable      ? "(stream order itself does not repeat)"
                                  : symbol.empty() ? "(nothing was to write there)"
                                                   : symbol];
            return kSuccess;
        }
        if (number + 1 < options.orders && !memory.restore()) return kSuccess;
    }
    return kSuccess;
}

}  // namespace tileprof::acs
