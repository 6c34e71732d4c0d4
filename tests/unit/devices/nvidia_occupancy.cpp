// Regenerates nvidia_occupancy.csv with NVIDIA's own calculator (cuda_occupancy.h of any CUDA toolkit; no GPU):
//   g++ -I/usr/local/cuda/include nvidia_occupancy.cpp -o /tmp/occupancy && /tmp/occupancy > nvidia_occupancy.csv
#include <climits>
#include <cstdio>
#include <random>

#include <cuda_occupancy.h>

struct Chip {
    const char* name;
    int major, minor, threads_per_sm, shared_per_sm_kb, shared_per_block_kb, reserved;
};

const Chip chips[] = {
    {"V100", 7, 0, 2048, 96, 96, 0},      {"A100", 8, 0, 2048, 164, 163, 1024},  {"L4", 8, 9, 1536, 100, 99, 1024},
    {"H200", 9, 0, 2048, 228, 227, 1024}, {"B200", 10, 0, 2048, 228, 227, 1024},
};

int blocks(const Chip& chip, int threads, int registers, int shared_bytes) {
    cudaOccDeviceProp device;
    device.computeMajor = chip.major;
    device.computeMinor = chip.minor;
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = chip.threads_per_sm;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = 48 << 10;
    device.sharedMemPerMultiprocessor = chip.shared_per_sm_kb << 10;
    device.sharedMemPerBlockOptin = chip.shared_per_block_kb << 10;
    device.reservedSharedMemPerBlock = chip.reserved;
    device.numSms = 1;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024;
    kernel.numRegs = registers;
    kernel.sharedSizeBytes = 0;
    kernel.maxDynamicSharedSizeBytes = chip.shared_per_block_kb << 10;
    kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.numBlockBarriers = 1;
    cudaOccDeviceState state;
    cudaOccResult result;
    cudaOccError error =
        cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared_bytes);
    return error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1;
}

int main() {
    std::mt19937 random(1);
    const int threads[] = {1, 32, 33, 64, 96, 128, 160, 192, 256, 288, 384, 512, 640, 768, 1024};
    const int registers[] = {0, 16, 24, 32, 33, 40, 48, 64, 65, 72, 80, 96, 128, 168, 200, 255};
    const int shared_kb[] = {0, 0, 1, 8, 12, 16, 32, 48, 64, 99, 100, 163, 227};
    std::puts("device,threads,registers,shared_bytes,blocks_per_sm");
    for (const Chip& chip : chips)
        for (int i = 0; i < 120; i++) {
            int t = threads[random() % 15], r = registers[random() % 16];
            int s = shared_kb[random() % 13] * 1024 + (random() % 3 == 0 ? random() % 400 : 0);
            std::printf("%s,%d,%d,%d,%d\n", chip.name, t, r, s, blocks(chip, t, r, s));
        }
}
