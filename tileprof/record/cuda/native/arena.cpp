#include "arena.h"

#include <string.h>

#include <algorithm>

#include "log.h"

namespace tileprof {

namespace {

constexpr uint32_t kSlots = 1u << 23;     // of the index; 32 MiB, which stays in the L2 of a large GPU
constexpr size_t kStagingBytes = 32u << 20;

// Launch ids are unique in the process: each refill of any context takes as many as it has headers. 0 is never one,
// so that a zeroed entry matches no launch.
uint32_t next_first_launch = 1;

}  // namespace

Arena::Arena(CUcontext context, uint32_t granule_shift, uint64_t arena_bytes)
    : context_(context), granule_shift_(granule_shift), arena_bytes_(arena_bytes) {}

bool Arena::allocate() {
    if (tried_) return ready_;
    tried_ = true;
    auto device = [&](auto** out, size_t bytes, const char* what) {
        void* p = nullptr;
        if (!check(api.sanitizerAlloc(context_, &p, bytes), what)) return false;
        *out = static_cast<std::remove_reference_t<decltype(*out)>>(p);
        return check(api.sanitizerMemset(p, 0, bytes, nullptr), what);
    };
    capacity_ = arena_bytes_ / sizeof(Entry);
    ready_ = device(&headers_, sizeof(Header) * kAllHeaders, "memory for launch headers") &&
             device(&entries_, capacity_ * sizeof(Entry), "memory for records (TILEPROF_ARENA bytes)") &&
             device(&table_, sizeof(uint32_t) * kSlots, "memory for the index") &&
             device(&count_, 2 * sizeof *count_, "memory for the counters") &&
             device(&spill_, sizeof(Spill), "memory for spilled pages") &&
             check(api.sanitizerAllocHost(context_, &staging_, kStagingBytes), "pinned memory");
    if (ready_) refill();
    return ready_;
}

void Arena::refill() {
    first_launch_ = next_first_launch;
    next_first_launch += kAllHeaders;
    host_headers_.assign(kAllHeaders, Header{});
    for (uint32_t i = 0; i < kAllHeaders; ++i) {
        Header& h = host_headers_[i];
        h.arena = entries_;
        h.table = table_;
        h.count = count_;
        h.spill = spill_;
        h.capacity = capacity_;
        h.table_mask = kSlots - 1;
        h.granule_shift = granule_shift_;
        h.launch = i < kOff ? first_launch_ + i : kKeepAll;
        h.in_graph = i >= kHeaders && i < kOff;
        h.end_bit = kKeepAll;
    }
    check(api.sanitizerMemcpyHostToDeviceAsync(headers_, host_headers_.data(), sizeof(Header) * kAllHeaders, nullptr),
          "copying launch headers");
    check(api.sanitizerStreamSynchronize(nullptr), "copying launch headers");
    used_headers_ = used_in_graphs_ = 0;
    expected_ = 0;
}

Header* Arena::take(uint32_t* used, uint32_t first, uint32_t most, uint32_t* launch) {
    if (!allocate()) return nullptr;
    if (*used == most) {
        complain("more than %u launches without a pause to copy their records; the rest of them is not recorded", most);
        return nullptr;
    }
    *launch = first_launch_ + first + *used;
    return headers_ + first + (*used)++;
}

Header* Arena::off() { return allocate() ? headers_ + kOff : nullptr; }

Header* Arena::ending(uint32_t bit, uint32_t value, Sanitizer_StreamHandle stream) {
    Header h = host_headers_[kEnding];
    h.end_bit = bit;
    h.end_value = value;
    check(api.sanitizerMemcpyHostToDeviceAsync(headers_ + kEnding, &h, sizeof h, stream), "copying a replay header");
    return headers_ + kEnding;
}

uint64_t Arena::count() {
    unsigned long long n[2] = {0, 0};
    if (!check(api.sanitizerMemcpyDeviceToHost(n, count_, sizeof n, nullptr), "reading the record count")) broken_ = true;
    beyond_ = n[1];
    return n[0];
}

void Arena::launched(uint64_t kernel, Sanitizer_StreamHandle stream) {
    if (!ready_) return;
    streams_.insert(stream);
    auto known = entries_of_.find(kernel);
    if (known != entries_of_.end()) {
        expected_ += known->second;
    } else {
        check(api.sanitizerStreamSynchronize(stream), "waiting for a launch");
        uint64_t now = count();
        entries_of_[kernel] = now - std::min(now, expected_);
        expected_ = std::max(now, expected_);
    }
}

void Arena::graph_launched(Sanitizer_StreamHandle stream) {
    if (!ready_) return;
    streams_.insert(stream);
    check(api.sanitizerStreamSynchronize(stream), "waiting for a graph");
    expected_ = std::max(count(), expected_);
    make_room();
}

void Arena::make_room() {
    if (expected_ > capacity_ / 2 || used_headers_ > kHeaders / 2 || used_in_graphs_ > kGraphHeaders / 2) drain();
}

std::vector<Entry> Arena::peek() {
    uint64_t n = std::min<uint64_t>(count(), capacity_);
    std::vector<Entry> out(n);
    if (n > 0) check(api.sanitizerMemcpyDeviceToHost(out.data(), entries_, n * sizeof(Entry), nullptr), "copying records");
    return out;
}

void Arena::report_spills() {
    std::vector<Header> after(kOff);
    check(api.sanitizerMemcpyDeviceToHost(after.data(), headers_, sizeof(Header) * kOff, nullptr), "reading headers");
    bool any = false;
    for (const Header& h : after) {
        if (h.spilled == 0 && h.beyond == 0) continue;
        any = true;
        log_.event("\"e\":\"spill\",\"launch\":%u,\"accesses\":%u,\"beyond\":%u", h.launch, h.spilled, h.beyond);
    }
    if (!any) return;
    static Spill host;
    check(api.sanitizerMemcpyDeviceToHost(&host, spill_, sizeof host, nullptr), "reading spilled pages");
    for (uint32_t page = 0; page < kPages; ++page) {
        bool read = host.read[page / 32] >> (page & 31) & 1, written = host.written[page / 32] >> (page & 31) & 1;
        if (read || written)
            log_.event("\"e\":\"spilled_page\",\"page\":%u,\"read\":%d,\"written\":%d,\"until\":%u", page, read, written,
                       first_launch_ + kAllHeaders);
    }
    check(api.sanitizerMemset(spill_, 0, sizeof(Spill), nullptr), "clearing spilled pages");
}

// How far the nodes of graphs got that share a header: what is left of `exited` belongs to a node that was not counted.
void Arena::report_graphs() {
    std::vector<Header> after(used_in_graphs_);
    check(api.sanitizerMemcpyDeviceToHost(after.data(), headers_ + kHeaders, sizeof(Header) * after.size(), nullptr),
          "reading headers");
    for (const Header& h : after)
        log_.event("\"e\":\"nodes\",\"launch\":%u,\"ended\":%u,\"threads\":%llu", h.launch, h.generation, h.exited);
}

void Arena::drain() {
    if (!ready_ || broken_ || !pending()) return;
    for (Sanitizer_StreamHandle stream : streams_) check(api.sanitizerStreamSynchronize(stream), "waiting for a stream");
    uint64_t appended = count(), n = std::min<uint64_t>(appended, capacity_);
    if (broken_) return;  // what is there stays pending: the process will not have ended whole
    for (const auto& [thread, launch] : open_) log_.event("\"e\":\"unfinished\",\"launch\":%u", launch);
    for (uint64_t done = 0; done < n;) {
        uint64_t some = std::min<uint64_t>(n - done, kStagingBytes / sizeof(Entry));
        if (!check(api.sanitizerMemcpyDeviceToHost(staging_, entries_ + done, some * sizeof(Entry), nullptr), "copying records")) {
            broken_ = true;
            return;
        }
        log_.entries(staging_, some * sizeof(Entry));
        done += some;
    }
    if (appended > n || beyond_ > 0) report_spills();
    if (used_in_graphs_ > 0) report_graphs();
    if (n > 0) check(api.sanitizerMemset(entries_, 0, n * sizeof(Entry), nullptr), "clearing records");
    check(api.sanitizerMemset(count_, 0, 2 * sizeof *count_, nullptr), "clearing the record count");
    log_.event("\"e\":\"drain\",\"entries\":%llu,\"lost\":%llu", static_cast<unsigned long long>(n),
               static_cast<unsigned long long>(appended - n));
    refill();
    log_.flush();
}

}  // namespace tileprof
