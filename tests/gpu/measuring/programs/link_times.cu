// Measures the cost of a GPU block's word to a CPU thread and its answer, over page-locked memory: the constants of the
// co-pilot's simulation.
//
//     nvcc -O2 -std=c++17 -arch=sm_90 link_times.cu -o link_times && ./link_times
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "link.cuh"

constexpr int ROUNDS = 2000, WARM = 100, MOST = 132;

// Each block sends its round and waits for the answer. Returns times of all rounds and blocks; 0 if no answer came in
// time.
__global__ void ask(u64* ring, u64* answers, unsigned* place, int blocks, u64* times, u64* dirty, bool writes) {
    const int block = blockIdx.x;
    for (int round = 0; round < ROUNDS; ++round) {
        if (writes) dirty[block * 4096 + round % 4096] = round;  // a release has to wait for something
        const u64 begin = clock64();
        const unsigned at = atomicAdd(place, 1u);
        store(ring + at % 4096, u64(at + 1) << 32 | u64(block));
        const u64 start = now_ns();
        while (load(answers + 16 * block) != u64(round + 1))
            if (now_ns() - start > LIMIT_NS) return;
        times[u64(block) * ROUNDS + round] = clock64() - begin;
    }
}

// Reads one word of the CPU's memory again and again, and writes words.
__global__ void read_and_write(u64* word, u64* cycles) {
    u64 begin = clock64(), sum = 0;
    for (int i = 0; i < 1000; ++i) sum += load(word);
    cycles[0] = (clock64() - begin) / 1000;
    begin = clock64();
    for (int i = 0; i < 1000; ++i) store(word + 16, sum + i);
    cycles[1] = (clock64() - begin) / 1000;
}

int main() {
    u64 *ring, *answers, *times, *dirty;
    unsigned* place;
    CHECK(cudaHostAlloc(&ring, 4096 * 8, cudaHostAllocDefault));
    CHECK(cudaHostAlloc(&answers, MOST * 128, cudaHostAllocDefault));
    CHECK(cudaMalloc(&times, MOST * ROUNDS * 8));
    CHECK(cudaMalloc(&dirty, MOST * 4096 * 8));
    CHECK(cudaMalloc(&place, 4));
    int khz;
    CHECK(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
    u64 host[2];
    std::memset(answers, 0, MOST * 128);
    read_and_write<<<1, 1>>>(answers, times);
    CHECK(cudaMemcpy(host, times, 16, cudaMemcpyDeviceToHost));
    std::printf("read of a word %.0f ns, release of a word %.0f ns (at %.2f GHz)\n", host[0] * 1e6 / khz,
                host[1] * 1e6 / khz, khz / 1e6);
    for (const int blocks : {1, 8, 32, 132})
        for (const bool writes : {false, true}) {
            std::memset(ring, 0, 4096 * 8);
            std::memset(answers, 0, MOST * 128);
            CHECK(cudaMemset(times, 0, MOST * ROUNDS * 8));
            CHECK(cudaMemset(place, 0, 4));
            std::atomic<bool> leaving{false};
            u64 decisions = 0, busy = 0;
            std::thread pilot([&] {
                std::vector<u64> rounds(MOST);
                for (unsigned heard = 0; !leaving.load(std::memory_order_relaxed);) {
                    const u64 seen = __atomic_load_n(ring + heard % 4096, __ATOMIC_ACQUIRE);
                    if (unsigned(seen >> 32) != heard + 1) continue;
                    ++heard, ++decisions;
                    const unsigned block = unsigned(seen);
                    if (block < MOST) __atomic_store_n(answers + 16 * block, ++rounds[block], __ATOMIC_RELEASE);
                }
            });
            const auto begin = std::chrono::steady_clock::now();
            ask<<<blocks, 1>>>(ring, answers, place, blocks, times, dirty, writes);
            CHECK(cudaDeviceSynchronize());
            busy =
                std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count();
            leaving = true;
            pilot.join();
            const std::vector<u64> used = sorted_rounds(times, blocks, ROUNDS, WARM);
            if (used.empty()) {
                std::printf("%3d blocks: no answer\n", blocks);
                continue;
            }
            std::printf(
                "%3d blocks%s: round trip p10 %.0f, median %.0f, p90 %.0f ns; %.2f M decisions/s; %zu of %d rounds\n",
                blocks, writes ? ", writing" : "", used[used.size() / 10] * 1e6 / khz,
                used[used.size() / 2] * 1e6 / khz, used[used.size() * 9 / 10] * 1e6 / khz, decisions * 1e3 / busy,
                used.size(), blocks * (ROUNDS - WARM));
            std::fflush(stdout);
        }
}
