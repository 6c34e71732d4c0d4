// Loads in im2col mode whose reads are known. Every element of the tensor holds its number plus one, and the fetched
// data is copied out of shared memory, so it tells itself what was read. Prints, one line per load, "reads CASE BLOCK
// BASE NUMBERS..." for test_gpu_im2col.py, and "map CASE WORDS..." with the driver's encoding.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                                  \
    do {                                                                                             \
        auto result = (call);                                                                        \
        if (result != 0) {                                                                           \
            fprintf(stderr, "%s: error %d in line %d\n", #call, static_cast<int>(result), __LINE__); \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

constexpr int kMostBytes = 16384;

// Coordinates, c first and n last, and offsets, w first.
struct Load {
    int at[5];
    uint16_t offset[3];
};

__device__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

template <int kDims>
__device__ void load(const CUtensorMap* map, void* to, uint64_t* barrier, const Load& l) {
    if constexpr (kDims == 3)
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
            "[%0], [%1, {%3,%4,%5}], [%2], {%6};" ::"r"(shared_address(to)),
            "l"(map), "r"(shared_address(barrier)), "r"(l.at[0]), "r"(l.at[1]), "r"(l.at[2]), "h"(l.offset[0])
            : "memory");
    if constexpr (kDims == 4)
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
            "[%0], [%1, {%3,%4,%5,%6}], [%2], "
            "{%7,%8};" ::"r"(shared_address(to)),
            "l"(map), "r"(shared_address(barrier)), "r"(l.at[0]), "r"(l.at[1]), "r"(l.at[2]), "r"(l.at[3]),
            "h"(l.offset[0]), "h"(l.offset[1])
            : "memory");
    if constexpr (kDims == 5)
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
            "[%0], [%1, {%3,%4,%5,%6,%7}], [%2], "
            "{%8,%9,%10};" ::"r"(shared_address(to)),
            "l"(map), "r"(shared_address(barrier)), "r"(l.at[0]), "r"(l.at[1]), "r"(l.at[2]), "r"(l.at[3]),
            "r"(l.at[4]), "h"(l.offset[0]), "h"(l.offset[1]), "h"(l.offset[2])
            : "memory");
}

template <int kDims>
__global__ void load_pixels(const __grid_constant__ CUtensorMap map, const Load* loads, uint32_t bytes, uint32_t* out) {
    __shared__ alignas(128) uint32_t stage[kMostBytes / 4];
    __shared__ uint64_t barrier;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
                     "r"(bytes)
                     : "memory");
        load<kDims>(&map, stage, &barrier, loads[blockIdx.x]);
        asm volatile(
            "{.reg .pred p;\n"
            "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n"
            "@!p bra again;}" ::"r"(shared_address(&barrier))
            : "memory");
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < bytes / 4; i += blockDim.x) out[blockIdx.x * (kMostBytes / 4) + i] = stage[i];
}

struct Case {
    int dims;
    uint64_t sizes[5];  // c first, in elements of 4 bytes
    int lower[3], upper[3];
    uint32_t channels, pixels;
    uint32_t steps[3];
    int taps[3];  // offsets go from 0 to these, less one
};

constexpr Case kCases[] = {
    {3, {32, 50, 3}, {0}, {0}, 32, 16, {1}, {1}},
    {3, {32, 50, 3}, {-2}, {-2}, 16, 16, {1}, {5}},
    {3, {48, 50, 3}, {-1}, {-3}, 32, 24, {2}, {3}},
    {4, {32, 9, 7, 3}, {-1, -1}, {-1, -1}, 32, 16, {1, 1}, {3, 3}},
    {4, {32, 9, 7, 3}, {0, 0}, {-2, -1}, 32, 12, {1, 1}, {3, 2}},
    {4, {64, 12, 10, 2}, {-1, -2}, {-2, -3}, 32, 32, {2, 1}, {4, 5}},
    {4, {64, 12, 10, 2}, {-1, -1}, {-1, -1}, 64, 20, {2, 2}, {3, 3}},
    {4, {40, 13, 11, 2}, {-3, 1}, {2, -1}, 32, 16, {1, 1}, {2, 2}},
    {5, {16, 6, 5, 4, 2}, {-1, -1, -1}, {-1, -1, -1}, 16, 32, {1, 1, 1}, {3, 3, 3}},
    {5, {16, 7, 6, 5, 2}, {0, -1, -2}, {-1, 0, -1}, 16, 24, {2, 1, 2}, {2, 3, 4}},
};

static CUtensorMap encode(const Case& c, void* base) {
    using Encode =
        CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                     const int*, const int*, cuuint32_t, cuuint32_t, const cuuint32_t*, CUtensorMapInterleave,
                     CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeIm2col", &function, 12000, cudaEnableDefault, &found));
    CUtensorMap map;
    cuuint64_t strides[4], run = 4;
    for (int d = 0; d + 1 < c.dims; ++d) strides[d] = run *= c.sizes[d];
    cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    for (int d = 0; d < c.dims - 2; ++d) steps[1 + d] = c.steps[d];
    CHECK(reinterpret_cast<Encode>(function)(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, c.dims, base, c.sizes, strides,
                                             c.lower, c.upper, c.channels, c.pixels, steps,
                                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
}

// Loads as a convolution makes them: runs of pixels through all bounding boxes, each with one tap, in slices of
// channels.
static std::vector<Load> loads_of(const Case& c) {
    int spatial = c.dims - 2, positions[3] = {1, 1, 1}, all = static_cast<int>(c.sizes[c.dims - 1]);
    for (int d = 0; d < spatial; ++d) {
        int span = static_cast<int>(c.sizes[1 + d]) - 1 + c.upper[d] - c.lower[d];
        positions[d] = span / static_cast<int>(c.steps[d]) + 1;
        all *= positions[d];
    }
    std::vector<Load> out;
    for (int first = 0, number = 0; first < all; first += static_cast<int>(c.pixels), ++number) {
        Load l{};
        int left = first;
        for (int d = 0; d < spatial; ++d) {
            l.at[1 + d] = c.lower[d] + left % positions[d] * static_cast<int>(c.steps[d]);
            l.offset[d] = static_cast<uint16_t>((number + d) % c.taps[d]);
            left /= positions[d];
        }
        l.at[c.dims - 1] = left;
        l.at[0] = static_cast<int>(number * c.channels % c.sizes[0]);
        out.push_back(l);
    }
    return out;
}

template <int kDims>
static void launch(const CUtensorMap& map, const Load* loads, size_t count, uint32_t bytes, uint32_t* out) {
    load_pixels<kDims><<<static_cast<unsigned>(count), 128>>>(map, loads, bytes, out);
}

int main() {
    for (size_t number = 0; number < sizeof kCases / sizeof *kCases; ++number) {
        const Case& c = kCases[number];
        size_t elements = 1;
        for (int d = 0; d < c.dims; ++d) elements *= c.sizes[d];
        std::vector<uint32_t> values(elements);
        for (size_t i = 0; i < elements; ++i) values[i] = static_cast<uint32_t>(i + 1);
        std::vector<Load> loads = loads_of(c);
        void *tensor = nullptr, *list = nullptr, *out = nullptr;
        CHECK(cudaMalloc(&tensor, elements * 4));
        CHECK(cudaMalloc(&list, loads.size() * sizeof(Load)));
        CHECK(cudaMalloc(&out, loads.size() * kMostBytes));
        CHECK(cudaMemcpy(tensor, values.data(), elements * 4, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(list, loads.data(), loads.size() * sizeof(Load), cudaMemcpyHostToDevice));
        CHECK(cudaMemset(out, 0, loads.size() * kMostBytes));
        CUtensorMap map = encode(c, tensor);
        printf("map %zu", number);
        for (int i = 0; i < 16; ++i) printf(" %08x", reinterpret_cast<const uint32_t*>(&map)[i]);
        uint32_t bytes = c.channels * c.pixels * 4;
        printf("\n");
        auto* to = static_cast<uint32_t*>(out);
        const auto* from = static_cast<const Load*>(list);
        if (c.dims == 3) launch<3>(map, from, loads.size(), bytes, to);
        if (c.dims == 4) launch<4>(map, from, loads.size(), bytes, to);
        if (c.dims == 5) launch<5>(map, from, loads.size(), bytes, to);
        CHECK(cudaDeviceSynchronize());
        std::vector<uint32_t> back(loads.size() * kMostBytes / 4);
        CHECK(cudaMemcpy(back.data(), out, back.size() * 4, cudaMemcpyDeviceToHost));
        for (size_t block = 0; block < loads.size(); ++block) {
            printf("reads %zu %zu %llu", number, block, reinterpret_cast<unsigned long long>(tensor));
            for (uint32_t i = 0; i < bytes / 4; ++i)
                if (uint32_t v = back[block * (kMostBytes / 4) + i]) printf(" %u", v - 1);
            printf("\n");
        }
    }
    return 0;
}
