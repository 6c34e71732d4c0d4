// Whether spreading launches is worth what it costs the host.
#pragma once

#include <stdint.h>

namespace tileprof::acs {

// Where the GPU has no work left when a launch comes, the host bounds the program: a launch begins at once in any
// stream, and placing it only makes the host slower. Judged from samples; where most find the GPU idle, launches rest
// in stream order for a while, then a few samples decide again. Each rest that is renewed is twice as long.
class Pace {
  public:
    // `period`: launches per judgement; 0 never rests.
    explicit Pace(uint64_t period);

    bool resting() const { return resting_; }
    // Counts a launch; whether its issuer is to call `sampled` first.
    bool due();
    void sampled(bool idle);
    uint64_t every() const { return every_; }  // launches from one look to the next

  private:
    void judge();

    uint64_t period_, every_;
    uint64_t launches_ = 0;  // since the last judgement
    uint64_t samples_ = 0, idle_ = 0;
    uint64_t rest_ = 0;      // launches that the next rest lasts, before samples are taken again
    bool resting_ = false;
};

}  // namespace tileprof::acs
