// Random delays in the examples of device code, for `nvcc -include`: threads wait up to DELAYS_NS at places where
// another order of blocks or children could change a result. They sleep; with DELAYS_AWAKE they poll the clock, and
// launch as in programs whose threads do not sleep.
#pragma once

#ifndef DELAYS_NS
#define DELAYS_NS 20000
#endif

namespace delays {

__device__ inline unsigned long long now() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}

// Differs between threads, and between runs by the clock.
__device__ inline void wait_at_random(unsigned one_in) {
    const unsigned long long place = blockIdx.x * 2048ull + threadIdx.x;
    unsigned long long word = clock64() * 0x9E3779B97F4A7C15ull + place * 0xD1B54A32D192ED03ull;
    word = (word ^ word >> 29) * 0xBF58476D1CE4E5B9ull;
    if ((word >> 40) % one_in != 0) return;
    const unsigned long long until = now() + (word >> 16) % DELAYS_NS;
    while (now() < until) {
#ifndef DELAYS_AWAKE
        __nanosleep(100);
#endif
    }
}

// An item of SPAWN's programs whose child is delayed.
template <class Item>
struct Late {
    Item item;
    __device__ void operator()(int i) const {
        wait_at_random(2);
        item(i);
    }
};

// A launch site at which a thread is delayed before it decides.
struct Site {
    __device__ explicit Site(int) { wait_at_random(4); }
    __device__ void at(int) {}
};

}  // namespace delays

#ifndef DELAYS_AWAKE
#define SPAWN_THREADS_SLEEP 1
#endif
#define SPAWN_PARENT(kernel, blocks, threads, ...) kernel<<<blocks, threads>>>(__VA_ARGS__)
#define SPAWN_CHILD(kernel, blocks, threads, control, item, items) \
    child<delays::Late<Item>><<<blocks, threads, 0, cudaStreamFireAndForget>>>(control, {item}, items)
#define SPAWN_SITE(site, items) delays::Site site(items)
#define BLOOM_HOLD() delays::wait_at_random(128)
