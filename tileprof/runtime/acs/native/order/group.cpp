#include "order/group.h"

namespace tileprof::acs {

Group::Group(CUcontext context, CUstream stream, const Options& options, Counts* counts)
    : context_(context),
      streams_{stream},
      window_(static_cast<size_t>(options.window), options.lanes),
      events_(static_cast<size_t>(options.lanes)),
      most_events_(static_cast<size_t>(options.window) + 8),
      random_delay_(options.delay_us),
      counts_(counts) {
    if (options.workers > 0) worker_pool_ = std::make_unique<WorkerPool>(context, stream, options);
    Relaxed relaxed;
    for (int lane = 1; lane < options.lanes; ++lane) {
        CUstream stream_of_lane = nullptr;
        usable_ = usable_ && Driver::get().cuStreamCreate(&stream_of_lane, kNonBlocking) == kSuccess;
        streams_.push_back(stream_of_lane);
    }
}

uint64_t Group::key(uint64_t id) {
    const uint64_t out = mix(mix(mix(1, last_but_one_), last_id_), id) | 1;
    last_but_one_ = last_id_;
    last_id_ = id;
    return out;
}

// Records an event behind the last launch of a lane; returns nullptr and sets `failure_` if the driver refuses.
const Group::RecordedEvent* Group::record(int lane) {
    std::deque<RecordedEvent>& ring = events_[lane];
    CUevent event = nullptr;
    if (ring.size() >= most_events_) {
        event = ring.front().event;
        ring.pop_front();
    } else {
        Relaxed relaxed;
        if ((failure_ = Driver::get().cuEventCreate(&event, kDisableTiming)) != kSuccess) return nullptr;
    }
    ring.push_back({window_.tail(lane), window_.clock(lane), event});
    ++counts_->records;
    if ((failure_ = Driver::get().cuEventRecord(event, streams_[lane])) == kSuccess) return &ring.back();
    ring.clear();  // none of them can be relied on any more
    return nullptr;
}

const Group::RecordedEvent* Group::event_after(int lane, uint64_t number) {
    for (const RecordedEvent& event : events_[lane])
        if (event.number >= number) return &event;
    // more launches have followed there, for which the lane also waits: next time, record in time
    if (window_.tail(lane) > number) {
        ++counts_->missed;
        if (uint64_t missed_key = window_.key_of(number)) awaited_keys_.insert(missed_key);
    }
    return record(lane);
}

bool Group::wait(int lane, int other, uint64_t number) {
    if (window_.clock(lane)[other] >= number) return true;
    const RecordedEvent* r = event_after(other, number);
    if (r == nullptr) return false;
    ++counts_->waits;
    if ((failure_ = Driver::get().cuStreamWaitEvent(streams_[lane], r->event, 0)) != kSuccess) return false;
    window_.note_order(lane, r->clock);
    return true;
}

CUresult Group::place(const Work& work, Access&& access, uint64_t id, bool capturing) {
    const Placement placement = window_.place(access);
    const int lane = placement.lane;
    const uint64_t tail = window_.tail(lane);
    const bool lacks_event = events_[lane].empty() || events_[lane].back().number < tail;
    if (tail != 0 && lacks_event && (capturing || awaited_keys_.count(window_.tail_key(lane)) != 0) &&
        record(lane) == nullptr)
        return failure_;
    for (int other = 0; other < window_.lanes(); ++other)
        if (other != lane && !wait(lane, other, placement.needs[other])) return failure_;
    if (CUresult failure = random_delay_.delay(streams_[lane])) return failure;
    if (CUresult failure = work.make(work.what, streams_[lane])) return failure;
    window_.add(std::move(access), lane, key(id));
    ++counts_->placed;
    ++counts_->lanes[lane];
    counts_->spread += lane != 0;
    return kSuccess;
}

bool Group::idle() const {
    if (worker_pool_ != nullptr && !worker_pool_->idle()) return false;
    for (int lane = 0; lane < window_.lanes(); ++lane)
        if ((lane == 0 || window_.tail(lane) != 0) && Driver::get().cuStreamQuery(streams_[lane]) != kSuccess)
            return false;
    return true;
}

CUresult Group::join(uint64_t id) {
    if (worker_pool_ != nullptr)
        if (CUresult failure = worker_pool_->join()) return failure;
    for (int other = 1; other < window_.lanes(); ++other)
        if (window_.tail(other) != 0 && !wait(0, other, window_.tail(other))) return failure_;
    window_.barrier(key(id));
    return kSuccess;
}

}  // namespace tileprof::acs
