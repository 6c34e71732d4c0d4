// Two 3 x 3 convolutions of 128 channels over 8 images of 28 x 28 pixels in fp16 with a ReLU, channels last, as implicit products,
// synchronised tile by tile with the policy of convolutions.dep, which waits for the halo.
//
//     make run        or: build/convolutions [replays]
#include "chain.cuh"

struct WaitForPixels {
  template <typename Stage>
  __device__ void operator()(Stage& stage, dim3 tile) const {
    tileprof_policy::wait_as_Second(stage, tile);
  }
};

int main(int count, char** words) {
  using namespace tileprof_policy;
  constexpr int kImages = 8, kSide = 28, kChannels = 128, kPixels = kImages * kSide * kSide;
  static_assert(kPixels % kTile == 0, "every tile is full");
  const size_t numbers = static_cast<size_t>(kPixels) * kChannels, weights = 9u * kChannels * kChannels;
  half* in = random_halves(numbers, 1.0f, 1);
  half *between = random_halves(numbers, 1.0f, 2), *out = random_halves(numbers, 1.0f, 3);
  const Work<Pixels, Pixels> work = {Pixels{in, kSide, kChannels},
                                     Pixels{between, kSide, kChannels},
                                     random_halves(weights, 0.05f, 4),
                                     random_halves(weights, 0.05f, 5),
                                     kChannels,
                                     9 * kChannels,
                                     dim3(kChannels / kTile, kPixels / kTile),
                                     {between, out, numbers, numbers}};
  return compare<FirstOrder, FirstPosts, SecondOrder, SecondWaits>(work, WaitForPixels(), count > 1 ? std::atoi(words[1]) : 100);
}
