// The arenas of all contexts.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "records/arena.h"
#include "options.h"

namespace tileprof {

class Arenas {
  public:
    explicit Arenas(const Options& options) : options_(options) {}

    // Made at the first launch in a context.
    Arena* of(CUcontext context);
    // nullptr where none was made.
    Arena* existing(CUcontext context) const;
    // The number by which events name a context that has an arena.
    int number_of(CUcontext context) { return numbers_[context]; }
    // Those that there are now: others may come while one is waited for.
    std::vector<Arena*> all() const;
    bool empty() const { return arenas_.empty(); }

    void drain();
    // At synchronisations, so that a killed run leaves most records; not more often than twice per second.
    void drain_now_and_then();
    // Everything in a context is destroyed with it: what its kernels left is copied now.
    void context_destroyed(CUcontext context);
    // The last drain; `alive`: the driver still answers. False where records were lost.
    bool finish(bool alive);

  private:
    const Options& options_;
    std::map<CUcontext, std::unique_ptr<Arena>> arenas_;
    std::vector<std::unique_ptr<Arena>> ended_arenas_;  // of contexts that were destroyed: threads may still hold them
    std::map<CUcontext, int> numbers_;
    uint64_t last_drain_ns_ = 0;
    bool lost_ = false;  // a context was destroyed with records
    bool finished_ = false;  // the driver may be gone
};

}  // namespace tileprof
