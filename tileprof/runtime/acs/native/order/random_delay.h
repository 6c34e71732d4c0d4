// Random delays before launches, for tests of the order.
#pragma once

#include <random>
#include <vector>

#include "driver/driver.h"

namespace tileprof::acs {

// A kernel that sleeps before others, in a stream or in a graph. Host functions would run one after another on a thread
// of the driver, which orders the launches that they should disturb, and take 0.1 ms each.
class RandomDelay {
  public:
    explicit RandomDelay(int most_us) : most_ns_(static_cast<unsigned>(most_us) * 1000) {}

    // Delays later work in the stream by up to twice `most_us`; does nothing if that is 0.
    CUresult delay(CUstream stream);
    // Adds a delay behind nodes of a graph, which then are the delay alone; does nothing if `most_us` is 0.
    CUresult delay(CUgraph graph, std::vector<CUgraphNode>* parents);

  private:
    CUresult load();

    unsigned most_ns_;
    CUfunction sleep_ = nullptr;  // module of the context that is current at the first delay
    std::minstd_rand generator_;
};

}  // namespace tileprof::acs
