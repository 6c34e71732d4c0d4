// The launches of one stream of the program, spread over that stream and others. Events keep the order on the device,
// and no call here waits for the GPU, unless workers keep the order on the host.
#pragma once

#include <deque>
#include <memory>
#include <unordered_set>
#include <vector>

#include "driver/launch.h"
#include "options.h"
#include "order/worker_pool.h"
#include "order/random_delay.h"
#include "order/window.h"

namespace tileprof::acs {

class Group {
  public:
    Group(CUcontext context, CUstream stream, const Options& options, Counts* counts);

    // Places work so that it begins as soon as everything that it conflicts with has ended. `id`: that of the
    // launch's entry.
    CUresult place(const Work& work, Access&& access, uint64_t id, bool capturing);
    // Worker threads, which take work that is not captured instead of `place`; nullptr if events keep the order.
    WorkerPool* worker_pool() { return worker_pool_.get(); }
    // Returns whether everything that was placed has ended, as far as one query of each stream shows.
    bool idle() const;
    // Orders the program's stream after everything that was placed. Afterwards the program may use the stream as it
    // likes.
    CUresult join(uint64_t id);

    CUcontext context() const { return context_; }
    CUstream stream() const { return streams_[0]; }
    bool usable() const { return usable_; }  // its streams could be created

  private:
    struct RecordedEvent {
        uint64_t number;  // the last launch before the event
        Clock clock;
        CUevent event;
    };

    const RecordedEvent* event_after(int lane, uint64_t number);
    const RecordedEvent* record(int lane);
    bool wait(int lane, int other, uint64_t number);
    uint64_t key(uint64_t id);

    CUcontext context_;
    std::vector<CUstream> streams_;
    Window window_;
    std::vector<std::deque<RecordedEvent>> events_;
    // Keys of launches behind which another lane waited when more had followed there.
    std::unordered_set<uint64_t> awaited_keys_;
    uint64_t last_id_ = 0, last_but_one_ = 0;
    size_t most_events_;
    RandomDelay random_delay_;
    CUresult failure_ = kSuccess;
    Counts* counts_;
    bool usable_ = true;
    std::unique_ptr<WorkerPool> worker_pool_;
};

}  // namespace tileprof::acs
