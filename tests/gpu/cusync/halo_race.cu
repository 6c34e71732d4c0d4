// Tests whether a convolution under the policies that cuSync ships can read its halo too early. Two 3 x 3 convolutions
// of 56 x 56 pixels run tile by tile, and one block of the first is late. The program counts wrong pixels in the result
// of the second under every policy.
//
//   tileprof export tests/gpu/cusync/halo_race.dep --format cusync --several-waits -o build/halo
//   nvcc -std=c++17 -arch=sm_90 -I build/halo -I CUSYNC/src/include \
//     tests/gpu/cusync/halo_race.cu CUSYNC/src/cusync.cu -o build/halo/race
//   build/halo/race
//
// Prints one line per policy and delay: rounds, rounds with a wrong result, wrong pixels. Exits with 1 if the policy
// that waits for the halo was ever wrong.

#include "halo_race.cuh"

// As in cuSync's convolutions.
using Order = cusync::TransposeXYOrder;

// Waits as cuSync's kernels do: in the main loop, with the element offsets of the tile's own row; z is 1 the first
// time.
template <typename Stage>
__device__ void wait_as_cusync(Stage& stage, dim3 tile) {
    for (uint32_t k = 0; k < 9; ++k) {
        dim3 named(tile.y * kTile, k, k == 0);
        stage.wait(named);
    }
}

template <typename Stage>
__global__ void second(Stage stage, const int* in, int* out) {
    __shared__ uint32_t slot[3];
    dim3 tile = stage.tile(reinterpret_cast<dim3*>(slot));
    wait_as_cusync(stage, tile);
    const int at = tile.y * kTile + threadIdx.x;
    out[at] = pixel(in, at);
}

template <typename Producer, typename Consumer>
void shipped(const char* name, Producer producer, Consumer consumer, Images images, long long late_ns) {
    cusync::CuSync::setProducerConsumerPair(producer, consumer);
    const dim3 grid(1, kTiles, 1);
    measure(name, late_ns, images, [&](cudaStream_t one, cudaStream_t two) {
        first<<<grid, kTile, 0, one>>>(producer, images.in, images.between, kTiles / 2, late_ns, true);
        producer.invokeWaitKernel(two);
        second<<<grid, kTile, 0, two>>>(consumer, images.between, images.out);
        producer.incrementIter();
        consumer.incrementIter();
    });
}

int main() {
    const Images images = made();
    const dim3 grid(1, kTiles, 1), one(1, 1, 1);
    int wrong = 0;
    for (long long late_ns : {0LL, 1000LL, 10000LL, 100000LL, 1000000LL}) {
        {
            using Tile = cusync::TileSync<Order, kTile, 1>;
            using Conv = cusync::Conv2DTileSync<Order, 3, 3, kTile, 1>;
            shipped("Conv2DTileSync", cusync::CuStage<Order, cusync::NoSync, Tile>(grid, one, cusync::NoSync(), Tile()),
                    cusync::CuStage<Order, Conv, cusync::NoSync>(grid, one, Conv(), cusync::NoSync()), images, late_ns);
        }
        {
            using Row = cusync::RowSync<kTile>;
            shipped("RowSync", cusync::CuStage<Order, cusync::NoSync, Row>(grid, one, cusync::NoSync(), Row(1)),
                    cusync::CuStage<Order, Row, cusync::NoSync>(grid, one, Row(1), cusync::NoSync()), images, late_ns);
        }
        wrong += as_written("with the halo", late_ns, images);
    }
    return wrong == 0 ? 0 : 1;
}
