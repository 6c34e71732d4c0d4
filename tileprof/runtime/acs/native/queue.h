// Calls that a thread of the library makes for the program. The program's thread copies the arguments and continues:
// it does not spend time on table look-ups, comparisons of ranges, events, or the driver.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "driver/launch.h"

namespace tileprof::acs {

inline uint64_t nanoseconds_since(std::chrono::steady_clock::time_point begin) {
    const auto passed = std::chrono::steady_clock::now() - begin;
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

class Queue {
  public:
    // The functions that process the calls, in order. `launch` gets the function as the driver names it.
    struct Makers {
        std::function<void(const Launch&, const Function&)> launch;
        std::function<void(const Move&)> move;
        std::function<void(const Mark&)> mark;
        // nothing has arrived for a while; returns false if the segment cannot begin now, to be called again
        std::function<bool()> pause;
    };

    explicit Queue(Makers makers);

    // Copies a call and hands it to the thread; waits while there is no room. One thread at a time. Returns false if
    // the thread has processed nothing for `kPatience`, or cannot start.
    bool push(const Launch& launch, const Function& function, CUcontext context);
    bool push(const Move& move, CUcontext context);
    bool push(const Mark& mark, CUcontext context);
    // Waits until all calls have been made; false after `kPatience` without progress.
    bool drain();
    bool started() const { return thread_.joinable(); }
    bool broken() const { return broken_; }
    // For the thread that queues calls: whether all have been made, and how long it has waited for room.
    bool empty() const { return tail_.load(std::memory_order_acquire) == head_.load(std::memory_order_relaxed); }
    uint64_t full_ns() const { return full_ns_; }

    static constexpr size_t kBytes = 1 << 19;  // bytes of waiting calls: a thousand launches with their parameters

  private:
    enum class Kind : uint32_t { kSkip, kLaunch, kMove, kMark };
    struct alignas(16) Header {
        uint32_t bytes;
        Kind kind;
        CUcontext context;
    };
    struct LaunchCall {
        Launch launch;
        const Function* function;
        bool whole;  // whether parameters follow the attributes
    };

    char* reserve(size_t bytes, Kind kind, CUcontext context);
    void publish(size_t bytes);
    template <class T>
    bool push_small(const T& what, Kind kind, CUcontext context);
    bool begin();
    void work();
    void make(const Header& header, const char* body);
    bool wait_for_call(uint64_t tail);

    Makers makers_;
    std::unique_ptr<char[]> memory_;
    char* ring_ = nullptr;
    alignas(64) std::atomic<uint64_t> head_{0};  // bytes that were queued since the beginning
    uint64_t tail_seen_ = 0;                     // the queueing thread's last value of `tail_`
    uint64_t full_ns_ = 0;
    alignas(64) std::atomic<uint64_t> tail_{0};  // bytes whose calls have been made
    std::atomic<bool> asleep_{false};
    std::atomic<uint64_t> drains_{0};
    bool broken_ = false;  // the thread cannot start
    std::mutex mutex_;
    std::condition_variable wake_;
    std::thread thread_;
    std::vector<void*> pointers_;  // pointers to the parameters of the current launch
};

}  // namespace tileprof::acs
