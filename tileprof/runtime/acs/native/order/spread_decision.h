// Decides whether spreading launches is worth its cost on the host.
#pragma once

#include <stdint.h>

namespace tileprof::acs {

// If the GPU has no work left when a launch arrives, the host bounds the program: a launch begins at once in any
// stream, and placing it only makes the host slower. The decision uses samples. If most of them find the GPU idle,
// launches rest in stream order for a while, after which a few samples decide again. Each renewed rest is twice as
// long.
class SpreadDecision {
  public:
    // `period`: number of launches per decision; 0 never rests.
    explicit SpreadDecision(uint64_t period);

    bool resting() const { return resting_; }
    // Counts a launch; returns whether its issuer has to call `sampled` first.
    bool due();
    void sampled(bool idle);
    uint64_t every() const { return every_; }  // number of launches from one sample to the next

  private:
    void decide();

    uint64_t period_, every_;
    uint64_t launches_ = 0;  // since the last decision
    uint64_t samples_ = 0, idle_ = 0;
    uint64_t rest_ = 0;      // number of launches in the next rest, before samples are taken again
    bool resting_ = false;
};

}  // namespace tileprof::acs
