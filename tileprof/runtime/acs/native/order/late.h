// Launches that begin late at random, for tests of the order.
#pragma once

#include <random>

#include "driver/driver.h"

namespace tileprof::acs {

// A kernel that sleeps ahead of others. Host functions would run one after another on a thread of the driver's, which
// orders what they are to disturb, and take 0.1 ms each.
class Late {
  public:
    explicit Late(int most_us) : most_ns_(static_cast<unsigned>(most_us) * 1000) {}

    // What follows in the stream begins up to twice `most_us` later; nothing is done where that is 0.
    CUresult delay(CUstream stream);

  private:
    unsigned most_ns_;
    CUfunction sleep_ = nullptr;  // of the context that is current at the first delay
    std::minstd_rand generator_;
};

}  // namespace tileprof::acs
