#include "driver/waiting.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "log/events.h"
#include "log/log.h"
#include "recorder.h"

namespace tileprof {

namespace {

constexpr uint64_t kMs = 1000000, kBriefNs = kMs / 5, kLongestNapNs = 20 * kMs, kAskNs = 200 * kMs;
constexpr int kOurs = 70;  // the exit code of our own failures

thread_local int holds = 0;

uint64_t clock_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}

void nap(uint64_t ns) {
    timespec t{static_cast<time_t>(ns / 1000000000ull), static_cast<long>(ns % 1000000000ull)};
    nanosleep(&t, nullptr);
}

std::atomic<uint64_t> last_move{0};
std::atomic<int> at_work{0};  // threads that hold the mutex

// Leaked, as threads end after the destructors of this library.
struct GivenUp {
    std::mutex mutex;
    std::map<const volatile char*, std::string> kernels;

    // One that still runs, "" when there is none.
    std::string any() {
        std::lock_guard<std::mutex> lock(mutex);
        for (auto at = kernels.begin(); at != kernels.end();) {
            if (*at->first == 0) return at->second;
            at = kernels.erase(at);
        }
        return "";
    }
};
GivenUp& running = *new GivenUp;

// Of this thread: whether it is in a launching call; what stands for it.
thread_local bool inside = false;
const void* me() { return &holds; }

}  // namespace

Gate& gate = *new Gate;

Lock::Lock() {
    recorder.mutex.lock();
    if (holds++ == 0) ++at_work;
    moved();
}

Lock::~Lock() {
    moved();
    if (--holds == 0) --at_work;
    recorder.mutex.unlock();
}

Unlock::Unlock() : holds_(holds) {
    for (int i = 0; i < holds_; ++i) recorder.mutex.unlock();
    holds = 0;
}

Unlock::~Unlock() {
    for (int i = 0; i < holds_; ++i) recorder.mutex.lock();
    holds = holds_;
}

void pause_without_holds() {
    Unlock others;
    nap(kMs / 10);
}

void Gate::enter() {
    while (closed_by_another() || (closing_ != nullptr && closing_ != me())) pause_without_holds();
    if (!inside) ++inside_;  // one whose end was not seen, as its region had ended, is in already
    inside = true;
}

void Gate::leave() {
    if (inside) --inside_;
    inside = false;
}

bool Gate::closed_by_another() const { return owner_ != nullptr && owner_ != me(); }

bool Gate::close(uint64_t patience_ns) {
    uint64_t begin = clock_ns();
    while (closed_by_another() || (closing_ != nullptr && closing_ != me()) || inside_ > inside) {
        if (closing_ == nullptr) closing_ = me();
        if (clock_ns() - begin >= patience_ns) {
            if (closing_ == me()) closing_ = nullptr;
            return false;
        }
        pause_without_holds();
    }
    if (closing_ == me()) closing_ = nullptr;
    owner_ = me();
    ++depth_;
    return true;
}

void Gate::open() {
    if (--depth_ == 0) owner_ = nullptr;
}

ContextGuard::ContextGuard(CUcontext context) {
    CUcontext present = nullptr;
    if (context == nullptr || api.cuCtxGetCurrent(&present) != CUDA_SUCCESS || present == context) return;
    entered_ = api.cuCtxPushCurrent(context) == CUDA_SUCCESS;
}

ContextGuard::~ContextGuard() {
    CUcontext left = nullptr;
    if (entered_) api.cuCtxPopCurrent(&left);
}

bool Places::allocate(CUcontext context) {
    void* memory = nullptr;
    if (!check(api.sanitizerAllocHost(context, &memory, kPlaces), "pinned memory")) return false;
    memset(memory, 0, kPlaces);
    bytes_ = static_cast<volatile char*>(memory);
    return true;
}

void Places::end() {
    bytes_ = nullptr;
    pause_without_holds();
}

Places::Place Places::put(Sanitizer_StreamHandle stream) {
    if (bytes_ == nullptr) return kNone;
    Place place = used_;
    auto free = std::find_if(forgotten_.begin(), forgotten_.end(), [&](Place p) { return bytes_[p] != 0; });
    if (free != forgotten_.end()) {
        place = *free;
        forgotten_.erase(free);
        bytes_[place] = 0;
    } else if (used_ == kPlaces) {
        return kNever;
    } else {
        ++used_;
    }
    char* byte = const_cast<char*>(bytes_ + place);
    if (check(api.sanitizerMemset(byte, 1, 1, stream), "marking a place in a stream")) return place;
    refused_ = true;
    if (bytes_ != nullptr) *byte = 1;
    forget(place);
    return kNone;
}

bool wait_for(const std::function<bool()>& done, const std::function<bool()>& broken, uint64_t limit_ns) {
    Unlock others;
    uint64_t begin = clock_ns(), asked = begin;
    for (;;) {
        if (done()) return true;
        uint64_t now = clock_ns();
        if (now - begin >= limit_ns) return false;
        if (now - begin < kBriefNs) continue;
        if (now - asked >= kAskNs) {
            if (broken()) return true;
            asked = now;
        }
        nap(std::min({(now - begin) / 8, kLongestNapNs, begin + limit_ns - now}));  // an eighth too late at most
    }
}

void moved() { last_move.store(clock_ns(), std::memory_order_relaxed); }

void given_up(const volatile char* byte, const std::string& kernel) {
    std::lock_guard<std::mutex> lock(running.mutex);
    running.kernels[byte] = kernel;
}

void gone(const volatile char* byte) {
    std::lock_guard<std::mutex> lock(running.mutex);
    running.kernels.erase(byte);
}

void watch(uint64_t standstill_ns) {
    std::thread([standstill_ns] {
        for (;;) {
            nap(std::min<uint64_t>(standstill_ns / 4, 1000 * kMs));
            if (clock_ns() - last_move.load(std::memory_order_relaxed) < standstill_ns) continue;
            if (recorder.finished) return;  // the driver may have taken its memory back, too
            std::string kernel = running.any();
            if (!kernel.empty() || at_work.load() != 0)
                end_process(kernel, "nothing has moved any more: what it waits for may be waiting for the recorder");
        }
    }).detach();
}

void end_process(const std::string& kernel, const char* why) {
    std::string name =
        short_name(kernel.empty() && recorder.launches.last() != nullptr ? recorder.launches.last()->name : kernel);
    events::hung(name);
    log_.flush();
    fprintf(
        stderr,
        "tileprof: the program is ended: %s has not ended, and %s. Leave it out with --exclude '%s'; if it only takes "
        "long, give it more time with --wait SECONDS.\n",
        name.c_str(), why, name.c_str());
    fflush(stderr);
    _exit(kOurs);
}

std::string short_name(const std::string& readable) {
    std::string text = readable;
    const std::string nameless = "(anonymous namespace)::";
    for (size_t at; (at = text.find(nameless)) != std::string::npos;) text.erase(at, nameless.size());
    text = text.substr(0, text.find_first_of("<("));
    size_t space = text.find_last_of(' ');
    return space == std::string::npos ? text : text.substr(space + 1);
}

}  // namespace tileprof
