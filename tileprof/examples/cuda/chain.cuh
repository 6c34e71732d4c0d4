// Runs a chain of two stages under several schedules: replays under random delays, checked bit by bit, and times of
// captured graphs.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tiled.cuh"

inline void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
    std::exit(2);
}

// Nonzero numbers between -1 and 1, scaled.
inline half* random_halves(size_t count, float scale, uint32_t seed) {
    std::vector<half> numbers(count);
    for (half& number : numbers) {
        seed = seed * 1664525u + 1013904223u;
        number = __float2half(scale * (static_cast<int32_t>(seed) / 2147483648.0f));
    }
    half* copy = nullptr;
    check(cudaMalloc(&copy, count * sizeof(half)));
    check(cudaMemcpy(copy, numbers.data(), count * sizeof(half), cudaMemcpyHostToDevice));
    return copy;
}

// The results of the two stages of a chain.
struct Chain {
    half *between, *out;
    size_t between_count, out_count;
};

// Captures one round, replays it with different delays each time, and counts the replays whose bits differ from
// `expected`.
template <typename Round>
int wrong_replays(const Chain& chain, const std::vector<half>& expected, int replays, uint32_t longest_ns,
                  Round round) {
    cudaStream_t stream, other;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    uint32_t* seed = nullptr;
    check(cudaMalloc(&seed, sizeof(uint32_t)));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    round(stream, other, Delay{seed, longest_ns});
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<half> result(chain.out_count);
    int wrong_count = 0;
    for (int replay = 0; replay < replays; ++replay) {
        const uint32_t number = replay;
        check(cudaMemcpyAsync(seed, &number, sizeof number, cudaMemcpyHostToDevice, stream));
        check(cudaMemsetAsync(chain.between, 0xff, chain.between_count * sizeof(half),
                              stream));  // NaN where nothing was written
        check(cudaMemsetAsync(chain.out, 0xff, chain.out_count * sizeof(half), stream));
        check(cudaGraphLaunch(exec, stream));
        check(
            cudaMemcpyAsync(result.data(), chain.out, chain.out_count * sizeof(half), cudaMemcpyDeviceToHost, stream));
        check(cudaStreamSynchronize(stream));
        wrong_count += std::memcmp(result.data(), expected.data(), result.size() * sizeof(half)) != 0;
    }
    return wrong_count;
}

// Microseconds per round: the median of 30 replays of a graph with 20 rounds.
template <typename Round>
float microseconds(Round round) {
    constexpr int kRounds = 20, kReplays = 30;
    cudaStream_t stream, other;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int n = 0; n < kRounds; ++n) round(stream, other, Delay{nullptr, 0});
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<float> times;
    for (int replay = 0; replay < kReplays + 3; ++replay) {
        check(cudaEventRecord(begin, stream));
        check(cudaGraphLaunch(exec, stream));
        check(cudaEventRecord(end, stream));
        check(cudaStreamSynchronize(stream));
        float milliseconds = 0;
        check(cudaEventElapsedTime(&milliseconds, begin, end));
        if (replay >= 3) times.push_back(1000 * milliseconds / kRounds);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// Does not wait: shows the cost of the waits, and a wrong result under delays.
struct NoWait {
    template <typename Stage>
    __device__ void operator()(Stage&, dim3) const {}
};

// A stage's product: `k` deep, `columns` wide, in `grid` tiles, of the values that `load` returns and of weights.
template <typename Loader>
struct Product {
    Loader load;
    const half* weights;
    half* out;
    int columns, k;
    dim3 grid;
};

template <typename FirstLoader, typename SecondLoader>
struct Work {
    Product<FirstLoader> first;
    Product<SecondLoader> second;
    Chain chain;
};

template <typename Stage, typename Loader, typename Wait>
void launch_stage(bool overlapped, Stage& stage, const Product<Loader>& product, Wait wait, Delay delay,
                  cudaStream_t stream) {
    auto kernel = tiled<Stage::getReorderTileLoads(), Stage, Loader, Wait>;
    auto put = [&](auto launch) {
        launch(kernel, product.grid, dim3(kThreads), size_t(0), stream, stage, product.load, product.weights,
               product.out, product.columns, product.k, wait, delay);
    };
    if (overlapped)
        put([](auto... words) { tileprof::sync::launch_overlapped(words...); });
    else
        put([](auto... words) { tileprof::sync::launch(words...); });
}

// Both stages in one stream, the second after the first or overlapping it.
template <typename First, typename Second, typename W, typename Wait>
auto one_stream(First& first, Second& second, const W& work, Wait wait, bool overlapped) {
    return [&first, &second, work, wait, overlapped](cudaStream_t stream, cudaStream_t, Delay delay) {
        launch_stage(false, first, work.first, NoWait(), delay, stream);
        launch_stage(overlapped, second, work.second, wait, delay, stream);
    };
}

// A stream per stage and a wait kernel, as in cuSync; the next round begins when both have ended.
template <typename First, typename Second, typename W, typename Wait>
auto two_streams(First& first, Second& second, const W& work, Wait wait) {
    cudaEvent_t begun, ended;
    check(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming));
    check(cudaEventCreateWithFlags(&ended, cudaEventDisableTiming));
    return [&first, &second, work, wait, begun, ended](cudaStream_t stream, cudaStream_t other, Delay delay) {
        check(cudaEventRecord(begun, stream));
        check(cudaStreamWaitEvent(other, begun, 0));
        launch_stage(false, first, work.first, NoWait(), delay, stream);
        if (first.invokeWaitKernel(other) != tileprof::sync::CuSyncSuccess) std::exit(2);
        launch_stage(false, second, work.second, wait, delay, other);
        check(cudaEventRecord(ended, other));
        check(cudaStreamWaitEvent(stream, ended, 0));
    };
}

// Prints one row of the table (time, and replays with a wrong result) and returns the number of wrong replays.
template <typename First, typename Second, typename Round>
int row(const char* name, First& first, Second& second, const Chain& chain, const std::vector<half>& expected,
        int replays, Round round) {
    const float time = microseconds(round);
    const int wrong_count = wrong_replays(chain, expected, replays, 20000, round);
    std::printf("%-44s %9.2f us  %5d of %d delayed replays wrong\n", name, time, wrong_count, replays);
    tileprof::sync::check(first);
    tileprof::sync::check(second);
    return wrong_count;
}

// The whole comparison for the structs of a header. Returns the exit code: 1 if a synchronised schedule was wrong at
// least once, or if leaving out the waits was never noticed.
template <typename FirstOrder, typename FirstPosts, typename SecondOrder, typename SecondWaits, typename W,
          typename Wait>
int compare(const W& work, Wait wait, int replays) {
    using namespace tileprof::sync;
    constexpr int kAll = AvoidWaitKernel | AvoidCustomOrder | ReorderTileLoads;
    auto pair = [&](auto options) {
        constexpr int kOptions = decltype(options)::value;
        using First = CuStage<FirstOrder, NoSync, FirstPosts, kOptions>;
        using Second = CuStage<SecondOrder, SecondWaits, NoSync, kOptions>;
        std::pair<First, Second> stages(First(work.first.grid, dim3(), NoSync(), FirstPosts()),
                                        Second(work.second.grid, dim3(), SecondWaits(), NoSync()));
        if (CuSync::setProducerConsumerPair(stages.first, stages.second) != CuSyncSuccess) std::exit(2);
        return stages;
    };
    auto vanilla = pair(std::integral_constant<int, NoOptimization>());
    auto reordered = pair(std::integral_constant<int, ReorderTileLoads>());
    auto unwaited = pair(std::integral_constant<int, ReorderTileLoads | AvoidWaitKernel>());
    auto all = pair(std::integral_constant<int, kAll>());

    // The expected result: one stage after the other, without waits.
    std::vector<half> expected(work.chain.out_count);
    one_stream(all.first, all.second, work, NoWait(), false)(nullptr, nullptr, Delay{nullptr, 0});
    check(cudaMemcpy(expected.data(), work.chain.out, expected.size() * sizeof(half), cudaMemcpyDeviceToHost));

    int wrong_count = 0;
    auto run = [&](const char* name, auto& stages, auto round) {
        return row(name, stages.first, stages.second, work.chain, expected, replays, round);
    };
    wrong_count += run("stream order", all, one_stream(all.first, all.second, work, NoWait(), false));
    wrong_count += run("two streams, wait kernel, ordered (vanilla)", vanilla,
                       two_streams(vanilla.first, vanilla.second, work, wait));
    wrong_count +=
        run("  and loads reordered (R)", reordered, two_streams(reordered.first, reordered.second, work, wait));
    wrong_count += run("one stream, overlapped, no wait kernel (WR)", unwaited,
                       one_stream(unwaited.first, unwaited.second, work, wait, true));
    wrong_count += run("  and no order of its own (WRT)", all, one_stream(all.first, all.second, work, wait, true));
    const int unnoticed = run("overlapped without waits, wrong on purpose", all,
                              one_stream(all.first, all.second, work, NoWait(), true)) == 0;
    if (wrong_count) std::printf("FAILED: a synchronised schedule was wrong\n");
    if (unnoticed) std::printf("FAILED: nothing noticed that the waits were left out\n");
    return wrong_count || unnoticed;
}
