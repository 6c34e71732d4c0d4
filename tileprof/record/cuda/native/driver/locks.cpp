#include "driver/locks.h"

#include <atomic>

#include "driver/clock.h"
#include "driver/waiting.h"
#include "recorder.h"

namespace tileprof {

namespace {

thread_local int holds = 0;
std::atomic<int> at_work{0};  // threads that hold the mutex

// Whether this thread is in a launching call, and the id by which the gate knows it.
thread_local bool inside = false;
const void* this_thread() { return &holds; }

}  // namespace

int threads_at_work() { return at_work; }

Gate& gate = *new Gate;

Lock::Lock() {
    recorder.mutex.lock();
    if (holds++ == 0) ++at_work;
    note_progress();
}

Lock::~Lock() {
    note_progress();
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
    Unlock unlock;
    nap(kMs / 10);
}

void Gate::enter() {
    while (closed_by_another() || (closing_ != nullptr && closing_ != this_thread())) pause_without_holds();
    if (!inside) ++inside_;  // a call whose end was not seen, because its region had ended, is counted already
    inside = true;
}

void Gate::leave() {
    if (inside) --inside_;
    inside = false;
}

bool Gate::closed_by_another() const { return owner_ != nullptr && owner_ != this_thread(); }

bool Gate::close(uint64_t patience_ns) {
    uint64_t begin = clock_ns();
    while (closed_by_another() || (closing_ != nullptr && closing_ != this_thread()) || inside_ > inside) {
        if (closing_ == nullptr) closing_ = this_thread();
        if (clock_ns() - begin >= patience_ns) {
            if (closing_ == this_thread()) closing_ = nullptr;
            return false;
        }
        pause_without_holds();
    }
    if (closing_ == this_thread()) closing_ = nullptr;
    owner_ = this_thread();
    ++depth_;
    return true;
}

void Gate::open() {
    if (--depth_ == 0) owner_ = nullptr;
}

}  // namespace tileprof
