#include "records/arena.h"

#include <string.h>

#include <algorithm>

#include "log/events.h"
#include "records/facts.h"
#include "log/log.h"

namespace tileprof {

namespace {

constexpr uint32_t kSlots = 1u << 23;  // slots of the index; 32 MiB, which fit into the L2 of a large GPU
constexpr size_t kStagingBytes = 32u << 20;
constexpr size_t kCountBytes = sizeof(uint64_t) * kCounterWords * (1 + kCounters);
constexpr uint64_t kBriefNs = 1000000000;  // the limit where running kernels may well continue

// Launch ids are unique in the process: each refill of any context takes as many as it has headers. 0 is not used, so
// that a zeroed entry matches no launch.
uint32_t next_first_launch = 1;

// Number of bits of the numbers below `count`.
uint32_t bits_of(uint64_t count) {
    uint32_t bits = 0;
    while (bits < 32 && (1ull << bits) < count) ++bits;
    return bits;
}

}  // namespace

Arena::Arena(CUcontext context, const Options& options)
    : context_(context),
      granule_shift_(options.granule_shift),
      arena_bytes_(options.arena_bytes),
      limit_ns_(options.wait_ns),
      filters_(options.filters),
      waits_(context, options.wait_ns) {}

void Arena::end() {
    ready_ = false;
    broken_ = true;
    waits_.end();
    ClosedGate closed_gate(0);
    if (closed_gate) std::vector<Header>().swap(host_headers_);  // no thread is copying it now
}

bool Arena::allocate() {
    while (allocating_) pause_without_holds();
    if (tried_) return ready_;
    tried_ = allocating_ = true;
    bool ok = allocate_all();
    if (ok) refill();
    if (!ok)
        complain(
            "the GPU has no room for the recorder's %llu MiB: nothing is known of what blocks touch in this context. "
            "Take less with --arena, or leave more free",
            static_cast<unsigned long long>(arena_bytes_ >> 20));
    ready_ = ok;
    allocating_ = false;
    return ready_;
}

bool Arena::allocate_all() {
    ContextGuard inside(context_);
    auto device = [&](auto** out, size_t bytes, const char* what) {
        void* p = nullptr;
        if (!check(api.sanitizerAlloc(context_, &p, bytes), what)) return false;
        *out = static_cast<std::remove_reference_t<decltype(*out)>>(p);
        return check(api.sanitizerMemset(p, 0, bytes, nullptr), what);
    };
    capacity_ = arena_bytes_ / sizeof(Entry);
    return device(&headers_, sizeof(Header) * kAllHeaders, "memory for launch headers") &&
           device(&entries_, capacity_ * sizeof(Entry), "memory for records (TILEPROF_ARENA bytes)") &&
           device(&table_, sizeof(uint32_t) * kSlots, "memory for the index") &&
           device(&facts_, sizeof(Fact) * kFactSlots, "memory for facts") &&
           device(&count_, kCountBytes, "memory for the counters") &&
           device(&spill_, sizeof(Spill), "memory for spilled pages") &&
           check(api.sanitizerAllocHost(context_, &staging_, kStagingBytes), "pinned memory") &&
           filters_.allocate(context_) && waits_.allocate();
}

void Arena::refill() {
    ContextGuard inside(context_);
    first_launch_ = next_first_launch;
    next_first_launch += kAllHeaders;
    host_headers_.assign(kAllHeaders, Header{});
    for (uint32_t i = 0; i < kAllHeaders; ++i) {
        Header& h = host_headers_[i];
        h.arena = entries_;
        h.table = table_;
        h.facts = facts_;
        h.count = count_;
        h.spill = spill_;
        h.capacity = capacity_;
        h.table_mask = kSlots - 1;
        h.tag_shift = bits_of(capacity_);
        h.granule_shift = static_cast<uint8_t>(granule_shift_);
        h.launch = i < kOff ? first_launch_ + i : kKeepAll;
        h.in_graph = i >= kHeaders && i < kOff;
        h.end_bit = kKeepAll;
    }
    check(api.sanitizerMemcpyHostToDeviceAsync(headers_, host_headers_.data(), sizeof(Header) * kAllHeaders, nullptr),
          "copying launch headers");
    check(api.sanitizerStreamSynchronize(nullptr), "copying launch headers");
    used_headers_ = used_in_graphs_ = 0;
    expected_ = 0;
    complained_ = false;
}

Header* Arena::take(uint32_t* used, uint32_t first, uint32_t most, uint32_t* launch) {
    if (!allocate()) return nullptr;
    if (*used == most) {
        if (!complained_)
            complain("more than %u launches without a pause to copy their records; the rest of them is not recorded",
                     most);
        complained_ = true;
        return nullptr;
    }
    *launch = first_launch_ + first + *used;
    return headers_ + first + (*used)++;
}

void Arena::give_filters(Header* own, uint64_t blocks, bool reads_anything, bool writes_anything,
                         Sanitizer_StreamHandle stream) {
    // which must stay until the launch has ended, because copies may be late
    Header* h = &host_headers_[own - headers_];
    if (filters_.give(h, blocks, reads_anything, writes_anything, stream))
        check(api.sanitizerMemcpyHostToDeviceAsync(own, h, sizeof *h, stream), "copying a header with filters");
}

void Arena::keep_exits(Header* own, Sanitizer_StreamHandle stream) {
    Header* h = &host_headers_[own - headers_];  // as above
    h->keeps_exits = 1;
    check(api.sanitizerMemcpyHostToDeviceAsync(own, h, sizeof *h, stream), "copying a header that keeps exits");
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
    if (!ready_) return 0;
    ContextGuard inside(context_);
    unsigned long long n[2] = {0, 0};
    if (!check(api.sanitizerMemcpyDeviceToHost(n, count_, sizeof n, nullptr), "reading the record count"))
        broken_ = true;
    beyond_ = n[1];
    return n[0];
}

// The number of used entries among those that were taken; the unused rest of pieces is not counted.
uint64_t Arena::used() {
    uint64_t reserved = count();
    if (!ready_ || broken_) return reserved;
    ContextGuard inside(context_);
    std::vector<uint64_t> words(kCountBytes / sizeof(uint64_t));
    if (!check(api.sanitizerMemcpyDeviceToHost(words.data(), count_, kCountBytes, nullptr), "reading the counters"))
        return reserved;
    uint64_t left = 0;
    for (size_t at = kCounterWords; at < words.size(); at += kCounterWords)
        left += static_cast<uint32_t>(std::max(0, -static_cast<int32_t>(words[at])));
    return reserved - std::min(reserved, left);
}

bool Arena::is_blocked() {
    bool gave_up = waits_.gave_up(), blocked = waits_.is_blocked();
    if (gave_up && !blocked) expected_ = std::max(expected_, used());
    return blocked;
}

Places::Place Arena::launched(uint64_t kernel, Sanitizer_StreamHandle stream, const std::string& name, bool spins) {
    if (!ready_) return Places::kNone;
    waits_.note(stream);
    auto expectation = entries_of_.find(kernel);
    if (expectation != entries_of_.end()) expected_ += expectation->second;
    if (spins) waits_.give_up(stream, name);
    return spins || expectation != entries_of_.end() || is_blocked() ? Places::kNone : waits_.put(stream);
}

bool Arena::learn(Places::Place place, uint64_t kernel, Sanitizer_StreamHandle stream, const std::string& name) {
    if (place == Places::kNone) return true;
    uint32_t first = first_launch_;
    if (!waits_.ends(place)) {
        waits_.give_up(stream, name);
        return false;
    }
    if (first != first_launch_) return true;  // another thread drained
    uint64_t now = used();
    entries_of_[kernel] = now - std::min(now, expected_);
    expected_ = std::max(now, expected_);
    return true;
}

bool Arena::graph_launched(Sanitizer_StreamHandle stream, const std::string& name, bool spins) {
    if (!ready_) return true;
    ContextGuard inside(context_);
    waits_.note(stream);
    if (spins || (!is_blocked() && !waits_.rest(stream))) {
        waits_.give_up(stream, name);
        return false;
    }
    if (is_blocked()) return false;
    expected_ = std::max(used(), expected_);
    return true;
}

void Arena::make_room() {
    if (expected_ <= capacity_ / 2 && used_headers_ <= kHeaders / 2 && used_in_graphs_ <= kGraphHeaders / 2 &&
        !filters_.half_full())
        return;
    if (is_blocked()) return;  // accesses without room are recorded as a superset
    if (waits_.settles()) return drain(kBriefNs);
    std::vector<Sanitizer_StreamHandle> streams = waits_.streams();  // other threads may add to them meanwhile
    complain("kernels had not ended after %g s; records are copied when they have",
             static_cast<double>(limit_ns_) * 1e-9);
    for (Sanitizer_StreamHandle stream : streams) waits_.give_up(stream, "");
}

void Arena::end_stream(Sanitizer_StreamHandle stream) {
    ClosedGate closed_gate(limit_ns_);
    if (!closed_gate) return;
    drain(kBriefNs);
    waits_.end_stream(stream);
}

std::vector<Entry> Arena::entries_now() {
    ContextGuard inside(context_);
    uint64_t n = std::min<uint64_t>(count(), capacity_);
    std::vector<Entry> out(n);
    if (n > 0)
        check(api.sanitizerMemcpyDeviceToHost(out.data(), entries_, n * sizeof(Entry), nullptr), "copying records");
    return out;
}

void Arena::report_spills() {
    std::vector<Header> after(kOff);
    check(api.sanitizerMemcpyDeviceToHost(after.data(), headers_, sizeof(Header) * kOff, nullptr), "reading headers");
    bool any = false;
    for (const Header& h : after) {
        if (h.spilled == 0 && h.beyond == 0) continue;
        any = true;
        events::spill(h.launch, h.spilled, h.beyond);
    }
    if (!any) return;
    static Spill host;
    check(api.sanitizerMemcpyDeviceToHost(&host, spill_, sizeof host, nullptr), "reading spilled pages");
    for (uint32_t page = 0; page < kPages; ++page) {
        bool read = host.read[page / 32] >> (page & 31) & 1, written = host.written[page / 32] >> (page & 31) & 1;
        if (read || written) events::spilled_page(page, read, written, first_launch_ + kAllHeaders);
    }
    check(api.sanitizerMemset(spill_, 0, sizeof(Spill), nullptr), "clearing spilled pages");
}

// How many nodes of the graphs that share a header have ended: a rest in `exited` belongs to a node that was not
// counted.
void Arena::report_graphs() {
    std::vector<Header> after(used_in_graphs_);
    check(api.sanitizerMemcpyDeviceToHost(after.data(), headers_ + kHeaders, sizeof(Header) * after.size(), nullptr),
          "reading headers");
    for (const Header& h : after) events::nodes(h.launch, h.generation, h.exited);
}

void Arena::drain(uint64_t patience_ns) {
    if (!ready_ || broken_ || !pending()) return;
    ClosedGate closed_gate(patience_ns);
    if (!closed_gate) return;
    ContextGuard inside(context_);
    bool behind = is_blocked();
    waits_.was_refused();
    auto unfinished = open_;  // their threads may have done so when the records are copied
    if (!waits_.all_end(behind ? std::min(patience_ns, kBriefNs) : patience_ns) || is_blocked()) return;
    uint64_t appended_count = count(), n = std::min<uint64_t>(appended_count, capacity_);
    if (broken_) return;  // the remaining entries stay pending: the process has not ended cleanly
    unfinished.insert(open_.begin(), open_.end());
    for (const auto& [thread, launch] : unfinished) events::unfinished(launch);
    bool refused = waits_.was_refused();  // some of them may run on
    if (refused)
        for (uint32_t i = 0; i < used_headers_; ++i) events::unfinished(first_launch_ + i);
    for (uint64_t done = 0; done < n;) {
        uint64_t some = std::min<uint64_t>(n - done, kStagingBytes / sizeof(Entry));
        if (!check(api.sanitizerMemcpyDeviceToHost(staging_, entries_ + done, some * sizeof(Entry), nullptr),
                   "copying records")) {
            broken_ = true;
            return;
        }
        log_.entries(staging_, some * sizeof(Entry));
        done += some;
    }
    if (appended_count > n || beyond_ > 0) report_spills();
    if (used_in_graphs_ > 0) report_graphs();
    filters_.drain();
    if (n > 0) check(api.sanitizerMemset(entries_, 0, n * sizeof(Entry), nullptr), "clearing records");
    // Kernels that still run may set bits in entries that they know. These entries are not used again before the next
    // drain, and neither is the rest of pieces.
    auto* beyond = reinterpret_cast<uint64_t*>(count_) + 1;
    check(refused ? api.sanitizerMemset(beyond, 0, sizeof *beyond, nullptr)
                  : api.sanitizerMemset(count_, 0, kCountBytes, nullptr),
          "clearing the record count");
    events::drain(n, appended_count - n);
    refill();
    if (refused) expected_ = n;
    log_.flush();
}

}  // namespace tileprof
