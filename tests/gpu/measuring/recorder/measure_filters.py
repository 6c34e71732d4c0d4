"""Bloom filters that instrumented kernels fill while they run: false dependencies, and what filling costs.

python tests/gpu/measuring/recorder/measure_filters.py [--machine host] OUT.json

A recurrent network of two layers in single precision, and a chain of sums, products and transpositions. For each size
of filter: pairs of blocks within a window of launches, how many depend on each other in the exact graph of the same
run, how many the filters answer yes for, how many they miss (0), and how much longer blocks live while they fill
filters (medians over blocks; logging is off in both runs).
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from tileprof.analysis.simulate.filters.bloom import Filters
from tileprof.analysis.simulate.filters.inserted import answers
from tileprof.record.source import FilterSettings, Recording, Settings
from tileprof.trace import load

KERNELS = """
#include <tileprof.cuh>
using namespace tileprof;

constexpr int T = 16;

// c = a @ b, and with `more` also + d @ e: tiles of 16 x 16.
template <bool more>
__global__ void product(const float* a, const float* b, const float* d, const float* e, float* c, int m, int n, int k) {
    BlockLife life;
    __shared__ float left[T * T], right[T * T];
    const int x = blockIdx.x * T, y = blockIdx.y * T;
    float sum = 0;
    for (int pass = 0; pass < (more ? 2 : 1); ++pass)
        for (int at = 0; at < k; at += T) {
            left[threadIdx.y * T + threadIdx.x] = load((pass ? d : a) + (y + threadIdx.y) * k + at + threadIdx.x);
            right[threadIdx.y * T + threadIdx.x] = load((pass ? e : b) + (at + threadIdx.y) * n + x + threadIdx.x);
            __syncthreads();
            for (int i = 0; i < T; ++i) sum += left[threadIdx.y * T + i] * right[i * T + threadIdx.x];
            __syncthreads();
        }
    store(c + (y + threadIdx.y) * n + x + threadIdx.x, sum);
}

__global__ void cell(const float* sums, const float* bias, float* state, int count, int width) {
    BlockLife life;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) store(state + i, 1 / (1 + __expf(-load(sums + i) - load_readonly(bias + i % width))));
}

__global__ void add(const float* x, const float* y, float* z, int count) {
    BlockLife life;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) store(z + i, load(x + i) + load(y + i));
}

__global__ void transposed(const float* x, float* y, int size) {
    BlockLife life;
    __shared__ float tile[T * T];
    const int row = blockIdx.y * T, column = blockIdx.x * T;
    load_tile(tile, {T}, x + row * size + column, {size}, Box{T, T});
    __syncthreads();
    store(y + (column + threadIdx.y) * size + row + threadIdx.x, tile[threadIdx.x * T + threadIdx.y]);
}
"""
HOST_EXP = "#include <cmath>\ninline float __expf(float x) { return std::exp(x); }\n"
WINDOW = 4
SIZES = (FilterSettings(512, 2, 512), FilterSettings(2048, 2, 512), FilterSettings(8192, 2, 512),
         FilterSettings(2048, 2, 128), FilterSettings(8192, 2, 128), FilterSettings(32768, 2, 128))  # fmt: skip


def recurrent(recording, source, memory, steps=6, batch=32, width=256):
    """Layer two of a step needs layer one of the same step; each needs itself of the step before."""
    product, cell = recording.compile(source, "product<true>"), recording.compile(source, "cell")
    random = np.random.default_rng(1)
    weights = [memory(random.standard_normal((width, width), np.float32) / 16) for _ in range(4)]
    bias = memory(np.zeros(width, np.float32))
    inputs = [memory(random.standard_normal((batch, width), np.float32)) for _ in range(steps)]
    sums = [memory(np.zeros((batch, width), np.float32)) for _ in range(2)]
    states = [memory(np.zeros((batch, width), np.float32)) for _ in range(2)]
    for step in range(steps):
        for layer in range(2):
            below = states[0] if layer else inputs[step]
            operands = (below, weights[2 * layer], states[layer], weights[2 * layer + 1], sums[layer])
            recording.launch(product, (width // 16, batch // 16), (16, 16), *operands, batch, width, width)
            recording.launch(cell, batch * width // 128, 128, sums[layer], bias, states[layer], batch * width, width)


def chain(recording, source, memory, size=256, rounds=3):
    """Z = (x y)^T + x, which then is x."""
    product, turn, add = (recording.compile(source, name) for name in ("product<false>", "transposed", "add"))
    random = np.random.default_rng(2)
    x, y = (memory(random.standard_normal((size, size), np.float32) / 16) for _ in range(2))
    result, rotated = (memory(np.zeros((size, size), np.float32)) for _ in range(2))
    tiles = (size // 16, size // 16)
    for _ in range(rounds):
        recording.launch(product, tiles, (16, 16), x, y, x, y, result, size, size, size)
        recording.launch(turn, tiles, (16, 16), result, rotated, size)
        recording.launch(add, size * size // 128, 128, rotated, x, x, size * size)


def lives(times):
    return (times["end_ns"] - times["begin_ns"]).astype(np.float64)


def measurement(program, how, machine):
    source, memory = KERNELS, np.array
    if machine == "host":
        source = HOST_EXP + KERNELS
    else:
        import torch

        def memory(values):
            return torch.from_numpy(values).cuda()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "f.tileprof")
        with Recording(path, machine=machine, settings=Settings(log_bytes=64 << 20, filters=how)) as recording:
            program(recording, source, memory)
        trace = load(path)
        words = {f.launch: f.words for f in recording.filtered}
        answer = answers(trace, words, Filters(how.bits, how.hashes), how.granule, WINDOW)
        kinds = {}
        for f in recording.filtered:
            if f.times is not None:
                name = trace.launches.kernel[f.launch]
                plain, filtered_ns = np.median(lives(f.times)), np.median(lives(f.filtered_times))
                kinds.setdefault(name, []).append((plain, filtered_ns))
    costs = {name: [float(np.median(column)) for column in zip(*rows, strict=True)] for name, rows in kinds.items()}
    return {
        "program": program.__name__, "bits": how.bits, "granule": how.granule, "launches": len(words),
        "blocks": sum(len(w) for w in words.values()), "pairs": answer.pairs, "dependent": answer.dependent,
        "answered": answer.answered, "false": answer.false, "granular": answer.granular, "missed": answer.missed,
        "unequal": answer.unequal, "declared": answer.declared, "block_ns": costs,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--machine", default="gpu", choices=("gpu", "host"))
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    results = []
    for program in (recurrent, chain):
        for how in SIZES:
            results.append(measurement(program, how, arguments.machine))
            arguments.output.write_text(json.dumps(results, indent=1))
            row = results[-1]
            print(*(f"{key}={row[key]}" for key in row if key != "block_ns"))
            for name, (plain, filtered_ns) in row["block_ns"].items():
                print(f"   {name}: a block lives {plain:.0f} ns, {filtered_ns:.0f} ns with filters")
    return any(row["missed"] or row["unequal"] for row in results)


if __name__ == "__main__":
    sys.exit(main())
