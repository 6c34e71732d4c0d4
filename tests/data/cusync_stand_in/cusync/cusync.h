// Stands in for cuSync where it is not at hand: the names and signatures that an emitted header uses, of our own writing, so that the
// header can be compiled, a test can call its policies on the host, and an experiment can run without the library. It synchronises:
// a stage counts posts, a tile waits for a count, and a wait that lasts two seconds traps instead of hanging the GPU.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include <cuda_runtime.h>

#define CUSYNC_DEVICE __host__ __device__ inline
#define CUSYNC_DEVICE_HOST __host__ __device__ inline

namespace cusync {

enum CuSyncError { CuSyncErrorNotProducer, CuSyncErrorCUDAError, CuSyncSuccess };
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

// Spins until a counter has reached a value. Acquire: what was written before the posts is visible after it.
static __device__ __forceinline__ void spin_until(const uint32_t* counter, uint32_t value) {
  long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  for (uint32_t seen = 0;;) {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    if (seen >= value) return;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (now - begin > 2000000000LL) {
      printf("a wait for %u saw %u for two seconds\n", value, seen);
      __trap();
    }
  }
}

template <typename Unused>
__global__ void wait_for_start(const uint32_t* started, uint32_t round) {
  spin_until(started, round);
}

template <typename TileOrder, typename InputPolicy, typename OutputPolicy, int Opts = NoOptimization>
class CuStage {
 public:
  CuStage(dim3 grid, dim3, InputPolicy input, OutputPolicy output) : grid_(grid), before_(grid), input_(input), output_(output) {
    const uint32_t tiles = grid.x * grid.y * grid.z;
    std::vector<dim3> order(tiles);
    for (uint32_t z = 0; z < grid.z; ++z)
      for (uint32_t y = 0; y < grid.y; ++y)
        for (uint32_t x = 0; x < grid.x; ++x) {
          const uint32_t place = TileOrder().blockIndex(grid, dim3(x, y, z));
          if (place >= tiles) std::abort();
          order[place] = dim3(x, y, z);
        }
    allocate(&order_, tiles * sizeof(dim3));
    allocate(&taken_, sizeof(uint32_t));
    allocate(&started_, sizeof(uint32_t));
    allocate(&posted_, tiles * sizeof(uint32_t));
    if (cudaMemcpy(order_, order.data(), tiles * sizeof(dim3), cudaMemcpyHostToDevice) != cudaSuccess) std::abort();
  }

  CuSyncError invokeWaitKernel(cudaStream_t stream) {
    if (std::is_same<OutputPolicy, NoSync>::value) return CuSyncErrorNotProducer;
    if (!(Opts & AvoidWaitKernel)) wait_for_start<void><<<1, 1, 0, stream>>>(started_, round_);
    return cudaGetLastError() == cudaSuccess ? CuSyncSuccess : CuSyncErrorCUDAError;
  }
  void incrementIter() { ++round_; }
  dim3 grid() { return grid_; }

  __device__ dim3 tile(dim3* shared) {
    if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
      if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) atomicExch(started_, round_);
      const uint32_t tiles = grid_.x * grid_.y * grid_.z;
      *shared = Opts & AvoidCustomOrder ? dim3(blockIdx.x, blockIdx.y, blockIdx.z) : order_[atomicAdd(taken_, 1u) % tiles];
    }
    __syncthreads();
    return *shared;
  }
  __device__ CuSyncError wait(dim3& tile, uint32_t thread = 0, bool together = true) {
    if (!input_.isSync(tile, before_)) return CuSyncSuccess;
    if (threadIdx.x == thread && threadIdx.y == 0 && threadIdx.z == 0)
      spin_until(&awaited_[input_.tileIndex(tile, before_)], round_ * input_.waitValue(tile, before_));
    if (together) __syncthreads();
    return CuSyncSuccess;
  }
  __device__ CuSyncError post(const dim3& tile, uint32_t thread = 0) {
    __syncthreads();
    if (threadIdx.x == thread && threadIdx.y == 0 && threadIdx.z == 0) {
      __threadfence();
      atomicAdd(&posted_[output_.tileIndex(tile, grid_)], output_.postValue(tile, grid_));
    }
    return CuSyncSuccess;
  }

 private:
  friend struct CuSync;

  template <typename T>
  static void allocate(T** memory, size_t bytes) {
    if (cudaMalloc(memory, bytes) != cudaSuccess || cudaMemset(*memory, 0, bytes) != cudaSuccess) std::abort();
  }

  dim3 grid_, before_;
  InputPolicy input_;
  OutputPolicy output_;
  uint32_t round_ = 1;
  dim3* order_ = nullptr;
  uint32_t *taken_ = nullptr, *started_ = nullptr, *posted_ = nullptr;
  const uint32_t* awaited_ = nullptr;
};

struct CuSync {
  template <typename Producer, typename Consumer>
  static CuSyncError setProducerConsumerPair(Producer& producer, Consumer& consumer) {
    consumer.awaited_ = producer.posted_;
    consumer.before_ = producer.grid_;
    return CuSyncSuccess;
  }
};

}  // namespace cusync
