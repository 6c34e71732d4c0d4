// Programs with nested parallelism under every rule of spawn.cuh: the same results, and what each takes.
//
//     program [repeats [scale [window_log2 [least [untried [name ...]]]]]]
//
// First it measures what launches cost here, which the controller then takes as its costs. A line of JSON for each
// program.
#include <chrono>

#include "programs.cuh"

namespace {

Control control_of(spawn::Rule rule, int threshold, int least, spawn::Costs costs, int window_log2, int untried = 0) {
    Control control = {};
    control.rule = rule, control.threshold = threshold, control.least = least, control.costs = costs,
    control.window_log2 = window_log2, control.untried = untried;
    return control;
}

struct Nothing {
    __device__ void operator()(int) const {}
};

__global__ void launch_one_each(Control* control) { spawn::each(control, 1, Nothing{}); }

double timed_us(const std::function<void()>& work) {
    CHECK(cudaDeviceSynchronize());
    const auto begin = std::chrono::steady_clock::now();
    work();
    CHECK(cudaDeviceSynchronize());
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

// The first child's price, and each further one's where many threads launch: medians.
spawn::Costs measured_costs() {
    const auto median = [](spawn::Rule rule, int blocks, int threads) {
        std::vector<double> all;
        for (int i = 0; i < 9; ++i) {
            Buffer<Control> control(std::vector<Control>{control_of(rule, 1, 1, {0, 0}, 16)});
            all.push_back(timed_us([&] { SPAWN_PARENT(launch_one_each, blocks, threads, control.at); }));
        }
        std::nth_element(all.begin(), all.begin() + 4, all.end());
        return all[4];
    };
    const double none = median(spawn::FLAT, 1, 1), one = median(spawn::ALWAYS, 1, 1),
                 many = median(spawn::ALWAYS, 64, 32);
    return {static_cast<float>(1000 * std::max(0.0, one - none)),
            static_cast<float>(1000 * std::max(0.0, many - one) / 2047)};
}

// Whether children start while parent blocks wait: how many of the parent's blocks began after the first child.
struct Order {
    u64 child_ns, parents_after;
};

struct Mark {
    Order* order;
    __device__ void operator()(int) const { atomicMax(&order->child_ns, spawn::time_ns()); }
};

constexpr u64 PARENT_NS = 30000;

__global__ void waves(Control* control, Order* order) {
    if (threadIdx.x != 0) return;
    const u64 begin = spawn::time_ns(), child = spawn::seen(order->child_ns);
    if (blockIdx.x == 0) spawn::each(control, 1, Mark{order});
    if (child != 0) atomicAdd(&order->parents_after, u64(1));
    while (spawn::time_ns() - begin < PARENT_NS) {
    }
}

// Number of blocks of full width, which are many waves. Measured is the share that began after the first child.
constexpr int ORDER_BLOCKS = 132 * 8 * 8;

double measured_order() {
    Buffer<Control> control(std::vector<Control>{control_of(spawn::ALWAYS, 1, 1, {0, 0}, 16)});
    Buffer<Order> order(std::vector<Order>{{0, 0}});
    SPAWN_PARENT(waves, ORDER_BLOCKS, PARENT_THREADS, control.at, order.at);
    CHECK(cudaDeviceSynchronize());
    return static_cast<double>(order.get()[0].parents_after) / ORDER_BLOCKS;
}

// A round of a program that has nothing to do: memory filled, a launch, a number read.
double measured_round_us() {
    Buffer<Control> control(std::vector<Control>{control_of(spawn::FLAT, 1, 1, {0, 0}, 16)});
    Buffer<int> size(1);
    const auto rounds = [&](int count) {
        return timed_us([&] {
            for (int i = 0; i < count; ++i) {
                size.fill(0);
                SPAWN_PARENT(launch_one_each, 1, 1, control.at);
                size.get();
            }
        });
    };
    rounds(10);
    return rounds(100) / 100;
}

double mean(u64 sum, u64 count) { return count > 0 ? static_cast<double>(sum) / static_cast<double>(count) : 0; }

double child_ns(const Control& control) {
    return mean(control.total & ((u64(1) << spawn::ENDED_SHIFT) - 1), control.total >> spawn::ENDED_SHIFT);
}

struct Outcome {
    double us;
    Control control;
    std::vector<u64> result;
};

Outcome outcome_of(const Work& work, const Control& rule, int repeats) {
    std::vector<double> all;
    Outcome outcome;
    for (int i = 0; i < repeats; ++i) {
        Buffer<Control> control(std::vector<Control>{rule});
        work.begin();
        all.push_back(timed_us([&] { work.run(control.at); }));
        outcome.control = control.get()[0];
    }
    std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
    outcome.us = all[all.size() / 2];
    outcome.result = work.result();
    return outcome;
}

}  // namespace

int main(int count, char** arguments) {
    const auto number = [&](int at, int otherwise) { return count > at ? std::atoi(arguments[at]) : otherwise; };
    const int repeats = number(1, 5), scale = number(2, 16), window_log2 = number(3, 16), least = number(4, 32),
              untried = number(5, 1024);
    CHECK(cudaDeviceSetLimit(cudaLimitDevRuntimePendingLaunchCount, MOST_PENDING));
    CHECK(cudaDeviceSetLimit(cudaLimitStackSize, STACK_BYTES));  // the nested programs call themselves
    const spawn::Costs costs = measured_costs();
    std::printf(
        "{\"first_ns\": %.0f, \"another_ns\": %.1f, \"window_log2\": %d, \"untried\": %d, \"scale\": %d, "
        "\"round_us\": %.2f, \"parents_after_child\": %.3f}\n",
        costs.first_ns, costs.another_ns, window_log2, untried, scale, measured_round_us(), measured_order());
    std::fflush(stdout);
    int failures = 0;
    for (const Work& work : works_of(scale)) {
        if (count > 6 && std::find(arguments + 6, arguments + count, work.name) == arguments + count) continue;
        std::string problems;
        const Outcome flat = outcome_of(work, control_of(spawn::FLAT, 0, 1, costs, window_log2), repeats);
        if (const std::string mismatch = work.mismatch(flat.result); !mismatch.empty())
            problems += " flat: " + mismatch + ".";
        const auto compared = [&](const char* name, const Control& rule) {
            Outcome outcome = outcome_of(work, rule, repeats);
            if (outcome.result != flat.result) problems += std::string(" ") + name + " differs from flat.";
            return outcome;
        };
        const Outcome always = compared("always", control_of(spawn::ALWAYS, 0, 1, costs, window_log2));
        const Outcome written =
            compared("threshold", control_of(spawn::THRESHOLD, work.threshold, 1, costs, window_log2));
        const Outcome controlled =
            compared("spawn", control_of(spawn::CONTROLLED, 0, least, costs, window_log2, untried));
        const Outcome warp = compared("warp", control_of(spawn::BY_WARP, 0, least, costs, window_log2));
        double best = flat.us;
        int best_threshold = 0;
        for (int threshold = 1; threshold <= 1 << 14; threshold *= 4)
            if (const double us =
                    compared("a threshold", control_of(spawn::THRESHOLD, threshold, 1, costs, window_log2)).us;
                us < best)
                best = us, best_threshold = threshold;
        failures += !problems.empty();
        std::printf(
            "{\"name\": \"%s\", \"right\": %s, \"flat_us\": %.1f, \"always_us\": %.1f, \"always_launched\": %u, "
            "\"refused\": %u, \"threshold_us\": %.1f, "
            "\"threshold_launched\": %u, \"best_us\": %.1f, \"best_threshold\": %d, \"spawn_us\": %.1f, "
            "\"spawn_launched\": %u, \"spawn_kept\": %u, \"warp_us\": %.1f, \"warp_launched\": %u, "
            "\"always_child_ns\": %.0f, \"spawn_child_ns\": %.0f, \"own_item_ns\": %.1f, \"said\": \"%s\"}\n",
            work.name.c_str(), problems.empty() ? "true" : "false", flat.us, always.us, always.control.launched,
            always.control.refused, written.us, written.control.launched, best, best_threshold, controlled.us,
            controlled.control.launched, controlled.control.kept, warp.us, warp.control.launched,
            child_ns(always.control), child_ns(controlled.control), mean(warp.control.own_ns, warp.control.own_items),
            problems.c_str());
        std::fflush(stdout);
    }
    return failures != 0;
}
