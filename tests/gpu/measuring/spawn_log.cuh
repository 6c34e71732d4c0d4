// Logs the launch sites of SPAWN's programs on a GPU: when a thread comes to a site and leaves it, and what the
// controller could see then. For `nvcc -include`, before spawn.cuh.
#pragma once

namespace spawn_log {

struct Site {
    unsigned long long begin_ns, end_ns;
    int items, kept, waiting;  // child blocks that were launched and have not ended
    unsigned ended;            // child blocks
    unsigned block, thread;
};

struct Log {
    unsigned most, count;
    Site* sites;
};

__device__ Log log;

class Logged {
  public:
    template <class Control>
    __device__ Logged(const Control* control, int items) {
        site_.items = items, site_.kept = 0;
        site_.waiting = *const_cast<const volatile int*>(&control->waiting);
        site_.ended = static_cast<unsigned>(*const_cast<const volatile unsigned long long*>(&control->total) >> 40);
        site_.begin_ns = now(), site_.block = blockIdx.x, site_.thread = threadIdx.x;
    }
    __device__ ~Logged() {
        site_.end_ns = now();
        const unsigned at = atomicAdd(&log.count, 1u);
        if (at < log.most) log.sites[at] = site_;
    }
    __device__ void at(int) { site_.kept = 1; }

  private:
    __device__ static unsigned long long now() {
        unsigned long long time;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
        return time;
    }
    Site site_;
};

}  // namespace spawn_log

#define SPAWN_SITE(site, items) spawn_log::Logged site(control, items)
