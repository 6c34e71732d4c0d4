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

    // Created at the first launch in a context.
    Arena* of(CUcontext context);
    // Returns nullptr if there is none.
    Arena* existing(CUcontext context) const;
    // Returns the number by which events name a context that has an arena.
    int number_of(CUcontext context) { return numbers_[context]; }
    // Returns the arenas that exist now; others may be added while one is waited for.
    std::vector<Arena*> all() const;
    bool empty() const { return arenas_.empty(); }

    void drain();
    // Drains at synchronisations, at most twice per second, so that a killed program leaves most records.
    void drain_now_and_then();
    // Everything in a context is destroyed with it, so the records of its kernels are copied now.
    void context_destroyed(CUcontext context);
    // The last drain; `alive`: the driver still answers. Returns false if records were lost.
    bool finish(bool alive);

  private:
    const Options& options_;
    std::map<CUcontext, std::unique_ptr<Arena>> arenas_;
    std::vector<std::unique_ptr<Arena>> ended_arenas_;  // arenas of destroyed contexts, which threads may still use
    std::map<CUcontext, int> numbers_;
    uint64_t last_drain_ns_ = 0;
    bool lost_ = false;  // a context was destroyed with records
    bool finished_ = false;  // the driver may have shut down
};

}  // namespace tileprof
