#include "order/worker_pool.h"

#include <pthread.h>
#include <signal.h>

#include <iterator>
#include <system_error>
#include <utility>

#include "driver/launch.h"

namespace tileprof::acs {

WorkerPool::WorkerPool(CUcontext context, CUstream stream, const Options& options)
    : context_(context),
      stream_(stream),
      window_(static_cast<size_t>(options.window)),
      workers_(options.workers),
      delay_us_(options.delay_us) {}

WorkerPool::~WorkerPool() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stops_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

// Starts the threads at the first work.
CUresult WorkerPool::begin() {
    Relaxed relaxed;
    if (fence_ == nullptr)
        if (CUresult failure = Driver::get().cuEventCreate(&fence_, kDisableTiming)) return failure;
    sigset_t all, before;  // the program's handlers run on its own threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    CUresult failure = kSuccess;
    while (failure == kSuccess && threads_.size() < static_cast<size_t>(workers_)) {
        CUstream stream = nullptr;
        if ((failure = Driver::get().cuStreamCreate(&stream, kNonBlocking)) != kSuccess) break;
        try {
            threads_.emplace_back([this, stream] { work(stream); });
        } catch (const std::system_error&) {
            workers_ = static_cast<int>(threads_.size());  // the pool continues with the existing threads
            failure = threads_.empty() ? kLaunchTimeout : kSuccess;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return failure;
}

// Waits until at most this many launches have not ended; returns false if none ends for `kPatience`.
bool WorkerPool::wait(std::unique_lock<std::mutex>& lock, size_t most) {
    while (items_.size() > most) {
        const uint64_t seen = ends_;
        if (!ended_.wait_for(lock, kPatience, [&] { return ends_ != seen; })) return false;
    }
    return true;
}

CUresult WorkerPool::take_failure() { return std::exchange(failure_, kSuccess); }

CUresult WorkerPool::add(Make make, Access&& access) {
    if (threads_.size() < static_cast<size_t>(workers_))
        if (CUresult failure = begin()) return failure;
    std::unique_lock<std::mutex> lock(mutex_);
    if (!fenced_) {  // nothing is in progress, so no worker waits for the event
        if (CUresult failure = Driver::get().cuEventRecord(fence_, stream_)) return failure;
        fenced_ = true;
        ++fences_;
    }
    if (!wait(lock, window_ - 1)) return kLaunchTimeout;
    items_.push_back({std::move(make), std::move(access), 0, {}});
    Item* item = &items_.back();
    for (auto earlier = items_.begin(); earlier != std::prev(items_.end()); ++earlier)
        if (conflicts(earlier->access, item->access)) {
            earlier->children.push_back(item);
            ++item->missing;
        }
    if (item->missing == 0) {
        ready_.push_back(item);
        work_.notify_one();
    }
    return take_failure();
}

CUresult WorkerPool::join() {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool all = wait(lock, 0);
    fenced_ = false;
    const CUresult failure = take_failure();
    return all ? failure : kLaunchTimeout;
}

bool WorkerPool::idle() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return items_.empty();
}

void WorkerPool::end(Item* item, CUresult result) {
    if (failure_ == kSuccess) failure_ = result;
    for (Item* child : item->children)
        if (--child->missing == 0) {
            ready_.push_back(child);
            work_.notify_one();
        }
    items_.remove_if([item](const Item& other) { return &other == item; });
    ++ends_;
    ended_.notify_one();
}

void WorkerPool::work(CUstream stream) {
    inside = true;
    pthread_setname_np(pthread_self(), "tileprof-acs");
    const Driver& driver = Driver::get();
    driver.cuCtxSetCurrent(context_);
    Relaxed relaxed;  // the program may capture a graph meanwhile
    RandomDelay random_delay(delay_us_);
    uint64_t fences = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        work_.wait(lock, [&] { return stops_ || !ready_.empty(); });
        if (stops_) return;
        Item* item = ready_.front();
        ready_.pop_front();
        const uint64_t now = fences_;
        lock.unlock();
        CUresult result = kSuccess;
        if (fences != now) result = driver.cuStreamWaitEvent(stream, fence_, 0);
        fences = now;
        if (result == kSuccess) result = random_delay.delay(stream);
        if (result == kSuccess) result = item->make(stream);
        if (result == kSuccess) result = driver.cuStreamSynchronize(stream);
        lock.lock();
        end(item, result);
    }
}

}  // namespace tileprof::acs
