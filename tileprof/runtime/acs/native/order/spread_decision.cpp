#include "order/spread_decision.h"

#include <algorithm>

namespace tileprof::acs {

namespace {

constexpr uint64_t kSamples = 64;         // maximum number of samples per decision
constexpr uint64_t kLongestRest = 1 << 18;  // number of launches: a few seconds of a program that launches all the time

}  // namespace

SpreadDecision::SpreadDecision(uint64_t period)
    : period_(period), every_(std::max<uint64_t>(1, period / kSamples)), rest_(period) {}

bool SpreadDecision::due() {
    if (period_ == 0) return false;
    ++launches_;
    if (resting_ && launches_ <= rest_) return false;
    return launches_ % every_ == 0;
}

void SpreadDecision::sampled(bool idle) {
    ++samples_;
    idle_ += idle;
    const uint64_t wanted = period_ / every_ / (resting_ ? 4 : 1);
    if (samples_ >= std::max<uint64_t>(1, wanted)) decide();
}

// Half of the samples begin a rest, and a quarter of them renew one, because the GPU is busy for longer in stream
// order.
void SpreadDecision::decide() {
    if (resting_) {
        resting_ = idle_ * 4 >= samples_;
        rest_ = resting_ ? std::min(rest_ * 2, kLongestRest) : rest_;
    } else {
        resting_ = idle_ * 2 >= samples_;
        if (!resting_) rest_ = period_;
    }
    launches_ = samples_ = idle_ = 0;
}

}  // namespace tileprof::acs
