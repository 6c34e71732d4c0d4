// Logs when threads of SPAWN's programs reach their launch sites on a GPU and decide there; one run per rule.
//
//     nvcc -O3 -std=c++17 -arch=sm_90 -rdc=true -include spawn_log.cuh -I SPAWN spawn_log.cu -lcudadevrt -o spawn_log
//     spawn_log FOLDER scale first_ns another_ns name ...
//
// Writes FOLDER/NAME.RULE.bin, records of spawn_log::Site in the order in which threads leave their sites, and a line
// of JSON for each. The second of two runs is logged.
#include <chrono>
#include <fstream>

#include "programs.cuh"

namespace {

constexpr unsigned MOST = 1u << 17;
constexpr int WINDOW_LOG2 = 16, LEAST = 32, UNTRIED = 1024;

Control control_of(spawn::Rule rule, const Work& work, spawn::Costs costs) {
    Control control = {};
    control.rule = rule, control.threshold = work.threshold, control.least = rule < spawn::SPAWN ? 1 : LEAST;
    control.costs = costs, control.window_log2 = WINDOW_LOG2, control.untried = UNTRIED;
    return control;
}

double logged_us(const Work& work, const Control& rule, spawn_log::Site* sites, std::vector<spawn_log::Site>& all,
                 Control& outcome) {
    double us = 0;
    for (int i = 0; i < 2; ++i) {
        const spawn_log::Log empty = {MOST, 0, sites};
        CHECK(cudaMemcpyToSymbol(spawn_log::log, &empty, sizeof empty));
        Buffer<Control> control(std::vector<Control>{rule});
        work.begin();
        CHECK(cudaDeviceSynchronize());
        const auto begin = std::chrono::steady_clock::now();
        work.run(control.at);
        CHECK(cudaDeviceSynchronize());
        us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
        outcome = control.get()[0];
    }
    spawn_log::Log full;
    CHECK(cudaMemcpyFromSymbol(&full, spawn_log::log, sizeof full));
    all.resize(std::min(full.count, MOST));
    CHECK(cudaMemcpy(all.data(), sites, all.size() * sizeof(spawn_log::Site), cudaMemcpyDeviceToHost));
    return us;
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 6) {
        std::fprintf(stderr, "usage: spawn_log FOLDER scale first_ns another_ns name ...\n");
        return 2;
    }
    CHECK(cudaDeviceSetLimit(cudaLimitDevRuntimePendingLaunchCount, MOST_PENDING));
    CHECK(cudaDeviceSetLimit(cudaLimitStackSize, STACK_BYTES));
    const spawn::Costs costs = {static_cast<float>(std::atof(arguments[3])),
                                static_cast<float>(std::atof(arguments[4]))};
    Buffer<spawn_log::Site> sites(MOST);
    for (const Work& work : works_of(std::atoi(arguments[2]))) {
        if (std::find(arguments + 5, arguments + count, work.name) == arguments + count) continue;
        for (const auto& [name, rule] : {std::pair("spawn", spawn::SPAWN), std::pair("warp", spawn::BY_WARP)}) {
            std::vector<spawn_log::Site> all;
            Control outcome;
            const double us = logged_us(work, control_of(rule, work, costs), sites.at, all, outcome);
            std::ofstream file(std::string(arguments[1]) + "/" + work.name + "." + name + ".bin", std::ios::binary);
            file.write(reinterpret_cast<const char*>(all.data()),
                       static_cast<std::streamsize>(all.size() * sizeof(spawn_log::Site)));
            std::printf("{\"name\": \"%s\", \"rule\": \"%s\", \"us\": %.1f, \"sites\": %zu, \"launched\": %u}\n",
                        work.name.c_str(), name, us, all.size(), outcome.launched);
            std::fflush(stdout);
        }
    }
}
