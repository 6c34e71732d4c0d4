#include "queue.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include <chrono>
#include <new>
#include <system_error>

namespace tileprof::acs {

namespace {

constexpr size_t kLine = 64;
constexpr auto kAwake = std::chrono::milliseconds(1);  // without a call, before the thread sleeps
constexpr auto kPause = std::chrono::microseconds(100);  // without a call, before the launches of a segment begin

size_t round_to_line(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
size_t pad(size_t bytes) { return (bytes + 15) / 16 * 16; }

// Pauses while `waiting()`, unless `progress` has not changed for too long; returns whether the wait ended.
template <class F>
bool wait_while(const std::atomic<uint64_t>& progress, F waiting) {
    uint64_t seen = progress, turns = 0;
    auto since = std::chrono::steady_clock::now();
    while (waiting()) {
        __builtin_ia32_pause();
        if (++turns % 4096 != 0) continue;
        std::this_thread::yield();  // where there are more threads than CPUs
        const auto now = std::chrono::steady_clock::now();
        if (seen != progress) seen = progress, since = now;
        if (now - since > kPatience) return false;
    }
    return true;
}

}  // namespace

Queue::Queue(Makers makers) : makers_(std::move(makers)), memory_(new char[kBytes + kLine]) {
    const auto at = reinterpret_cast<uintptr_t>(memory_.get());
    ring_ = memory_.get() + (kLine - at % kLine) % kLine;
}

bool Queue::begin() {
    if (thread_.joinable()) return true;
    if (broken_) return false;
    sigset_t all, before;  // the program's handlers run on its own threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        thread_ = std::thread([this] { work(); });
    } catch (const std::system_error&) {
        broken_ = true;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return !broken_;
}

// Returns room for a call of this many bytes behind its header; nullptr if there is none for too long.
char* Queue::reserve(size_t bytes, Kind kind, CUcontext context) {
    if (!begin()) return nullptr;
    const size_t whole = round_to_line(sizeof(Header) + bytes);
    uint64_t head = head_.load(std::memory_order_relaxed);
    const size_t behind = kBytes - head % kBytes;
    const size_t needed = whole + (behind < whole ? behind : 0);
    if (needed > kBytes) return nullptr;
    if (head + needed - tail_seen_ > kBytes) {
        const auto begin = std::chrono::steady_clock::now();
        if (!wait_while(tail_,
                        [&] { return head + needed - (tail_seen_ = tail_.load(std::memory_order_acquire)) > kBytes; }))
            return nullptr;
        full_ns_ += nanoseconds_since(begin);
    }
    if (behind < whole) {
        new (ring_ + head % kBytes) Header{static_cast<uint32_t>(behind), Kind::kSkip, nullptr};
        head_.store(head += behind, std::memory_order_release);
    }
    auto* header = new (ring_ + head % kBytes) Header{static_cast<uint32_t>(whole), kind, context};
    return reinterpret_cast<char*>(header + 1);
}

void Queue::publish(size_t bytes) {
    // Sequentially consistent with `asleep_`: either the thread sees the call before it sleeps, or this thread sees
    // that it sleeps.
    head_.store(head_.load(std::memory_order_relaxed) + round_to_line(sizeof(Header) + bytes));
    if (!asleep_) return;
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_one();
}

bool Queue::push(const Launch& launch, const Function& function, CUcontext context) {
    const size_t attributes = launch.attribute_count * sizeof(Attribute);
    const size_t bytes = pad(sizeof(LaunchCall)) + pad(attributes) + pad(function.bytes);
    char* at = reserve(bytes, Kind::kLaunch, context);
    if (at == nullptr) return false;
    char* words = at + pad(sizeof(LaunchCall)) + pad(attributes);
    const bool whole = copy_parameters(function, launch.parameters, launch.extra, words);
    if (!whole) return false;
    new (at) LaunchCall{launch, &function, whole};
    if (attributes != 0) memcpy(at + pad(sizeof(LaunchCall)), launch.attributes, attributes);
    publish(bytes);
    return true;
}

template <class T>
bool Queue::push_small(const T& what, Kind kind, CUcontext context) {
    char* at = reserve(sizeof what, kind, context);
    if (at == nullptr) return false;
    new (at) T(what);
    publish(sizeof what);
    return true;
}

bool Queue::push(const Move& move, CUcontext context) { return push_small(move, Kind::kMove, context); }
bool Queue::push(const Mark& mark, CUcontext context) { return push_small(mark, Kind::kMark, context); }

bool Queue::drain() {
    ++drains_;  // the program's next calls may change the current context of a thread
    return wait_while(tail_, [&] { return !empty(); });
}

void Queue::make(const Header& header, const char* body) {
    if (header.kind == Kind::kMove) return makers_.move(*reinterpret_cast<const Move*>(body));
    if (header.kind == Kind::kMark) return makers_.mark(*reinterpret_cast<const Mark*>(body));
    const auto& call = *reinterpret_cast<const LaunchCall*>(body);
    Launch launch = call.launch;
    const char* attributes = body + pad(sizeof(LaunchCall));
    const char* words = attributes + pad(launch.attribute_count * sizeof(Attribute));
    launch.attributes = reinterpret_cast<const Attribute*>(attributes);
    pointers_.clear();
    for (const auto& [offset, size] : call.function->layout) pointers_.push_back(const_cast<char*>(words + offset));
    pointers_.push_back(nullptr);  // never empty
    launch.parameters = pointers_.data();
    launch.extra = nullptr;
    makers_.launch(launch, *call.function);
}

// Waits for a call; sleeps if none arrives for a while.
bool Queue::wait_for_call(uint64_t tail) {
    const auto since = std::chrono::steady_clock::now();
    bool paused = false;
    for (int turns = 1;; ++turns) {
        if (head_.load(std::memory_order_acquire) != tail) return true;
        __builtin_ia32_pause();
        if (turns % 64 != 0) continue;
        const auto idle = std::chrono::steady_clock::now() - since;
        if (!paused && idle > kPause) paused = makers_.pause();
        if (idle < kAwake) continue;
        if (paused) break;  // otherwise the segment would wait for the program's next call, which may never come
        std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    asleep_ = true;
    wake_.wait(lock, [&] { return head_ != tail; });
    asleep_ = false;
    return true;
}

void Queue::work() {
    inside = true;
    pthread_setname_np(pthread_self(), "tileprof-acs");
    CUcontext context = nullptr;
    uint64_t tail = 0, drains = 0;
    while (wait_for_call(tail)) {
        const auto& header = *reinterpret_cast<const Header*>(ring_ + tail % kBytes);
        if (header.kind != Kind::kSkip) {
            const uint64_t now = drains_.load(std::memory_order_relaxed);
            if (header.context != context || drains != now) {
                Driver::get().cuCtxSetCurrent(context = header.context);
                drains = now;
            }
            make(header, reinterpret_cast<const char*>(&header + 1));
        }
        tail += header.bytes;
        tail_.store(tail, std::memory_order_release);
    }
}

}  // namespace tileprof::acs
