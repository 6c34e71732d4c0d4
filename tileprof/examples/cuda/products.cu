// Two products, each 1024 x 1024 by 1024 x 1024 in fp16 with a ReLU, synchronised tile by tile with the policy of products.dep.
//
//     make run        or: build/products [replays]
#include "chain.cuh"

struct WaitForRow {
  template <typename Stage>
  __device__ void operator()(Stage& stage, dim3 tile) const {
    tileprof_policy::wait_as_Down(stage, tile);
  }
};

int main(int count, char** words) {
  using namespace tileprof_policy;
  constexpr int kSide = 1024;
  const size_t numbers = static_cast<size_t>(kSide) * kSide;
  half* in = random_halves(numbers, 1.0f, 1);
  half *between = random_halves(numbers, 1.0f, 2), *out = random_halves(numbers, 1.0f, 3);
  const Work<Rows, Rows> work = {Rows{in, kSide},
                                 Rows{between, kSide},
                                 random_halves(numbers, 0.05f, 4),
                                 random_halves(numbers, 0.05f, 5),
                                 kSide,
                                 kSide,
                                 dim3(kSide / kTile, kSide / kTile),
                                 {between, out, numbers, numbers}};
  return compare<UpOrder, UpPosts, DownOrder, DownWaits>(work, WaitForRow(), count > 1 ? std::atoi(words[1]) : 100);
}
