"""Bloom filters that instrumented kernels fill, on the CPU: their bits, and their answers about later blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tileprof.analysis import build_graph
from tileprof.analysis.simulate.filters.bloom import Filters
from tileprof.analysis.simulate.filters.inserted import Answers, answers, inserted_report
from tileprof.errors import UserError
from tileprof.record.source import FilterSettings, Recording, Settings
from tileprof.trace import load

KERNELS = """
#include <tileprof.cuh>
using namespace tileprof;

__global__ void add(const float* x, const float* y, float* z, int n) {
    BlockLife life;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) store(z + i, load(x + i) + load(y + i));
}

__global__ void transposed(const float* x, float* y, int rows, int columns) {
    BlockLife life;
    __shared__ float tile[16 * 16];
    const int row = blockIdx.y * 16, column = blockIdx.x * 16;
    load_tile(tile, {16}, x + row * columns + column, {columns}, Box{16, 16});
    __syncthreads();
    store(y + (column + threadIdx.y) * rows + row + threadIdx.x, tile[threadIdx.x * 16 + threadIdx.y]);
}

__global__ void histogram(const int* index, int* bins, int n) {
    BlockLife life;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomic_add(bins + load(index + i), 1);
}
"""


def run_recorder(folder: Path, how: FilterSettings) -> tuple[Path, dict[int, np.ndarray], list[np.ndarray]]:
    """Record two sums, a transposition, a histogram and a sum, which depend on each other; return the trace and the
    filters.
    """
    random = np.random.default_rng(5)
    x, y, z, rotated, last = (random.random((64, 64), np.float32) for _ in range(5))
    index, bins = random.integers(0, 64, 512, np.int32), np.zeros(64, np.int32)
    with Recording(folder / "f.tileprof", machine="host", settings=Settings(filters=how)) as recording:
        add, turn, fill = (recording.compile(KERNELS, name) for name in ("add", "transposed", "histogram"))
        recording.launch(add, 32, 128, x, y, z, 4096)
        recording.launch(turn, (4, 4), (16, 16), z, rotated, 64, 64)
        recording.launch(fill, 4, 128, index, bins, 512)
        recording.launch(fill, 4, 128, index, bins, 512)
        recording.launch(add, 32, 128, rotated, z, last, 4096)
    assert np.allclose(last, (x + y).T + x + y)
    return recording.path, {f.launch: f.words for f in recording.filtered}, [x, y, z, rotated, last, index, bins]


def answers_of(folder: Path, how: FilterSettings, window: int = 5) -> tuple[Answers, Path]:
    path, words, _alive = run_recorder(folder, how)
    return answers(load(path), words, Filters(how.bits, how.hashes), how.granule, window), path


@pytest.mark.parametrize("how", [FilterSettings(), FilterSettings(32, 1, 64), FilterSettings(65536, 3, 4)])
def test_filters_hold_what_was_recorded_and_miss_no_dependency(tmp_path: Path, how: FilterSettings) -> None:
    answer, path = answers_of(tmp_path, how)
    assert answer.unequal == answer.lacking == answer.missed == 0
    assert answer.pairs == 32 * 16 + 2 * (32 + 16) * 4 + (32 + 16 + 4 + 4) * 32 + 4 * 4
    # Every edge between launches in the analysis is among the dependent pairs: here all are direct.
    assert answer.dependent >= len(build_graph(load(path)).edges.query("producer_launch != consumer_launch"))
    assert answer.answered == answer.dependent + answer.false
    assert 0 <= answer.granular <= answer.false
    assert answer.answered <= answer.declared <= answer.pairs
    report = inserted_report(load(path), window=5)
    assert report is not None
    assert (report.bits, report.hashes, report.granule) == (how.bits, how.hashes, how.granule)
    assert report.answers == answer, "the trace holds what the recording did"


def test_wide_filters_of_small_granules_are_nearly_exact_and_narrow_ones_are_not(tmp_path: Path) -> None:
    wide, _ = answers_of(tmp_path / "wide", FilterSettings(1 << 19, 3, 4))
    narrow, _ = answers_of(tmp_path / "narrow", FilterSettings(32, 1, 512))
    coarse, _ = answers_of(tmp_path / "coarse", FilterSettings(1 << 18, 3, 4096))
    assert wide.false == 0
    assert narrow.false > wide.dependent
    assert 0 < coarse.granular == coarse.false


def test_a_lost_bit_is_a_missed_dependency(tmp_path: Path) -> None:
    how = FilterSettings(4096, 2, 128)
    path, words, _alive = run_recorder(tmp_path, how)
    words[0] = words[0].copy()
    words[0][:, 1] = 0  # what the first sum wrote
    answer = answers(load(path), words, Filters(how.bits, how.hashes), how.granule, 5)
    assert answer.unequal == answer.lacking == 32
    assert answer.missed > 0
    with pytest.raises(UserError, match="launch 0 has 32 tiles and filters of 4096 bits"):
        answers(load(path), {0: words[0][:4]}, Filters(how.bits, how.hashes), how.granule, 5)


@pytest.mark.parametrize("wrong", [{"bits": 100}, {"bits": 16}, {"hashes": 0}, {"granule": 0}])
def test_filters_that_the_device_cannot_make_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="filter"):
        FilterSettings(**wrong)
