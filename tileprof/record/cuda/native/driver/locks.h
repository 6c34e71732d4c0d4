// The recorder's mutex, and the gate that launching calls pass.
//
// The driver calls back while it holds locks of its own: in a launch the context's. A thread that waits for the mutex
// there keeps them. So the mutex is never held while the library or the driver is called (`Api` releases it),
// and code that needs the records for itself (copying, clearing, repeating) does not hold it either: it closes the
// gate, at which launching calls wait before they hold anything.
#pragma once

#include <stdint.h>

namespace tileprof {

// Holds the mutex for a scope. A thread may hold it several times over.
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

// Gives other threads a moment.
void pause_without_holds();

// Threads that hold the mutex now.
int threads_at_work();

// Its methods are called with the mutex held, and release it while they wait.
class Gate {
  public:
    // A launching call begins, and ends.
    void enter();
    void leave();
    // From now on no other thread is in a launching call. False where one still is when the time is over. May be
    // nested.
    bool close(uint64_t patience_ns);
    void open();
    // A launch by another way than the calls that enter.
    bool closed_by_another() const;

  private:
    int inside_ = 0;
    const void* owner_ = nullptr;    // thread that has closed it
    const void* closing_ = nullptr;  // thread that waits until all have left; none enters meanwhile
    int depth_ = 0;
};
extern Gate& gate;

// Closes the gate for a scope; false where that did not work in time.
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
