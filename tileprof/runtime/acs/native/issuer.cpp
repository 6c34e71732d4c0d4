#include "issuer.h"

#include <chrono>

namespace tileprof::acs {

namespace {

constexpr auto kAwake = std::chrono::microseconds(200);  // without a launch, before the thread sleeps

void pause() { __builtin_ia32_pause(); }

// Pauses while `waiting()`, unless `progress` has not changed for too long; whether the wait came to its end.
template <class F>
bool wait_while(const std::atomic<uint64_t>& progress, F waiting) {
    uint64_t seen = progress, turns = 0;
    auto since = std::chrono::steady_clock::now();
    while (waiting()) {
        pause();
        if (++turns % 4096 != 0) continue;
        const auto now = std::chrono::steady_clock::now();
        if (seen != progress) seen = progress, since = now;
        if (now - since > kPatience) return false;
    }
    return true;
}

}  // namespace

Held* Issuer::next() {
    if (!wait_while(issued_, [&] { return pushed_ - issued_ >= kRoom; })) return nullptr;
    return &ring_[pushed_ % kRoom].held;
}

void Issuer::push(Group* group) {
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    ring_[pushed_ % kRoom].group = group;
    ++pushed_;
    if (!asleep_) return;
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_one();
}

CUresult Issuer::drain() {
    if (!wait_while(issued_, [&] { return issued_ != pushed_; })) return kLaunchTimeout;
    return failed_.exchange(kSuccess);
}

void Issuer::work() {
    inside = true;
    CUcontext context = nullptr;
    auto idle_since = std::chrono::steady_clock::now();
    while (true) {
        if (issued_ == pushed_) {
            if (std::chrono::steady_clock::now() - idle_since < kAwake) {
                pause();
                continue;
            }
            std::unique_lock<std::mutex> lock(mutex_);
            asleep_ = true;
            wake_.wait(lock, [&] { return issued_ != pushed_; });
            asleep_ = false;
        }
        Place& place = ring_[issued_ % kRoom];
        if (place.group->context() != context) {
            context = place.group->context();
            Driver::get().cuCtxSetCurrent(context);
        }
        Held& held = place.held;
        held.launch.parameters = held.pointers.data();
        held.launch.extra = nullptr;
        const Work work = held.moves ? work_of(held.move) : work_of(held.launch);
        // Behind a launch that failed nothing is issued, as nothing can be: such errors stay with the context.
        CUresult failed =
            failed_ != kSuccess ? kSuccess : place.group->place(work, std::move(held.access), held.id, false);
        if (failed != kSuccess) failed_ = failed;
        ++issued_;
        idle_since = std::chrono::steady_clock::now();
    }
}

}  // namespace tileprof::acs
