#include "records/stream_waits.h"

#include <algorithm>

namespace tileprof {

bool StreamWaits::allocate() { return ready_ = places_.allocate(context_); }

void StreamWaits::end() {
    for (Places::Place place : abandoned_places_)
        if (place >= 0) forget_abandoned(places_.byte(place));
    abandoned_places_.clear();
    ready_ = false;
    places_.end();
}

std::vector<Sanitizer_StreamHandle> StreamWaits::streams() const {
    std::vector<Sanitizer_StreamHandle> out;
    for (const auto& [stream, place] : streams_) out.push_back(stream);
    return out;
}

void StreamWaits::end_stream(Sanitizer_StreamHandle stream) {
    auto entry = streams_.find(stream);
    if (entry == streams_.end()) return;
    give_up(stream, "");
    places_.forget(entry->second);
    streams_.erase(entry);
}

// A copy would not do: in the default stream it would wait behind a kernel that spins there.
bool StreamWaits::answers() {
    if (!ready_) return false;
    ContextGuard inside(context_);
    size_t free = 0, all = 0;
    return api.cuMemGetInfo(&free, &all) == CUDA_SUCCESS;
}

bool StreamWaits::ends(Places::Place place) {
    bool ended = wait_for([&] { return places_.reached(place); }, [&] { return !answers(); }, limit_ns_);
    places_.forget(place);
    return ended;
}

void StreamWaits::give_up(Sanitizer_StreamHandle stream, const std::string& name) {
    Places::Place place = places_.put(stream);
    if (place == Places::kNone) return;
    abandoned_places_.push_back(place);
    if (place >= 0 && !name.empty()) note_abandoned(places_.byte(place), name);
}

bool StreamWaits::is_blocked() {
    if (abandoned_places_.empty()) return false;
    auto ended = std::partition(abandoned_places_.begin(), abandoned_places_.end(),
                                [&](Places::Place p) { return !places_.reached(p); });
    for (auto at = ended; at != abandoned_places_.end(); ++at) {
        if (*at >= 0) forget_abandoned(places_.byte(*at));
        places_.forget(*at);
    }
    abandoned_places_.erase(ended, abandoned_places_.end());
    return !abandoned_places_.empty();
}

bool StreamWaits::settles() {
    std::vector<Sanitizer_StreamHandle> streams = this->streams();
    std::vector<Places::Place> places;
    for (Sanitizer_StreamHandle stream : streams) places.push_back(places_.put(stream));
    auto all = [&] {
        return std::all_of(places.begin(), places.end(), [&](Places::Place p) { return places_.reached(p); });
    };
    bool settled = wait_for(all, [&] { return !answers(); }, limit_ns_);
    for (Places::Place place : places) places_.forget(place);
    return settled;
}

// A place that was not reached last time is awaited first: later places of its stream cannot have been reached
// either.
bool StreamWaits::all_end(uint64_t patience_ns) {
    // Other threads may add streams of launches in progress meanwhile: these stay.
    std::vector<Sanitizer_StreamHandle> streams = this->streams();
    std::vector<Places::Place> places;
    auto all = [&] {
        return std::all_of(places.begin(), places.end(), [&](Places::Place p) { return places_.reached(p); });
    };
    auto broken = [&] { return !answers(); };
    for (int round = 0; round < 2; ++round) {
        if (round == 1)
            for (Sanitizer_StreamHandle stream : streams) {
                places_.forget(streams_[stream]);
                Places::Place place = places_.put(stream);
                streams_[stream] = place;
            }
        places.clear();
        for (Sanitizer_StreamHandle stream : streams) places.push_back(streams_[stream]);
        if (!wait_for(all, broken, patience_ns)) return false;
    }
    for (Sanitizer_StreamHandle stream : streams) {
        places_.forget(streams_[stream]);
        streams_.erase(stream);
    }
    return true;
}

}  // namespace tileprof
