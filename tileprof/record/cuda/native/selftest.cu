// Kernels whose accesses are known by construction, one per instruction class; selftest.py has the formulas.
// Instructions that the target architecture does not have are left out. Prints the addresses of its buffers as lines
// "buffer name address bytes", and whether the copies are right.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int kBlocks = 8, kThreads = 128;
constexpr int kWidth = 100, kHeight = 72;  // of the tensors; 400 bytes per row
[[maybe_unused]] constexpr int kBoxWidth = 32, kBoxHeight = 16;

#define CHECK(call)                                                                                  \
    do {                                                                                             \
        auto result = (call);                                                                        \
        if (result != 0) {                                                                           \
            fprintf(stderr, "%s: error %d in line %d\n", #call, static_cast<int>(result), __LINE__); \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

template <typename T>
__global__ void copy_plain(const T* in, T* out) {
    int i = blockIdx.x * kThreads + threadIdx.x;
    out[i] = in[i];
}

// One 4-byte word of every 64 bytes, blocks interleaved.
__global__ void read_strided(const uint32_t* in, uint32_t* out) {
    int i = threadIdx.x * kBlocks + blockIdx.x;
    uint32_t value = in[i * 16];
    if (value == 0xffffffffu) out[0] = value;  // never true: memory holds small numbers
}

__global__ void update_returning(uint32_t* counters, uint32_t* out) {
    uint32_t old = atomicAdd(&counters[blockIdx.x % 4 * 16], 1u);
    if (old == 0xffffffffu) out[0] = old;
}

__global__ void update_silent(uint32_t* counters) { atomicAdd(&counters[blockIdx.x % 4 * 16], 1u); }

__device__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

#if __CUDA_ARCH_LIST__ >= 800
#define HAS_COPY_ASYNC
#endif
#if __CUDA_ARCH_LIST__ >= 900
#define HAS_TENSOR_MAPS
#endif

#ifdef HAS_COPY_ASYNC
__global__ void copy_async(const uint4* in, uint32_t* out) {
    __shared__ uint4 stage[kThreads];
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&stage[threadIdx.x])),
                 "l"(in + blockIdx.x * kThreads + threadIdx.x));
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    out[blockIdx.x * kThreads + threadIdx.x] = stage[threadIdx.x].x;
}
#endif

#ifdef HAS_TENSOR_MAPS
__device__ void barrier_wait(uint64_t* barrier) {
    asm volatile(
        "{.reg .pred p;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n"
        "@!p bra again;}" ::"r"(shared_address(barrier))
        : "memory");
}

__global__ void copy_bulk(const char* in, char* out, uint32_t* sums) {
    __shared__ alignas(128) char stage[1024];
    __shared__ uint64_t barrier;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(shared_address(&barrier))
                     : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" ::"r"(
                         shared_address(stage)),
                     "l"(in + blockIdx.x * 1024), "r"(shared_address(&barrier))
                     : "memory");
        barrier_wait(&barrier);
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" ::"l"(out + blockIdx.x * 1024),
                     "r"(shared_address(stage))
                     : "memory");
        asm volatile(
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 64;" ::"l"(sums + blockIdx.x * 16),
            "r"(shared_address(stage))
            : "memory");
        asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// Copies box (x, y) of one tensor to the same box of another, with partial boxes at two edges.
__device__ void copy_box(const CUtensorMap* from, const CUtensorMap* to, int x, int y) {
    __shared__ alignas(128) float stage[kBoxWidth * kBoxHeight];
    __shared__ uint64_t barrier;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
                     "r"(static_cast<uint32_t>(sizeof stage))
                     : "memory");
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
                "r"(shared_address(stage)),
            "l"(from), "r"(x * kBoxWidth), "r"(y * kBoxHeight), "r"(shared_address(&barrier))
            : "memory");
        barrier_wait(&barrier);
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(to),
                     "r"(x * kBoxWidth), "r"(y * kBoxHeight), "r"(shared_address(stage))
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
    }
}

__global__ void copy_tensor(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to) {
    copy_box(&from, &to, blockIdx.x, blockIdx.y);
}

__global__ void __cluster_dims__(2, 1, 1)
    copy_tensor_clusters(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to) {
    copy_box(&from, &to, blockIdx.x, blockIdx.y);
}

// Blocks take boxes from a counter: replays cannot find the writers.
__global__ void copy_tensor_dynamic(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to,
                                    uint32_t* counter, int wide) {
    __shared__ uint32_t next;
    if (threadIdx.x == 0) next = atomicAdd(counter, 1u);
    __syncthreads();
    copy_box(&from, &to, next % wide, next / wide);
}

static CUtensorMap encode(void* base) {
    using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
    CUtensorMap map;
    cuuint64_t sizes[] = {kWidth, kHeight}, strides[] = {kWidth * sizeof(float)};
    cuuint32_t box[] = {kBoxWidth, kBoxHeight}, steps[] = {1, 1};
    CHECK(reinterpret_cast<Encode>(function)(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, base, sizes, strides, box, steps,
                                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
}
#endif

template <typename T>
static T* buffer(const char* name, size_t bytes) {
    void* p = nullptr;
    CHECK(cudaMalloc(&p, bytes));
    CHECK(cudaMemset(p, 1, bytes));
    printf("buffer %s %llu %zu\n", name, reinterpret_cast<unsigned long long>(p), bytes);
    return static_cast<T*>(p);
}

int main() {
    constexpr size_t kBytes = kBlocks * kThreads * 64;
    auto* in = buffer<char>("in", kBytes);
    auto* out = buffer<char>("out", kBytes);
    auto* counters = buffer<uint32_t>("counters", 4096);
    auto* from = buffer<float>("from", kWidth * kHeight * sizeof(float));
    auto* to = buffer<float>("to", kWidth * kHeight * sizeof(float));
    std::vector<float> values(kWidth * kHeight);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.37f + 1.0f;
    CHECK(cudaMemcpy(from, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));

    copy_plain<<<kBlocks, kThreads>>>(reinterpret_cast<uint8_t*>(in), reinterpret_cast<uint8_t*>(out));
    copy_plain<<<kBlocks, kThreads>>>(reinterpret_cast<uint16_t*>(in), reinterpret_cast<uint16_t*>(out));
    copy_plain<<<kBlocks, kThreads>>>(reinterpret_cast<uint32_t*>(in), reinterpret_cast<uint32_t*>(out));
    copy_plain<<<kBlocks, kThreads>>>(reinterpret_cast<uint2*>(in), reinterpret_cast<uint2*>(out));
    copy_plain<<<kBlocks, kThreads>>>(reinterpret_cast<uint4*>(in), reinterpret_cast<uint4*>(out));
    read_strided<<<kBlocks, kThreads>>>(reinterpret_cast<uint32_t*>(in), reinterpret_cast<uint32_t*>(out));
    update_returning<<<kBlocks, kThreads>>>(counters, reinterpret_cast<uint32_t*>(out));
    update_silent<<<kBlocks, kThreads>>>(counters);
#ifdef HAS_COPY_ASYNC
    copy_async<<<kBlocks, kThreads>>>(reinterpret_cast<uint4*>(in), reinterpret_cast<uint32_t*>(out));
#endif
#ifdef HAS_TENSOR_MAPS
    copy_bulk<<<kBlocks, 32>>>(in, out, counters + 256);

    CUtensorMap from_map = encode(from), to_map = encode(to);
    dim3 boxes((kWidth + kBoxWidth - 1) / kBoxWidth, (kHeight + kBoxHeight - 1) / kBoxHeight);
    copy_tensor<<<boxes, 32>>>(from_map, to_map);
    CHECK(cudaMemset(to, 0, values.size() * sizeof(float)));
    copy_tensor_clusters<<<boxes, 32>>>(from_map, to_map);
    CHECK(cudaMemset(counters, 0, 4));
    copy_tensor_dynamic<<<boxes.x * boxes.y, 32>>>(from_map, to_map, counters, boxes.x);
#else
    CHECK(cudaMemcpy(to, from, values.size() * sizeof(float), cudaMemcpyDeviceToDevice));
#endif
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(out, in, 4096, cudaMemcpyDeviceToDevice));

    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    copy_plain<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<uint4*>(in), reinterpret_cast<uint4*>(out));
    copy_plain<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<uint4*>(out), reinterpret_cast<uint4*>(in));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));

    std::vector<float> back(values.size());
    CHECK(cudaMemcpy(back.data(), to, back.size() * sizeof(float), cudaMemcpyDeviceToHost));
    printf("copied %s\n", back == values ? "right" : "wrong");
    return back == values ? 0 : 1;
}
