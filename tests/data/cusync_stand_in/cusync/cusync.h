// Stands in for cuSync where it is not at hand: the names and signatures that an emitted header uses, so that the header can be
// compiled, and so that a test can call its policies on the host. It synchronises nothing.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>

#define CUSYNC_DEVICE __host__ __device__ inline
#define CUSYNC_DEVICE_HOST __host__ __device__ inline

namespace cusync {

enum CuSyncError { CuSyncErrorNotProducer, CuSyncSuccess };
enum Optimizations { NoOptimization = 0, NoAtomicAdd = 1, AvoidWaitKernel = 2, AvoidCustomOrder = 4, ReorderTileLoads = 8 };

struct NoSync {
  CUSYNC_DEVICE_HOST NoSync() {}
  CUSYNC_DEVICE uint32_t waitValue(const dim3&, const dim3&) { return 0; }
  CUSYNC_DEVICE uint32_t tileIndex(const dim3&, const dim3&) { return 0; }
  CUSYNC_DEVICE bool isSync(const dim3&, const dim3&) { return false; }
  CUSYNC_DEVICE uint32_t postValue(const dim3&, const dim3&) { return 0; }
};

template <typename Child>
struct GenericTileOrder {
  CUSYNC_DEVICE uint32_t tileIndex(const dim3& tile, const dim3& grid) {
    return Child().blockIndex(grid, Child().tileToBlock(tile));
  }
};

template <typename TileOrder, typename InputPolicy, typename OutputPolicy, int Opts = NoOptimization>
class CuStage {
 public:
  CuStage(dim3 grid, dim3, InputPolicy input, OutputPolicy output) : grid_(grid), input_(input), output_(output) {
    for (uint32_t z = 0; z < grid.z; ++z)
      for (uint32_t y = 0; y < grid.y; ++y)
        for (uint32_t x = 0; x < grid.x; ++x)
          if (TileOrder().blockIndex(grid, dim3(x, y, z)) >= grid.x * grid.y * grid.z) std::abort();
  }
  CuSyncError invokeWaitKernel(cudaStream_t) { return CuSyncSuccess; }
  void incrementIter() {}
  dim3 grid() { return grid_; }
  __device__ dim3 tile(dim3*) { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
  // Every method is called, as by the real one: with the producer's grid on the consumer's side.
  __device__ CuSyncError wait(dim3& tile, uint32_t = 0, bool = true) {
    return input_.isSync(tile, grid_) && input_.waitValue(tile, grid_) > input_.tileIndex(tile, grid_)
               ? CuSyncSuccess : CuSyncErrorNotProducer;
  }
  __device__ CuSyncError post(const dim3& tile, uint32_t = 0) {
    return output_.postValue(tile, grid_) > output_.tileIndex(tile, grid_) ? CuSyncSuccess : CuSyncErrorNotProducer;
  }

 private:
  dim3 grid_;
  InputPolicy input_;
  OutputPolicy output_;
};

struct CuSync {
  template <typename Producer, typename Consumer>
  static CuSyncError setProducerConsumerPair(Producer&, Consumer&) { return CuSyncSuccess; }
};

}  // namespace cusync
