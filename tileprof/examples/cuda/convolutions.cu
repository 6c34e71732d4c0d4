// Two 3 x 3 convolutions of CHANNELS channels over IMAGES images of SIDE x SIDE pixels in fp16 with a ReLU each,
// channels last, as implicit products, synchronised tile by tile with the policy of convolutions.dep, which waits for
// the halo.
//
//     make run        or: build/convolutions/program [replays]
//
// Other sizes: -DIMAGES=16 …, with the grids of the policy.
#include "chain.cuh"

#ifndef IMAGES
#define IMAGES 8
#define SIDE 28
#define CHANNELS 128
#endif
constexpr int kPixels = IMAGES * SIDE * SIDE;
static_assert(kPixels % kTile == 0 && CHANNELS % kTile == 0, "every tile is full");

struct WaitForPixels {
    template <typename Stage>
    __device__ void operator()(Stage& stage, dim3 tile) const {
        tileprof_policy::wait_as_Second(stage, tile);
    }
};

int main(int count, char** words) {
    using namespace tileprof_policy;
    const size_t numbers = static_cast<size_t>(kPixels) * CHANNELS, weights = 9u * CHANNELS * CHANNELS;
    const dim3 grid(CHANNELS / kTile, kPixels / kTile);
    half *between = random_halves(numbers, 1.0f, 2), *out = random_halves(numbers, 1.0f, 3);
    const Work<Pixels, Pixels> work = {
        {Pixels{random_halves(numbers, 1.0f, 1), SIDE, CHANNELS}, random_halves(weights, 0.05f, 4), between, CHANNELS,
         9 * CHANNELS, grid},
        {Pixels{between, SIDE, CHANNELS}, random_halves(weights, 0.05f, 5), out, CHANNELS, 9 * CHANNELS, grid},
        {between, out, numbers, numbers}};
    return compare<FirstOrder, FirstPosts, SecondOrder, SecondWaits>(work, WaitForPixels(),
                                                                     count > 1 ? std::atoi(words[1]) : 100);
}
