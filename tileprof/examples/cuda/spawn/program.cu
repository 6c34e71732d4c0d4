// Programs with nested parallelism under every rule of spawn.cuh: the same results, and the time of each rule.
//
//     program [OPTION ...] [repeats [scale [window_log2 [least [untried [name ...]]]]]]
//
// First it measures what launches cost here; the controller takes these costs, unless others are given in nanoseconds.
// Prints a line of JSON for each program: medians, and under "all" the times and launches of each repeat. The rules
// take turns, after one round that is not counted, so that a first launch or a slow moment of the machine does not
// affect one rule alone. Options: --costs=FIRST,ANOTHER; --no-search leaves out the search for the best threshold;
// --flat-once runs flat in the first round only, which is then counted; --graph=FILE adds bfs-file, sssp-file and
// colouring-file, which run on a graph with an edge, two numbers, per line of the file.
#include <chrono>

#include "programs.cuh"

namespace {

using spawn::u32;

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

double median_of(std::vector<double> all) {
    std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
    return all[all.size() / 2];
}

// The cost of the first child, and of each further one if many threads launch: medians of repeats that take turns,
// after some that are not counted.
spawn::Costs measured_costs() {
    constexpr int FIRST_REPEATS = 5, REPEATS = 25;
    const auto once = [](spawn::Rule rule, int blocks, int threads) {
        Buffer<Control> control(std::vector<Control>{control_of(rule, 1, 1, {0, 0}, 16)});
        return timed_us([&] { SPAWN_PARENT(launch_one_each, blocks, threads, control.at); });
    };
    std::vector<double> all[3];
    for (int i = -FIRST_REPEATS; i < REPEATS; ++i) {
        const double us[] = {once(spawn::FLAT, 1, 1), once(spawn::ALWAYS, 1, 1), once(spawn::ALWAYS, 64, 32)};
        for (int kind = 0; i >= 0 && kind < 3; ++kind) all[kind].push_back(us[kind]);
    }
    const double none = median_of(all[0]), one = median_of(all[1]), many = median_of(all[2]);
    return {static_cast<float>(1000 * std::max(0.0, one - none)),
            static_cast<float>(1000 * std::max(0.0, many - one) / 2047)};
}

// Whether children start while parent blocks wait: counts the parent's blocks that began after the first child.
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

// Number of blocks of full width, which are many waves. The measured value is the share that began after the first
// child.
constexpr int ORDER_BLOCKS = 132 * 8 * 8;

double measured_order() {
    Buffer<Control> control(std::vector<Control>{control_of(spawn::ALWAYS, 1, 1, {0, 0}, 16)});
    Buffer<Order> order(std::vector<Order>{{0, 0}});
    SPAWN_PARENT(waves, ORDER_BLOCKS, PARENT_THREADS, control.at, order.at);
    CHECK(cudaDeviceSynchronize());
    return static_cast<double>(order.get()[0].parents_after) / ORDER_BLOCKS;
}

// A round of a program without work: memory is filled, a kernel launched, a number read.
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

// A rule's repeats.
struct Trial {
    const char* name;
    Control rule;
    std::vector<double> us = {};
    std::vector<u32> launched = {};
    Control control = {};
    std::vector<u64> result = {};
    u32 differing = 0;  // runs, including the one of the round that is not counted

    double median_us() const { return median_of(us); }
    u32 median_launched() const {
        return static_cast<u32>(median_of(std::vector<double>(launched.begin(), launched.end())));
    }
};

void run_once(const Work& work, Trial& trial, bool counted) {
    Buffer<Control> control(std::vector<Control>{trial.rule});
    work.begin();
    const double us = timed_us([&] { work.run(control.at); });
    trial.control = control.get()[0];
    trial.result = work.result();
    if (counted) trial.us.push_back(us), trial.launched.push_back(trial.control.launched);
}

// Number of runs with a result that differs from the first result of flat, which a second algorithm confirms.
std::string differences(const std::vector<Trial>& trials) {
    std::string problems;
    for (const Trial& trial : trials)
        if (trial.differing > 0) problems += std::string(" ") + trial.name + " differs from flat.";
    return problems;
}

std::string repeats_of(const Work& work, std::vector<Trial>& trials, int repeats, bool flat_once) {
    std::string problems;
    std::vector<u64> expected;
    for (int i = -1; i < repeats; ++i)
        for (Trial& trial : trials) {
            if (flat_once && i >= 0 && &trial == &trials[0]) continue;
            run_once(work, trial, flat_once || i >= 0);
            if (expected.empty()) {
                expected = trial.result;
                if (const std::string mismatch = work.mismatch(expected); !mismatch.empty())
                    problems = " flat: " + mismatch + ".";
            }
            trial.differing += trial.result != expected;
        }
    return problems + differences(trials);
}

template <class T>
void print_all(const char* key, const std::vector<T>& numbers, const char* format) {
    std::printf("\"%s\": [", key);
    for (std::size_t i = 0; i < numbers.size(); ++i) std::printf(i ? ", " : ""), std::printf(format, numbers[i]);
    std::printf("]");
}

struct Options {
    spawn::Costs costs = {};
    bool search = true, flat_once = false;
    std::string graph_file;
    std::vector<std::string> positional;

    Options(int count, char** arguments) {
        const std::string graph = "--graph=";
        for (int i = 1; i < count; ++i) {
            const std::string argument = arguments[i];
            if (argument == "--no-search")
                search = false;
            else if (argument == "--flat-once")
                flat_once = true;
            else if (argument.rfind(graph, 0) == 0)
                graph_file = argument.substr(graph.size());
            else if (argument.rfind("--", 0) != 0)
                positional.push_back(argument);
            else if (std::sscanf(argument.c_str(), "--costs=%f,%f", &costs.first_ns, &costs.another_ns) != 2)
                inputs::refuse("no option " + argument +
                               "; there are --costs=FIRST,ANOTHER (nanoseconds), --graph=FILE, --no-search and "
                               "--flat-once");
        }
    }
};

}  // namespace

int main(int count, char** arguments) {
    const Options options(count, arguments);
    const std::vector<std::string>& given = options.positional;
    spawn::Costs costs = options.costs;
    const auto number = [&](std::size_t at, int otherwise) {
        return given.size() > at ? std::atoi(given[at].c_str()) : otherwise;
    };
    const int repeats = number(0, 5), scale = number(1, 16), window_log2 = number(2, 16), least = number(3, 32),
              untried = number(4, 1024);
    const bool with_graph = !options.graph_file.empty();
    const inputs::Graph graph = with_graph ? inputs::graph_of_file(options.graph_file) : inputs::Graph{};
    CHECK(cudaDeviceSetLimit(cudaLimitDevRuntimePendingLaunchCount, MOST_PENDING));
    CHECK(cudaDeviceSetLimit(cudaLimitStackSize, STACK_BYTES));  // the nested programs launch themselves
    const spawn::Costs measured = measured_costs();
    if (costs.first_ns == 0) costs = measured;
    std::printf(
        "{\"first_ns\": %.0f, \"another_ns\": %.1f, \"taken_first_ns\": %.0f, \"taken_another_ns\": %.1f, "
        "\"window_log2\": %d, \"untried\": %d, \"scale\": %d, \"repeats\": %d, \"round_us\": %.2f, "
        "\"parents_after_child\": %.3f}\n",
        measured.first_ns, measured.another_ns, costs.first_ns, costs.another_ns, window_log2, untried, scale, repeats,
        measured_round_us(), measured_order());
    std::fflush(stdout);
    int failures = 0;
    for (const Work& work : works_of(scale, with_graph ? &graph : nullptr)) {
        if (given.size() > 5 && std::find(given.begin() + 5, given.end(), work.name) == given.end()) continue;
        std::vector<Trial> trials = {
            {"flat", control_of(spawn::FLAT, 0, 1, costs, window_log2)},
            {"always", control_of(spawn::ALWAYS, 0, 1, costs, window_log2)},
            {"threshold", control_of(spawn::THRESHOLD, work.threshold, 1, costs, window_log2)},
            {"spawn", control_of(spawn::SPAWN, 0, least, costs, window_log2, untried)},
            {"warp", control_of(spawn::BY_WARP, 0, least, costs, window_log2)},
        };
        std::string problems = repeats_of(work, trials, repeats, options.flat_once);
        const Trial &flat = trials[0], &always = trials[1], &written = trials[2], &controlled = trials[3],
                    &warp = trials[4];
        double best = flat.median_us();
        int best_threshold = 0;
        for (int threshold = 1; options.search && threshold <= 1 << 14; threshold *= 4) {
            Trial one = {"a threshold", control_of(spawn::THRESHOLD, threshold, 1, costs, 16)};
            for (int i = 0; i < repeats; ++i) run_once(work, one, true), one.differing += one.result != flat.result;
            if (problems.empty()) problems = differences({one});
            if (const double us = one.median_us(); us < best) best = us, best_threshold = threshold;
        }
        failures += !problems.empty();
        std::printf(
            "{\"name\": \"%s\", \"right\": %s, \"flat_us\": %.1f, \"always_us\": %.1f, \"always_launched\": %u, "
            "\"refused\": %u, \"threshold_us\": %.1f, \"threshold_launched\": %u, ",
            work.name.c_str(), problems.empty() ? "true" : "false", flat.median_us(), always.median_us(),
            always.control.launched, always.control.refused, written.median_us(), written.control.launched);
        if (options.search) std::printf("\"best_us\": %.1f, \"best_threshold\": %d, ", best, best_threshold);
        std::printf(
            "\"spawn_us\": %.1f, \"spawn_launched\": %u, \"spawn_kept\": %u, \"warp_us\": %.1f, \"warp_launched\": %u, "
            "\"always_child_ns\": %.0f, \"spawn_child_ns\": %.0f, \"own_item_ns\": %.1f, ",
            controlled.median_us(), controlled.median_launched(), controlled.control.kept, warp.median_us(),
            warp.median_launched(), child_ns(always.control), child_ns(controlled.control),
            mean(warp.control.own_ns, warp.control.own_items));
        std::printf("\"all\": {");
        for (const Trial& trial : trials) {
            const std::string name = trial.name;
            print_all((name + "_us").c_str(), trial.us, "%.1f"), std::printf(", ");
            print_all((name + "_launched").c_str(), trial.launched, "%u");
            std::printf(&trial == &trials.back() ? "}, \"differing\": {" : ", ");
        }
        for (const Trial& trial : trials)
            std::printf("\"%s\": %u%s", trial.name, trial.differing, &trial == &trials.back() ? "}, " : ", ");
        std::printf("\"said\": \"%s\"}\n", problems.c_str());
        std::fflush(stdout);
    }
    return failures != 0;
}
