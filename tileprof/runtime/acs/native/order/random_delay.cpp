#include "order/random_delay.h"

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

CUresult RandomDelay::load() {
    if (sleep_ != nullptr) return kSuccess;
    Relaxed relaxed;
    void* module = nullptr;
    if (CUresult failure = Driver::get().cuModuleLoadData(&module, kSleep)) return failure;
    return Driver::get().cuModuleGetFunction(&sleep_, module, "tileprof_sleep");
}

CUresult RandomDelay::delay(CUstream stream) {
    if (most_ns_ == 0) return kSuccess;
    if (CUresult failure = load()) return failure;
    unsigned salt = static_cast<unsigned>(generator_());
    void* parameters[] = {&most_ns_, &salt};
    return Driver::get().cuLaunchKernel(sleep_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

CUresult RandomDelay::delay(CUgraph graph, std::vector<CUgraphNode>* parents) {
    if (most_ns_ == 0) return kSuccess;
    if (CUresult failure = load()) return failure;
    unsigned salt = static_cast<unsigned>(generator_());
    void* parameters[] = {&most_ns_, &salt};
    KernelNode sleep{sleep_, {1, 1, 1}, {1, 1, 1}, 0, parameters, nullptr, nullptr, nullptr};
    CUgraphNode node = nullptr;
    CUresult result = Driver::get().cuGraphAddKernelNode_v2(&node, graph, parents->data(), parents->size(), &sleep);
    if (result == kSuccess) *parents = {node};
    return result;
}

}  // namespace tileprof::acs
