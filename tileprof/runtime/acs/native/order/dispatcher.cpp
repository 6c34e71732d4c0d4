#include "order/dispatcher.h"

#include <stdio.h>

#include <string>
#include <utility>

namespace tileprof::acs {

namespace {

constexpr size_t kMostGroups = 8;    // maximum number of the program's streams whose launches are spread
constexpr uint64_t kForeign = 512;  // if the table knows none of this many launches, it belongs to another program

constexpr std::chrono::microseconds kSlow(8);  // from launch to launch; the driver takes 3 to 4 us to issue one

uint64_t hash_of(const char* text) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (; *text != 0; ++text) hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001b3ull;
    return hash;
}

}  // namespace

Dispatcher::Dispatcher(const Options& options, const Table& table, Counts* counts)
    : options_(options),
      table_(table),
      counts_(counts),
      graphs_(options, counts),
      spread_decision_(options.mode == Mode::kStreams || options.mode == Mode::kGraph
                           ? std::make_unique<SpreadDecision>(options.rest)
                           : nullptr) {}

// Returns the group of a stream, which becomes the active one; nullptr if its launches stay in place.
Group* Dispatcher::group_of(CUstream stream) {
    if (stream == per_thread_stream()) return nullptr;
    CUcontext context = nullptr;
    if (Driver::get().cuCtxGetCurrent(&context) != kSuccess) return nullptr;
    if (active_ != nullptr && active_->stream() == stream && active_->context() == context) return active_;
    Group* match = nullptr;
    for (const auto& group : groups_)
        if (group->stream() == stream && group->context() == context) match = group.get();
    if (match == nullptr && groups_.size() < kMostGroups) {
        groups_.push_back(std::make_unique<Group>(context, stream, options_, counts_));
        match = groups_.back().get();
    }
    return match != nullptr && match->usable() ? match : nullptr;
}

// Orders everything that was placed before later work of the streams; `group`: the group that may be ordered after
// it.
CUresult Dispatcher::barrier(Group* group, uint64_t id) {
    CUresult failure = flush();
    for (const auto& other : groups_)
        if (dirty_ || other.get() == group)
            if (CUresult result = other->join(id)) failure = result;
    dirty_ = false;
    return failure;
}

CUresult Dispatcher::flush() {
    for (const auto& group : groups_)
        if (group->worker_pool() != nullptr)
            if (CUresult failure = group->worker_pool()->join()) return failure;
    if (segment_.empty()) return kSuccess;
    std::vector<SegmentLaunch> segment = std::move(segment_);
    segment_.clear();
    CUresult result = kSuccess;
    if (options_.mode == Mode::kCheck) {
        if ((result = active_->join(1))) return result;
        // Copies of other streams into the same allocations must have ended, because the check restores whole
        // allocations.
        if (capturing_ == 0 && (result = Driver::get().cuCtxSynchronize())) return result;
        return check(segment, active_->stream(), options_, counts_);
    }
    ++counts_->segments;
    if ((result = active_->join(1))) return result;
    if (graphs_.launch(segment, active_->stream(), &result)) {
        CUresult join_result = active_->join(2);
        return result != kSuccess ? result : join_result;
    }
    for (SegmentLaunch& member : segment) {
        member.launch.parameters = member.pointers.data();
        member.launch.extra = nullptr;
        if ((result = active_->place(work_of(member.launch), std::move(member.access), member.id, false)))
            return result;
    }
    dirty_ = true;
    return kSuccess;
}

// Called before all work for a stream: returns its group, nullptr if the work stays in place, and whether the stream
// captures.
CUresult Dispatcher::enter(CUstream stream, Group** group, bool* capturing) {
    if (active_ != nullptr && stream != active_->stream())
        if (CUresult failure = barrier(nullptr, 3)) return failure;
    *group = group_of(stream);
    if (capturing_ > 0) {
        int status = kCaptureNone;
        *capturing = Driver::get().cuStreamIsCapturing(stream, &status) == kSuccess && status != kCaptureNone;
    }
    if (*group != active_ && *group != nullptr) {
        // The stream may wait for other streams, as the default stream does; its lanes do so by waiting for it.
        if (CUresult failure = barrier(*group, 4)) return failure;
        active_ = *group;
    }
    return kSuccess;
}

// Whether work for a stream stays there because the host bounds the program. A rest begins and ends with an order of
// everything before everything after, because resting work is in no window. While a graph is captured nothing rests
// and no stream is queried, which would end the capture; its beginning and end also order everything.
CUresult Dispatcher::decide_rest(CUstream stream, bool* rests) {
    *rests = false;
    if (spread_decision_ == nullptr || capturing_ > 0) return kSuccess;
    const bool rested = spread_decision_->resting();
    if (spread_decision_->due()) {
        const bool spread = active_ != nullptr && stream == active_->stream();
        const bool idle = rested ? Driver::get().cuStreamQuery(stream) == kSuccess : spread && active_->idle();
        spread_decision_->sampled(is_slow() && idle);
    }
    *rests = spread_decision_->resting();
    if (*rests == rested) return kSuccess;
    dirty_ = true;  // so that all groups join
    return barrier(nullptr, 5);
}

// Whether the host took longer per launch since the last look than the driver takes to issue one. With streams this
// need not be checked, because a launch begins at once. With segments, the GPU may be idle while a segment waits for
// more launches of a fast host.
bool Dispatcher::is_slow() {
    if (options_.mode != Mode::kGraph) return true;
    const auto now = std::chrono::steady_clock::now();
    const auto spent = now - std::exchange(looked_at_, now);
    return spent > kSlow * spread_decision_->every();
}

CUresult Dispatcher::give(WorkerPool* pool, WorkerPool::Make make, Access&& access) {
    ++counts_->placed;
    ++counts_->spread;
    return pool->add(std::move(make), std::move(access));
}

CUresult Dispatcher::move(const Move& move) {
    const Work work = work_of(move);
    bool rests = false;
    if (CUresult failure = decide_rest(move.stream, &rests)) return failure;
    if (rests) return work.make(work.what, move.stream);
    Group* group = nullptr;
    bool capturing = false;
    if (CUresult failure = enter(move.stream, &group, &capturing)) return failure;
    const uint64_t id = ~static_cast<uint64_t>(move.kind);
    if (group == nullptr || (options_.mode != Mode::kStreams && !capturing)) {
        ++counts_->barriers;
        ++counts_->calls[move.kind == Move::kCopy ? "cuMemcpyDtoDAsync" : "cuMemsetAsync"];
        if (CUresult failure = barrier(group, id)) return failure;
        return work.make(work.what, move.stream);
    }
    ++counts_->moves;
    dirty_ = true;
    Access access;
    move.access(&access);
    if (group->worker_pool() != nullptr && !capturing) {
        auto make = [move](CUstream stream) { return work_of(move).make(&move, stream); };
        return give(group->worker_pool(), make, std::move(access));
    }
    return group->place(work, std::move(access), id, capturing);
}

CUresult Dispatcher::launch(const Launch& launch, const Function& function) {
    ++counts_->launches;
    bool rests = false;
    if (CUresult failure = decide_rest(launch.stream, &rests)) return failure;
    if (rests) {
        ++counts_->rested;
        return issue_as_it_is(launch);
    }
    Group* group = nullptr;
    bool capturing = false;
    if (CUresult failure = enter(launch.stream, &group, &capturing)) return failure;
    const Entry* entry = nullptr;
    const char* reason = group == nullptr  ? "its stream or context"
                         : !function.known ? "the driver does not name it"
                                           : immovable(launch);
    if (reason == nullptr && function.entries != nullptr && parameters_.read(function, launch.parameters, launch.extra))
        entry = function.entries->find(launch.shape, parameters_.words.data(), parameters_.words.size());
    if (reason == nullptr && entry == nullptr)
        reason =
            function.entries == nullptr ? "another kernel than any recorded" : "other parameters than any recorded";
    if (entry == nullptr) {
        ++counts_->unknown;
        if (counts_->unknown_at.size() < Counts::kMostListed) counts_->unknown_at.push_back(counts_->launches - 1);
        ++counts_->reasons[std::string(reason) + ": " + (function.known ? function.symbol : std::string("?"))];
        report_foreign_table();
        if (CUresult failure = barrier(group, hash_of(reason))) return failure;
        return issue(launch, launch.stream, launch.parameters, launch.extra);
    }
    counts_->captured += capturing;
    dirty_ = true;
    Access access;
    entry->access(parameters_.words.data(), &access);
    if (group->worker_pool() != nullptr && !capturing) {
        auto copied_launch = std::make_shared<SegmentLaunch>(launch, function, *entry, parameters_, Access{});
        auto make = [copied_launch](CUstream stream) { return copied_launch->run(stream); };
        return give(group->worker_pool(), make, std::move(access));
    }
    if (capturing || options_.mode == Mode::kStreams)
        return group->place(work_of(launch), std::move(access), entry->id, capturing);
    segment_.emplace_back(launch, function, *entry, parameters_, std::move(access));
    const bool full = segment_.size() >= static_cast<size_t>(options_.segment);
    return full || (options_.mode == Mode::kGraph && ends_segment(segment_)) ? flush() : kSuccess;
}

CUresult Dispatcher::order(const char* symbol, Meaning meaning) {
    ++counts_->barriers;
    ++counts_->calls[symbol];
    CUresult failure = flush();
    for (const auto& group : groups_)
        if (CUresult result = group->join(hash_of(symbol)); failure == kSuccess) failure = result;
    dirty_ = false;
    if (meaning == Meaning::kCaptureBegins) {
        ++capturing_;
        counts_->capture_at = counts_->launches;
    }
    if (meaning == Meaning::kCaptureEnds && capturing_ > 0) --capturing_;
    return failure;
}

void Dispatcher::report_foreign_table() {
    if (foreign_reported_ || counts_->launches < kForeign || counts_->unknown != counts_->launches) return;
    foreign_reported_ = true;
    fprintf(stderr,
            "tileprof: none of the first %llu launches is in %s, which was recorded from: %s. "
            "The program runs in stream order\n",
            static_cast<unsigned long long>(counts_->launches), options_.table.c_str(), table_.program().c_str());
}

}  // namespace tileprof::acs
