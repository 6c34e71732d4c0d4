// The write check: finds the memory that a launch changed, which is compared with its recorded writes. It copies all
// device memory before and after every launch and is meant for tests and for `tileprof doctor`.
#include "memory/write_check.h"

#include <string.h>

#include <algorithm>
#include <map>
#include <vector>

#include "log/events.h"
#include "log/log.h"
#include "recorder.h"
#include "driver/waiting.h"

namespace tileprof {

namespace {

constexpr uint64_t kMostBytes = 4ull << 30;
constexpr size_t kUnit = 64;  // bytes compared at once, and one by one if they differ

// The launch that a thread makes. Leaked, because threads end before the driver's last callback.
std::map<uint64_t, std::vector<char>>& before_of_thread() {
    thread_local auto* before = new std::map<uint64_t, std::vector<char>>;
    return *before;
}

bool copy(uint64_t address, std::vector<char>* out) {
    ContextGuard inside(recorder.memory.owner(address));
    return api.sanitizerMemcpyDeviceToHost(out->data(), reinterpret_cast<void*>(address), out->size(), nullptr) ==
           SANITIZER_SUCCESS;
}

}  // namespace

void remember_memory() {
    auto& before = before_of_thread();
    before.clear();
    uint64_t total = 0;
    const auto allocations = recorder.memory.allocations();  // other threads may allocate meanwhile
    for (const auto& [address, bytes] : allocations) {
        total += bytes;
        if (total > kMostBytes)
            return complain("the write check holds at most 4 GiB of device memory; the rest is not checked");
        std::vector<char> content(bytes);
        if (copy(address, &content)) before[address] = std::move(content);
    }
}

void report_changes(uint32_t launch) {
    auto& before = before_of_thread();
    events::Ranges ranges;
    for (const auto& [address, old] : before) {
        std::vector<char> now(old.size());
        if (!copy(address, &now)) continue;
        uint64_t start = 0, end = 0;
        auto put = [&] {
            if (end > start) ranges.emplace_back(start, end);
        };
        for (size_t unit = 0; unit < old.size(); unit += kUnit) {
            size_t n = std::min(kUnit, old.size() - unit);
            if (memcmp(old.data() + unit, now.data() + unit, n) == 0) continue;
            for (size_t at = unit; at < unit + n; ++at) {
                if (old[at] == now[at]) continue;
                if (address + at != end) {
                    put();
                    start = address + at;
                }
                end = address + at + 1;
            }
        }
        put();
    }
    before.clear();
    events::changed(launch, ranges);
}

}  // namespace tileprof
