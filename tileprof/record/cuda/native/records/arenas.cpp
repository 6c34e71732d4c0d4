#include "records/arenas.h"

#include "log/log.h"

namespace tileprof {

namespace {

constexpr uint64_t kDrainEveryNs = 500000000;
constexpr uint64_t kDrainPatienceNs = 100000000;  // the limit while other streams may continue to run

}  // namespace

Arena* Arenas::of(CUcontext context) {
    std::unique_ptr<Arena>& arena = arenas_[context];
    if (!arena) {
        arena = std::make_unique<Arena>(context, options_);
        int number = static_cast<int>(numbers_.size());
        numbers_[context] = number;
    }
    return arena.get();
}

Arena* Arenas::existing(CUcontext context) const {
    auto arena = arenas_.find(context);
    return arena == arenas_.end() ? nullptr : arena->second.get();
}

std::vector<Arena*> Arenas::all() const {
    std::vector<Arena*> now;
    for (const auto& [context, arena] : arenas_) now.push_back(arena.get());
    return now;
}

void Arenas::drain() {
    if (finished_) return;
    for (Arena* arena : all()) arena->drain();
}

void Arenas::drain_now_and_then() {
    uint64_t now = now_ns();
    if (now - last_drain_ns_ < kDrainEveryNs) return;
    last_drain_ns_ = now;  // first, because draining synchronises, which causes callbacks
    for (Arena* arena : all()) arena->drain(kDrainPatienceNs);
    last_drain_ns_ = now_ns();
}

void Arenas::context_destroyed(CUcontext context) {
    auto arena = arenas_.find(context);
    if (arena == arenas_.end()) return;
    arena->second->drain();
    lost_ |= arena->second->pending();
    arena->second->end();
    ended_arenas_.push_back(std::move(arena->second));
    arenas_.erase(context);
}

bool Arenas::finish(bool alive) {
    for (Arena* arena : all()) {
        if (alive) arena->drain();
        lost_ |= arena->pending();
    }
    finished_ = true;
    return !lost_;
}

}  // namespace tileprof
