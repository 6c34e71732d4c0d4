// A thread that issues launches, so that the program's own goes on meanwhile: the copies of a launch cost it a tenth of
// what the driver takes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "group.h"
#include "segment.h"

namespace tileprof::acs {

class Issuer {
  public:
    Issuer() : ring_(kRoom) {}

    // Room for the next launch; waits while there is none. Filled by the one thread that holds the engine. nullptr
    // where the driver has taken no launch for `kPatience`.
    Held* next();
    void push(Group* group);
    // Until everything that was pushed has been issued; what the driver said of it, or that it took nothing for
    // `kPatience`.
    CUresult drain();

  private:
    static constexpr size_t kRoom = 1024;
    struct Place {
        Held held;
        Group* group = nullptr;
    };

    void work();

    std::vector<Place> ring_;
    std::atomic<uint64_t> pushed_{0}, issued_{0};
    std::atomic<bool> asleep_{false};
    std::atomic<int> failed_{kSuccess};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::thread thread_;
};

}  // namespace tileprof::acs
