// The recorder's mutex, and the gate that launching calls pass.
//
// The driver makes callbacks while it holds its own locks, in a launch that of the context. A thread that waits for
// the mutex in a callback keeps these locks. Therefore the mutex is never held while the library or the driver is
// called (`Api` releases it). Code that needs exclusive access to the records (copying, clearing, repeating a launch)
// does not hold it either: it closes the gate, at which launching calls wait before they hold any lock.
#pragma once

#include <stdint.h>

namespace tileprof {

// Holds the mutex for a scope. A thread may hold it several times.
class Lock {
  public:
    Lock();
    ~Lock();
    Lock(const Lock&) = delete;
};

// Releases all of this thread's holds for a scope.
class Unlock {
  public:
    Unlock();
    ~Unlock();
    Unlock(const Unlock&) = delete;

  private:
    int holds_;
};

// Lets other threads run for a moment.
void pause_without_holds();

// Number of threads that hold the mutex now.
int threads_at_work();

// Methods are called with the mutex held, and release it while they wait.
class Gate {
  public:
    // A launching call begins, or ends.
    void enter();
    void leave();
    // Closes the gate: after this call no other thread is in a launching call. Returns false if one still is when the
    // time is over. Calls may be nested.
    bool close(uint64_t patience_ns);
    void open();
    // A launch was made by a call other than those that enter.
    bool closed_by_another() const;

  private:
    int inside_ = 0;
    const void* owner_ = nullptr;    // the thread that has closed the gate
    const void* closing_ = nullptr;  // the thread that waits until all have left; no thread enters meanwhile
    int depth_ = 0;
};
extern Gate& gate;

// Closes the gate for a scope; the value is false if that took too long.
class ClosedGate {
  public:
    explicit ClosedGate(uint64_t patience_ns) : closed_(gate.close(patience_ns)) {}
    ~ClosedGate() {
        if (closed_) gate.open();
    }
    ClosedGate(const ClosedGate&) = delete;
    explicit operator bool() const { return closed_; }

  private:
    bool closed_;
};

}  // namespace tileprof
