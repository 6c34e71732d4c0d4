// One physical memory at several addresses: written at one and read at the other, moved to a third, imported again, as
// a ring whose start follows its end, and while access was revoked; and its handle given to other memory. The program
// prints the handles that it saw, and "right" if its results are right.
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdio.h>

#include "checked.cuh"

constexpr int N = 4096;

__global__ void written(int* out, int from) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = from + i;
}

__global__ void doubled(const int* in, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = 2 * in[i];
}

size_t bytes;
CUmemAllocationProp where;

int allow(CUdeviceptr at, size_t size, CUmemAccess_flags flags) {
    CUmemAccessDesc access = {};
    access.location = where.location;
    access.flags = flags;
    OK(DRIVER(cuMemSetAccess)(at, size, &access, 1));
    return 0;
}

int map(CUdeviceptr at, CUmemGenericAllocationHandle memory) {
    OK(DRIVER(cuMemMap)(at, bytes, 0, memory, 0));
    return allow(at, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

int doubles(CUdeviceptr in, int* out, int from) {
    static int host[N];
    doubled<<<N / 128, 128>>>(reinterpret_cast<const int*>(in), out);
    OK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; ++i)
        if (host[i] != 2 * (from + i)) return printf("wrong at %d\n", i), 1;
    return 0;
}

int main() {
    OK(cudaFree(nullptr));
    where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    where.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    where.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(DRIVER(cuMemGetAllocationGranularity)(&bytes, &where, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CUmemGenericAllocationHandle memory, other, again;
    OK(DRIVER(cuMemCreate)(&memory, bytes, &where, 0));
    CUdeviceptr first, second, third, fourth;
    for (CUdeviceptr* place : {&first, &second, &third, &fourth})
        OK(DRIVER(cuMemAddressReserve)(place, bytes, 0, 0, 0));
    int* out;
    OK(cudaMalloc(&out, N * sizeof(int)));

    if (map(first, memory) || map(second, memory)) return 1;
    written<<<N / 128, 128>>>(reinterpret_cast<int*>(first), 5);
    if (doubles(second, out, 5)) return 1;
    OK(DRIVER(cuMemUnmap)(first, bytes));
    if (map(third, memory) || doubles(third, out, 5)) return 1;

    // Imported in the process that exported it: still one memory.
    int file = -1;
    OK(DRIVER(cuMemExportToShareableHandle)(&file, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(DRIVER(cuMemImportFromShareableHandle)(&again, reinterpret_cast<void*>(static_cast<long>(file)),
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    if (map(fourth, again)) return 1;
    written<<<N / 128, 128>>>(reinterpret_cast<int*>(fourth), 9);
    if (doubles(second, out, 9)) return 1;

    // A ring: an access that begins before the end continues at the start. Both mappings are allowed at once.
    CUdeviceptr ring;
    OK(DRIVER(cuMemAddressReserve)(&ring, 2 * bytes, 0, 0, 0));
    for (size_t at : {size_t(0), bytes}) OK(DRIVER(cuMemMap)(ring + at, bytes, 0, memory, 0));
    if (allow(ring, 2 * bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) return 1;
    written<<<N / 128, 128>>>(reinterpret_cast<int*>(ring + bytes - N / 2 * sizeof(int)), 11);
    doubled<<<N / 256, 128>>>(reinterpret_cast<const int*>(second), out);
    OK(cudaDeviceSynchronize());
    OK(DRIVER(cuMemUnmap)(ring, 2 * bytes));

    written<<<N / 128, 128>>>(reinterpret_cast<int*>(third), 13);
    OK(cudaDeviceSynchronize());
    if (allow(second, bytes, CU_MEM_ACCESS_FLAGS_PROT_NONE) || allow(second, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
        return 1;
    if (doubles(second, out, 13)) return 1;
    OK(cudaDeviceSynchronize());
    for (CUdeviceptr place : {second, third, fourth}) OK(DRIVER(cuMemUnmap)(place, bytes));
    OK(DRIVER(cuMemRelease)(memory));
    OK(DRIVER(cuMemRelease)(again));

    OK(DRIVER(cuMemCreate)(&other, bytes, &where, 0));
    if (map(first, other)) return 1;
    written<<<N / 128, 128>>>(reinterpret_cast<int*>(first), 7);
    if (doubles(first, out, 7)) return 1;
    printf("imported handle is %s, the next memory's is %s\nright\n", again == memory ? "the same" : "another",
           other == memory || other == again ? "one given out again" : "a new one");
}
