#include "driver/waiting.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "driver/clock.h"
#include "log/events.h"
#include "log/log.h"
#include "recorder.h"

namespace tileprof {

namespace {

constexpr uint64_t kBriefNs = kMs / 5, kLongestNapNs = 20 * kMs, kAskNs = 200 * kMs;
constexpr int kOwnExitCode = 70;

std::atomic<uint64_t> last_progress{0};

// Leaked, because threads end after the destructors of this library.
struct AbandonedLaunches {
    std::mutex mutex;
    std::map<const volatile char*, std::string> kernels;

    // Name of a launch that still runs, or "" if there is none.
    std::string any() {
        std::lock_guard<std::mutex> lock(mutex);
        for (auto at = kernels.begin(); at != kernels.end();) {
            if (*at->first == 0) return at->second;
            at = kernels.erase(at);
        }
        return "";
    }
};
AbandonedLaunches& abandoned_launches = *new AbandonedLaunches;

}  // namespace

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
    auto reusable = std::find_if(free_places_.begin(), free_places_.end(), [&](Place p) { return bytes_[p] != 0; });
    if (reusable != free_places_.end()) {
        place = *reusable;
        free_places_.erase(reusable);
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
    Unlock unlock;
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
        nap(std::min({(now - begin) / 8, kLongestNapNs, begin + limit_ns - now}));  // at most an eighth too late
    }
}

void note_progress() { last_progress.store(clock_ns(), std::memory_order_relaxed); }

void note_abandoned(const volatile char* byte, const std::string& kernel) {
    std::lock_guard<std::mutex> lock(abandoned_launches.mutex);
    abandoned_launches.kernels[byte] = kernel;
}

void forget_abandoned(const volatile char* byte) {
    std::lock_guard<std::mutex> lock(abandoned_launches.mutex);
    abandoned_launches.kernels.erase(byte);
}

void watch(uint64_t standstill_ns) {
    std::thread([standstill_ns] {
        for (;;) {
            nap(std::min<uint64_t>(standstill_ns / 4, 1000 * kMs));
            if (clock_ns() - last_progress.load(std::memory_order_relaxed) < standstill_ns) continue;
            if (recorder.finished) return;  // the driver may also have freed its memory
            std::string kernel = abandoned_launches.any();
            if (!kernel.empty() || threads_at_work() != 0)
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
    _exit(kOwnExitCode);
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
