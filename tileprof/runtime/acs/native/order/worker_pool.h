// Worker threads with a stream each, as in the paper's ACS-SW. A worker launches what no longer waits for anything,
// waits for its end, and updates the window. Order is kept on the host: nothing waits on the GPU.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "options.h"
#include "order/random_delay.h"
#include "order/window.h"

namespace tileprof::acs {

class WorkerPool {
  public:
    using Make = std::function<CUresult(CUstream)>;

    // `stream`: the program's stream, for whose earlier work all added launches wait.
    WorkerPool(CUcontext context, CUstream stream, const Options& options);
    ~WorkerPool();
    WorkerPool(const WorkerPool&) = delete;
    WorkerPool& operator=(const WorkerPool&) = delete;

    // Hands work to the workers; waits while the window is full. One thread at a time.
    CUresult add(Make make, Access&& access);
    // Waits until everything that was added has ended. Later work waits for what the program's stream gets first.
    CUresult join();
    bool idle() const;

  private:
    struct Item {
        Make make;
        Access access;
        size_t missing = 0;           // number of launches that it waits for
        std::vector<Item*> children;  // launches that wait for it
    };

    CUresult begin();
    void work(CUstream stream);
    void end(Item* item, CUresult result);
    bool wait(std::unique_lock<std::mutex>& lock, size_t most);
    CUresult take_failure();

    CUcontext context_;
    CUstream stream_;
    size_t window_;
    int workers_, delay_us_;
    mutable std::mutex mutex_;
    std::condition_variable work_, ended_;
    std::list<Item> items_;  // launches that have not ended
    std::deque<Item*> ready_;
    uint64_t ends_ = 0;
    CUevent fence_ = nullptr;
    uint64_t fences_ = 0;  // records of `fence_`
    bool fenced_ = false;  // it is behind all work of the program's stream that has to come first
    bool stops_ = false;
    CUresult failure_ = kSuccess;
    std::vector<std::thread> threads_;
};

}  // namespace tileprof::acs
