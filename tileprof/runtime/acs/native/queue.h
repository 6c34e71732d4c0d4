// Calls that a thread of the library's makes in the program's place. The program's thread copies what was passed, and
// goes on: looking a launch up, comparing its ranges, events, and the driver's own time cost it nothing.
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
    // What is done with each call, in order. `launch` gets the function as the driver names it.
    struct Makers {
        std::function<void(const Launch&, const Function&)> launch;
        std::function<void(const Move&)> move;
        std::function<void(const Mark&)> mark;
        std::function<bool()> pause;  // nothing has come for a while; false: not possible now, to be called again
    };

    explicit Queue(Makers makers);

    // Copies a call and leaves it to the thread; waits while there is no room. One thread at a time. False where the
    // thread has taken nothing for `kPatience`, or cannot begin.
    bool push(const Launch& launch, const Function& function, CUcontext context);
    bool push(const Move& move, CUcontext context);
    bool push(const Mark& mark, CUcontext context);
    // Waits until everything has been made; false after `kPatience` without progress.
    bool drain();
    bool started() const { return thread_.joinable(); }
    bool broken() const { return broken_; }
    // For the thread that puts calls in: whether all have been made, and how long it has waited for room.
    bool empty() const { return tail_.load(std::memory_order_acquire) == head_.load(std::memory_order_relaxed); }
    uint64_t full_ns() const { return full_ns_; }

    static constexpr size_t kBytes = 1 << 19;  // of copied calls that wait: a thousand launches and their parameters

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
        bool whole;  // parameters are there, behind the attributes
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
    alignas(64) std::atomic<uint64_t> head_{0};  // bytes that were put in since the beginning
    uint64_t tail_seen_ = 0;                     // what the putting thread knows of `tail_`
    uint64_t full_ns_ = 0;
    alignas(64) std::atomic<uint64_t> tail_{0};  // bytes whose calls have been made
    std::atomic<bool> asleep_{false};
    std::atomic<uint64_t> drains_{0};
    bool broken_ = false;  // no thread can begin
    std::mutex mutex_;
    std::condition_variable wake_;
    std::thread thread_;
    std::vector<void*> pointers_;  // to parameters of the launch that is made
};

}  // namespace tileprof::acs
