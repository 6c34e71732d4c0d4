// Marks ranges as C++ programs do: in a domain, with registered and wide names, with scopes. Each launch has its own
// grid.
#include <nvtx3/nvToolsExt.h>

#include <nvtx3/nvtx3.hpp>

struct mine {
    static constexpr char const* name{"mine"};
};
struct step {
    static constexpr char const* message{"step"};
};

__global__ void add(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1; }

int main() {
    float* x = nullptr;
    nvtxRangePushA("stage before CUDA");
    if (cudaMalloc(&x, 64 * 128 * sizeof(float)) != cudaSuccess) return 1;
    add<<<1, 128>>>(x);
    nvtxRangePop();
    add<<<2, 128>>>(x);
    {
        nvtx3::scoped_range_in<mine> scope{"stage"};
        add<<<3, 128>>>(x);
        nvtx3::scoped_range_in<mine> inner{nvtx3::registered_string_in<mine>::get<step>()};
        add<<<4, 128>>>(x);
    }
    {
        nvtx3::scoped_range_in<mine> scope{nvtx3::registered_string_in<mine>::get<step>()};
        add<<<5, 128>>>(x);
    }
    {
        nvtx3::scoped_range scope{"stage"};
        add<<<6, 128>>>(x);
    }
    nvtxRangePushW(L"\u00e9tage");
    add<<<7, 128>>>(x);
    nvtxRangePop();
    add<<<8, 128>>>(x);
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
}
