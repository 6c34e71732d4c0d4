// Logs the launch sites of SPAWN's programs on a GPU: when a thread reaches a site, has decided there, and leaves it,
// and where it runs. For `nvcc -include`, before spawn.cuh.
#pragma once

namespace spawn_log {

struct Site {
    unsigned long long begin_ns, end_ns;
    int items, kept, decided_ns;  // since it came
    unsigned sm, block, thread;
};

struct Log {
    unsigned most, count;
    Site* sites;
};

__device__ Log log;

class Logged {
  public:
    __device__ explicit Logged(int items) {
        site_.items = items, site_.kept = 0, site_.decided_ns = -1;
        asm volatile("mov.u32 %0, %smid;" : "=r"(site_.sm));
        site_.begin_ns = now(), site_.block = blockIdx.x, site_.thread = threadIdx.x;
    }
    __device__ ~Logged() {
        site_.end_ns = now();
        const unsigned at = atomicAdd(&log.count, 1u);
        if (at < log.most) log.sites[at] = site_;
    }
    __device__ void decides() {
        if (site_.decided_ns < 0) site_.decided_ns = static_cast<int>(now() - site_.begin_ns);
    }
    __device__ void at(int) {
        decides();
        site_.kept = 1;
    }

  private:
    __device__ static unsigned long long now() {
        unsigned long long time;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
        return time;
    }
    Site site_;
};

}  // namespace spawn_log

#define SPAWN_SITE(site, items) spawn_log::Logged site(items)
#define SPAWN_PARENT(kernel, blocks, threads, ...) kernel<<<blocks, threads>>>(__VA_ARGS__)
#define SPAWN_CHILD(kernel, blocks, threads, ...) \
    site.decides(), kernel<<<blocks, threads, 0, cudaStreamFireAndForget>>>(__VA_ARGS__)
