#include "order/late.h"

namespace tileprof::acs {

namespace {

// Sleeps for a random time in [0, 2 * most_ns). The clock is part of the seed, so that each replay of a graph
// differs.
constexpr char kSleep[] = R"(
.version 6.3
.target sm_70
.address_size 64
.visible .entry tileprof_sleep(.param .u32 most_ns, .param .u32 salt)
{
    .reg .u32 %most, %random, %now;
    ld.param.u32 %most, [most_ns];
    ld.param.u32 %random, [salt];
    mov.u32 %now, %clock;
    xor.b32 %random, %random, %now;
    mul.lo.u32 %random, %random, 2654435761;
    mul.hi.u32 %random, %random, %most;
    nanosleep.u32 %random;
    ret;
}
)";

}  // namespace

CUresult Late::delay(CUstream stream) {
    if (most_ns_ == 0) return kSuccess;
    const Driver& driver = Driver::get();
    if (sleep_ == nullptr) {
        Relaxed relaxed;
        void* module = nullptr;
        if (CUresult failure = driver.cuModuleLoadData(&module, kSleep)) return failure;
        if (CUresult failure = driver.cuModuleGetFunction(&sleep_, module, "tileprof_sleep")) return failure;
    }
    unsigned salt = static_cast<unsigned>(generator_());
    void* parameters[] = {&most_ns_, &salt};
    return driver.cuLaunchKernel(sleep_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

}  // namespace tileprof::acs
