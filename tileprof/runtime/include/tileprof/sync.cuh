// Tile-level synchronisation of dependent CUDA kernels: stages, semaphores, wait and post, tile orders, policies.
// Header only, sm_75 and newer, C++17. It runs the header that `tileprof export --format cusync` writes, and policies
// written by hand.
//
//     kernel:  dim3 tile = stage.tile(slot);  stage.wait(tile);  ...loads, arithmetic, stores...  stage.post(tile);
//     host:    CuSync::setProducerConsumerPair(producer, consumer);
//              sm_90 and newer: launch(first, ...) then launch_overlapped(second, ...) in one stream;
//              older GPUs: one stream per stage, and producer.invokeWaitKernel(consumer's stream) before the consumer.
//              check(stage) after a synchronisation: throws if a wait gave up, and names it.
//
// Rounds need no memset and no host counter: a block draws a ticket from a counter of its stage, and ticket / tiles is
// its round. Therefore launches may be captured in a CUDA graph and replayed. Each stage is launched once per round,
// with the grid that it was made for, and a stage that writes memory of an earlier round is launched without overlap,
// so that it waits for that round's end.
//
// Every wait is bounded by TILEPROF_WAIT_NS: it then writes a report and returns, the kernel finishes with a wrong
// result, and check() throws. The design follows cuSync (Jangda et al., CGO 2024, section III); what differs is stated
// where it differs.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#ifndef TILEPROF_WAIT_NS
#define TILEPROF_WAIT_NS 2000000000ull  // a wait that lasts two seconds has no producer
#endif

#define TILEPROF_SYNC 1

namespace tileprof::sync {

enum CuSyncError {
    CuSyncErrorNotProducer,
    CuSyncErrorNotConsumer,
    CuSyncErrorNotInitialized,
    CuSyncErrorInvalidLinearBlockIndex,
    CuSyncErrorCUDAError,
    CuSyncSuccess
};

// W, T and R of the paper, and stores instead of atomics, which this runtime does not need, because its posts are
// reductions without a result.
enum Optimizations {
    NoOptimization = 0,
    NoAtomicAdd = 1,
    AvoidWaitKernel = 2,
    AvoidCustomOrder = 4,
    ReorderTileLoads = 8
};

namespace detail {

constexpr uint32_t kSemaphoreStride =
    8;  // words: a semaphore per 32-byte sector, so that posts to neighbours do not collide
constexpr int kWaitStreams = 16;          // consumers of one producer that can each have a wait kernel

// The record of a wait that timed out. `stage` is 0 while there is none.
struct Report {
    uint32_t stage, x, y, z, semaphore, seen, expected, round;
};

__device__ __forceinline__ uint32_t load_acquire_gpu(const uint32_t* at) {
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

__device__ __forceinline__ uint64_t load_acquire_gpu(const unsigned long long* at) {
    uint64_t value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

__device__ __forceinline__ void add_release_gpu(uint32_t* at, uint32_t value) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ __forceinline__ uint64_t global_timer() {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)::"memory");
    return now;
}

// Lets a launch that follows with programmatic serialization begin. It may rely only on the fact that this block has
// begun.
__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the launches before this one have ended.
__device__ __forceinline__ void wait_for_launches_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void back_off() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    __nanosleep(20);
#endif
}

// Counts modulo 2^32: a semaphore that has counted more than 2^31 beyond the expected value would be read as behind
// it.
__device__ __forceinline__ bool reached(uint32_t seen, uint32_t expected) {
    return static_cast<int32_t>(seen - expected) >= 0;
}

// The posts of one round per semaphore, counted once by a call of the producer's policy for every tile.
template <typename Policy>
__global__ void count_posts(Policy policy, dim3 grid, uint32_t* totals) {
    const uint64_t tiles = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
    for (uint64_t n = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; n < tiles;
         n += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
        const dim3 tile(n % grid.x, n / grid.x % grid.y, n / grid.x / grid.y);
        atomicAdd(totals + policy.tileIndex(tile, grid), policy.postValue(tile, grid));
    }
}

// Returns when all blocks of the producer's round have begun. cuSync waits for its first block and relies on the
// order in which blocks are dispatched. Waiting for all costs no overlap, because a consumer's block gets an SM only
// when no block of the producer wants it.
template <typename Unused>
__global__ void wait_for_start(const unsigned long long* tickets, unsigned long long* rounds, uint32_t tiles,
                               uint32_t stage, Report* report) {
    const unsigned long long expected = (atomicAdd(rounds, 1ull) + 1) * tiles;
    const uint64_t begin = global_timer();
    while (load_acquire_gpu(tickets) < expected) {
        if (global_timer() - begin > TILEPROF_WAIT_NS) {
            if (atomicCAS(&report->stage, 0u, stage + 1) == 0) report->semaphore = ~0u;
            return;
        }
        back_off();
    }
}

inline void require(cudaError_t error, const char* what) {
    if (error != cudaSuccess)
        throw std::runtime_error(std::string("tileprof::sync: ") + what + ": " + cudaGetErrorString(error));
}

template <typename T>
T* allocate(size_t count) {
    void* memory = nullptr;
    require(cudaMalloc(&memory, count * sizeof(T)), "no device memory for semaphores");
    require(cudaMemset(memory, 0, count * sizeof(T)), "cannot clear semaphores");
    return static_cast<T*>(memory);
}

}  // namespace detail

// A policy that neither waits nor posts.
struct NoSync {
    __host__ __device__ NoSync() {}
    __host__ __device__ uint32_t waitValue(const dim3&, const dim3&) { return 0; }
    __host__ __device__ uint32_t tileIndex(const dim3&, const dim3&) { return 0; }
    __host__ __device__ bool isSync(const dim3&, const dim3&) { return false; }
    __host__ __device__ uint32_t postValue(const dim3&, const dim3&) { return 0; }
};

// A tile order gives the position of a tile in the order: blockIndex(grid, tile).
template <typename Child>
struct GenericTileOrder {
    __host__ __device__ uint32_t tileIndex(const dim3& tile, const dim3& grid) {
        return Child().blockIndex(grid, Child().tileToBlock(tile));
    }
};

// Tiles x first, then y, then z: CUDA's own order.
struct RowMajorOrder : GenericTileOrder<RowMajorOrder> {
    __host__ __device__ uint32_t blockIndex(const dim3& grid, const dim3& tile) {
        return tile.x + grid.x * (tile.y + grid.y * tile.z);
    }
    __device__ dim3 tileToBlock(const dim3& tile) { return tile; }
};

// Tiles y first: all rows of a column before the next column.
struct ColumnMajorOrder : GenericTileOrder<ColumnMajorOrder> {
    __host__ __device__ uint32_t blockIndex(const dim3& grid, const dim3& tile) {
        return tile.y + grid.y * (tile.x + grid.x * tile.z);
    }
    __device__ dim3 tileToBlock(const dim3& tile) { return tile; }
};

// The policies of the paper (section III-B), in tiles: x counts columns of tiles, y rows of tiles. A consumer's
// policy is called with its own tile and the producer's grid, a producer's with its own tile and grid.

// A semaphore per tile of the producer; a consumer awaits the tile with its own coordinates.
struct TileSync {
    __host__ __device__ uint32_t waitValue(const dim3&, const dim3&) { return 1; }
    __host__ __device__ uint32_t tileIndex(const dim3& tile, const dim3& grid) { return tile.x + grid.x * tile.y; }
    __host__ __device__ bool isSync(const dim3&, const dim3&) { return true; }
    __host__ __device__ uint32_t postValue(const dim3&, const dim3&) { return 1; }
};

// A semaphore per row of tiles; a consumer awaits all tiles of its row: a product that reads the whole row of the
// product before.
struct RowSync {
    __host__ __device__ uint32_t waitValue(const dim3&, const dim3& grid) { return grid.x * grid.z; }
    __host__ __device__ uint32_t tileIndex(const dim3& tile, const dim3&) { return tile.y; }
    __host__ __device__ bool isSync(const dim3&, const dim3&) { return true; }
    __host__ __device__ uint32_t postValue(const dim3&, const dim3&) { return 1; }
};

// A semaphore per row and residue of the column modulo `stride`; a consumer awaits the tiles of its row that are
// congruent to its own column: Q, K and V of one head out of one product of 3 * stride columns.
struct StridedSync {
    uint32_t stride;
    __host__ __device__ explicit StridedSync(uint32_t stride_ = 1) : stride(stride_) {}
    __host__ __device__ uint32_t waitValue(const dim3& tile, const dim3& grid) {
        return (grid.x - tile.x % stride + stride - 1) / stride;
    }
    __host__ __device__ uint32_t tileIndex(const dim3& tile, const dim3&) { return tile.y * stride + tile.x % stride; }
    __host__ __device__ bool isSync(const dim3&, const dim3&) { return true; }
    __host__ __device__ uint32_t postValue(const dim3&, const dim3&) { return 1; }
};

// Convolutions as implicit products: y counts tiles of pixels, x tiles of channels. A consumer of row y reads pixels of
// the rows y - halo to y + halo, all channels: call wait once for each row, as Conv2DTileSync::wait does. (cuSync's
// policy of this name awaits row y alone, which omits the halo: see docs/verify.md.)
struct Conv2DTileSync : RowSync {
    uint32_t halo;
    __host__ __device__ explicit Conv2DTileSync(uint32_t halo_ = 1) : halo(halo_) {}

    template <typename Stage>
    __device__ static void wait(Stage& stage, const dim3& tile, uint32_t halo, uint32_t rows) {
        const uint32_t first = tile.y < halo ? 0 : tile.y - halo,
                       last = tile.y + halo < rows ? tile.y + halo : rows - 1;
        for (uint32_t row = first; row <= last; ++row) {
            dim3 other(tile.x, row, tile.z);
            stage.wait(other, 0, false);
        }
        __syncthreads();
    }
};

// One kernel of the chain. It is passed to its kernel by value; its device memory lives until release().
template <typename TileOrder, typename InputPolicy, typename OutputPolicy, int Opts = NoOptimization>
class CuStage {
  public:
    // `grid`: the tiles, which is the grid of the launch. The second argument is cuSync's tile size and is not used.
    // Throws std::runtime_error if there is no device memory, std::invalid_argument if the order does not give each
    // tile its own position.
    CuStage(dim3 grid, dim3, InputPolicy input, OutputPolicy output)
        : grid_(grid), before_(grid), input_(input), output_(output) {
        const uint64_t tiles = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
        if (tiles == 0 || tiles > 0x7fffffff)
            throw std::invalid_argument("tileprof::sync: a stage has 1 to 2^31 - 1 tiles");
        if (draws_order()) order_ = make_order(tiles);
        tickets_ = detail::allocate<unsigned long long>(1 + detail::kWaitStreams);
        report_ = detail::allocate<detail::Report>(1);
        number_ = next_number();
        if (isProducer()) {
            posted_ = detail::allocate<uint32_t>(tiles * detail::kSemaphoreStride);
            totals_ = detail::allocate<uint32_t>(tiles);
            detail::
                count_posts<<<static_cast<uint32_t>((tiles + 255) / 256 < 1024 ? (tiles + 255) / 256 : 1024), 256>>>(
                    output_, grid_, totals_);
            detail::require(cudaDeviceSynchronize(), "cannot count the posts of a stage");
        }
    }

    __host__ __device__ dim3 grid() const { return grid_; }
    __host__ __device__ uint32_t numTiles() const { return grid_.x * grid_.y * grid_.z; }
    __host__ __device__ static constexpr bool isProducer() { return !std::is_same<OutputPolicy, NoSync>::value; }
    __host__ __device__ static constexpr bool isConsumer() { return !std::is_same<InputPolicy, NoSync>::value; }
    __host__ __device__ static constexpr bool getReorderTileLoads() { return (Opts & ReorderTileLoads) != 0; }

    // Call on the producer before a consumer is launched on another stream: the consumer then cannot take the place of
    // the blocks that it waits for. Does nothing with AvoidWaitKernel, or where launches overlap in one stream.
    CuSyncError invokeWaitKernel(cudaStream_t stream) {
        if (!isProducer()) return CuSyncErrorNotProducer;
        if (Opts & AvoidWaitKernel) return CuSyncSuccess;
        int slot = 0;
        while (slot < streams_ && stream_[slot] != stream) ++slot;
        if (slot == detail::kWaitStreams)
            throw std::runtime_error("tileprof::sync: a producer has wait kernels on at most 16 streams");
        if (slot == streams_) stream_[streams_++] = stream;
        detail::wait_for_start<void><<<1, 1, 0, stream>>>(tickets_, tickets_ + 1 + slot, numTiles(), number_, report_);
        return cudaGetLastError() == cudaSuccess ? CuSyncSuccess : CuSyncErrorCUDAError;
    }

    // Kept for cuSync's interface. Rounds are counted on the device.
    void incrementIter() {}

    // Returns the report of a wait that timed out since the last clear(), or an empty string. Synchronises with the
    // device.
    std::string problem() const {
        detail::Report report{};
        detail::require(cudaMemcpy(&report, report_, sizeof report, cudaMemcpyDeviceToHost),
                        "cannot read the report of a stage");
        if (report.stage == 0) return {};
        const std::string stage = "stage " + std::to_string(report.stage - 1);
        if (report.semaphore == ~0u) return "the wait kernel of " + stage + " gave up: not all of its blocks began";
        return stage + ", tile (" + std::to_string(report.x) + ", " + std::to_string(report.y) + ", " +
               std::to_string(report.z) + "), round " + std::to_string(report.round) + ": semaphore " +
               std::to_string(report.semaphore) + " has " + std::to_string(report.seen) + " posts of the " +
               std::to_string(report.expected) + " that it awaits";
    }

    // Clears all rounds, posts and reports. No launch of the stage may be in progress.
    void clear() {
        detail::require(cudaMemset(tickets_, 0, sizeof(unsigned long long) * (1 + detail::kWaitStreams)),
                        "cannot clear a stage");
        detail::require(cudaMemset(report_, 0, sizeof(detail::Report)), "cannot clear a stage");
        if (posted_)
            detail::require(cudaMemset(posted_, 0, sizeof(uint32_t) * numTiles() * detail::kSemaphoreStride),
                            "cannot clear a stage");
    }

    // Frees the device memory. Copies of the stage become invalid.
    void release() {
        for (void* memory : {static_cast<void*>(order_), static_cast<void*>(tickets_), static_cast<void*>(report_),
                             static_cast<void*>(posted_), static_cast<void*>(totals_)})
            cudaFree(memory);
        order_ = nullptr, tickets_ = nullptr, report_ = nullptr, posted_ = nullptr, totals_ = nullptr;
    }

    // Called once by all threads of the block, first: returns the block's tile. `shared` is shared memory for one
    // dim3, which may be reused after the call.
    __device__ dim3 tile(dim3* shared) {
        if (first_thread()) {
            const unsigned long long ticket = atomicAdd(tickets_, 1ull);
            const uint32_t tiles = numTiles();
            const uint32_t place = static_cast<uint32_t>(ticket % tiles);
            *shared = dim3(place, static_cast<uint32_t>(ticket / tiles), place + 1 == tiles);
        }
        __syncthreads();
        const dim3 drawn = *shared;
        __syncthreads();
        round_ = drawn.y, last_ = drawn.z;
        detail::launch_dependents();  // after the ticket: a later launch of this stage draws later tickets
        return draws_order() ? order_[drawn.x] : dim3(blockIdx.x, blockIdx.y, blockIdx.z);
    }

    // Called by all threads of the block: returns when everything that the tile awaits has been posted. With
    // `together` false only `thread` waits, and the caller synchronises the block after its last wait.
    __device__ CuSyncError wait(const dim3& tile, uint32_t thread = 0, bool together = true) {
        if (input_.isSync(tile, before_)) {
            if (threadIdx.x == thread && threadIdx.y == 0 && threadIdx.z == 0) await(tile);
            if (together) __syncthreads();
        }
        return CuSyncSuccess;
    }

    // Called by all threads of the block after its last store: posts the tile. Stores by TMA need fence.proxy.async
    // before it.
    __device__ CuSyncError post(const dim3& tile, uint32_t thread = 0) {
        if (!isProducer()) return CuSyncErrorNotProducer;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == thread && threadIdx.y == 0 && threadIdx.z == 0)
            detail::add_release_gpu(posted_ + detail::kSemaphoreStride * output_.tileIndex(tile, grid_),
                                    output_.postValue(tile, grid_));
        return CuSyncSuccess;
    }

  private:
    friend struct CuSync;

    __host__ __device__ static constexpr bool draws_order() { return !(Opts & AvoidCustomOrder); }

    static uint32_t next_number() {
        static uint32_t number = 0;
        return number++;
    }

    dim3* make_order(uint64_t tiles) const {
        std::vector<dim3> order(tiles, dim3(0, 0, 0));
        for (uint32_t z = 0; z < grid_.z; ++z)
            for (uint32_t y = 0; y < grid_.y; ++y)
                for (uint32_t x = 0; x < grid_.x; ++x) {
                    const uint32_t place = TileOrder().blockIndex(grid_, dim3(x, y, z));
                    if (place >= tiles || order[place].z != 0)
                        throw std::invalid_argument(
                            "tileprof::sync: a tile order gives two tiles one place, or a place outside the grid");
                    order[place] = dim3(x, y, z + 1);  // z + 1 marks an occupied position
                }
        for (dim3& tile : order) --tile.z;
        dim3* copy = detail::allocate<dim3>(tiles);
        detail::require(cudaMemcpy(copy, order.data(), tiles * sizeof(dim3), cudaMemcpyHostToDevice),
                        "cannot copy a tile order");
        return copy;
    }

    __device__ static bool first_thread() { return threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0; }

    // One thread.
    __device__ void await(const dim3& tile) {
        const uint32_t semaphore = input_.tileIndex(tile, before_);
        const uint32_t earlier = round_ * awaited_totals_[semaphore], value = input_.waitValue(tile, before_);
        const uint32_t* at = awaited_ + detail::kSemaphoreStride * semaphore;
        uint32_t seen = detail::load_acquire_gpu(at);
        if (!detail::reached(seen, earlier + value)) {
            const uint64_t begin = detail::global_timer();
            while (!detail::reached(seen = detail::load_acquire_gpu(at), earlier + value)) {
                detail::back_off();
                if (detail::load_acquire_gpu(&report_->stage) != 0) return;
                if (detail::global_timer() - begin <= TILEPROF_WAIT_NS) continue;
                if (atomicCAS(&report_->stage, 0u, number_ + 1) == 0) {
                    report_->x = tile.x, report_->y = tile.y, report_->z = tile.z, report_->semaphore = semaphore;
                    report_->seen = seen - earlier, report_->expected = value, report_->round = round_;
                }
                return;
            }
        }
        // The last block of the round also waits for the launches before, so that the end of this launch implies
        // theirs: a later launch without overlap may then rely on all of them.
        if (last_) detail::wait_for_launches_before();
    }

    dim3 grid_, before_;
    InputPolicy input_;
    OutputPolicy output_;
    uint32_t number_ = 0, round_ = 0, last_ = 0;
    dim3* order_ = nullptr;
    unsigned long long* tickets_ = nullptr;  // tickets drawn by blocks, then a count of wait kernels per stream
    detail::Report* report_ = nullptr;
    uint32_t *posted_ = nullptr, *totals_ = nullptr;
    const uint32_t *awaited_ = nullptr, *awaited_totals_ = nullptr;
    cudaStream_t stream_[detail::kWaitStreams] = {};
    int streams_ = 0;
};

struct CuSync {
    // From this call on, the consumer awaits the producer's semaphores.
    template <typename Producer, typename Consumer>
    static CuSyncError setProducerConsumerPair(Producer& producer, Consumer& consumer) {
        if (!Producer::isProducer()) return CuSyncErrorNotProducer;
        if (!Consumer::isConsumer()) return CuSyncErrorNotConsumer;
        if (producer.posted_ == nullptr) return CuSyncErrorNotInitialized;
        consumer.awaited_ = producer.posted_, consumer.awaited_totals_ = producer.totals_;
        consumer.before_ = producer.grid_;
        return CuSyncSuccess;
    }
};

// Throws std::runtime_error with the stage, tile and semaphore if a wait of the stage timed out. Synchronises with
// the device.
template <typename Stage>
void check(const Stage& stage) {
    const std::string problem = stage.problem();
    if (!problem.empty()) throw std::runtime_error("tileprof::sync: a wait gave up: " + problem);
}

namespace detail {

template <typename... Parameters, typename... Arguments>
void launch(bool overlapped, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
            Arguments&&... arguments) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t configuration{};
    configuration.gridDim = grid, configuration.blockDim = block, configuration.dynamicSmemBytes = shared,
    configuration.stream = stream;
    configuration.attrs = &attribute, configuration.numAttrs = overlapped ? 1 : 0;
    require(cudaLaunchKernelEx(&configuration, kernel, std::forward<Arguments>(arguments)...), "a launch failed");
}

}  // namespace detail

// Launches a kernel after all work of the stream: the first stage of a round.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
            Arguments&&... arguments) {
    detail::launch(false, kernel, grid, block, shared, stream, std::forward<Arguments>(arguments)...);
}

// sm_90 and newer: launches a later stage of a round in the same stream. Its blocks begin when all blocks of the
// launch before have begun, so that they cannot take their SMs, and no wait kernel is needed.
template <typename... Parameters, typename... Arguments>
void launch_overlapped(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                       Arguments&&... arguments) {
    detail::launch(true, kernel, grid, block, shared, stream, std::forward<Arguments>(arguments)...);
}

}  // namespace tileprof::sync
