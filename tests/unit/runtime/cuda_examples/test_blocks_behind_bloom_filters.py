"""Dependencies by Bloom filter: the source of the device code with blocks as threads, under a race detector.

Planted faults are detected, and the bits are those of the simulator's filters.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.support.orders import orders
from tests.support.runtime.planted import changed, gate_third
from tests.support.shared_libraries import SHARED
from tileprof import examples
from tileprof.analysis.simulate.filters.bloom import Filters
from tileprof.runtime.include_path import INCLUDE

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++, which compiles the program for the CPU")

HEADER = INCLUDE / "tileprof" / "bloom.cuh"
PROGRAM = Path(examples.__file__).parent / "cuda" / "bloom.cu"
THREADS = Path(__file__).parents[3] / "support" / "emulated" / "bloom_threads.h"
FLAGS = ("-O1", "-std=c++17", "-w", "-pthread", "-include", str(THREADS), "-x", "c++")
ENDLESS, PATIENT = "3000", "100000"
"""Milliseconds after which a wait gives up: with a fault, which may make it endless, and without one, however busy the
machine is.
"""
SIZES = "32", "10"  # kernels, blocks of each: dependencies reach back about a window of 8


NEVER_ENDS = "a block does not say that it has ended"
FAULTS = {
    "filters are asked before they are filled": (
        64, " || !wait(inserted + other, block)", " || (!planted && !wait(inserted + other, block))",
    ),
    "what is written again is not looked for among reads": (
        64, " || (ranges[i].writes && read.may_touch(ranges[i]))",
        " || (!planted && ranges[i].writes && read.may_touch(ranges[i]))",
    ),
    "bits are set at the wrong places": (
        64, "const u32 at = bit(first, second, hash);\n                or_word",
        "const u32 at = bit(first, second, planted ? hash + 7 : hash);\n                or_word",
    ),
    "granules are left out": (
        64, "granule < end; granule += lanes()", "granule + (planted ? 8 : 0) < end; granule += lanes()",
    ),
    "a place is taken before its block has ended": (
        8, " || (block >= window && !wait(ended + block - window, block))",
        " || (!planted && block >= window && !wait(ended + block - window, block))",
    ),
    "filters cleared meanwhile are believed": (
        8, "fence();\n                load_acquire(ended + other);",
        "if (!planted) fence(), load_acquire(ended + other);",
    ),
    "a hit is not waited for": (
        64, "            ++found;\n            wait(ended + other, block);",
        "            ++found;\n            if (!planted) wait(ended + other, block);",
    ),
    NEVER_ENDS: (
        64, "if (lane() == 0) store_release(ended + block, 1);",
        "if (lane() == 0 && !(planted && block == 40)) store_release(ended + block, 1);",
    ),
}  # fmt: skip
"""Window, text of the header, and the same text with a fault if `planted`.

All are compiled once per window, and one is active in a run.
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Callable[..., tuple[int, list[dict[str, object]]]]:
    """Run the program, perhaps with a fault of its header. Return exit code and lines."""

    @cache
    def built(window: int) -> Path:
        folder = tmp_path_factory.mktemp("bloom")
        text = HEADER.read_text()
        for number, (_, old, new) in enumerate(FAULTS.values()):
            text = changed(text, old, new.replace("planted", f"emulated::planted({number})"))
        (folder / "tileprof").mkdir()
        (folder / "tileprof" / "bloom.cuh").write_text(text)
        sizes = f"-DBLOOM_WINDOW={window}", "-DBLOOM_BITS=1024"
        subprocess.run(
            ["g++", *FLAGS, *sizes, "-fsanitize=thread", f"-I{folder}", str(PROGRAM), "-o", "program"],
            cwd=folder,
            check=True,
        )
        return folder / "program"

    def run(
        window: int, fault: int = -1, *, seed: int = 1, limit: str = ENDLESS, races: str = "halt_on_error=1"
    ) -> tuple[int, list[dict[str, object]]]:
        command = [built(window), "2", str(seed), PATIENT if fault < 0 else limit, *SIZES]
        # Describing each of the many races of a fault takes a hundred times as long as the run.
        environment = os.environ | {"BLOOM_SEED": str(seed), "BLOOM_FAULT": str(fault), "TSAN_OPTIONS": races}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return result.returncode, [json.loads(line) for line in result.stdout.splitlines()]

    return run


@pytest.mark.orders
@pytest.mark.parametrize("window", [8, 64])
def test_filters_miss_no_dependency_and_no_block_races(program, window) -> None:
    for seed in range(1, 1 + orders(2)):
        code, lines = program(window, seed=seed)
        assert code == 0, lines
        runs = {line["mode"]: line for line in lines if "mode" in line}
        assert all(run["right"] and run["missed"] == 0 for run in runs.values())
        assert runs["filters"]["asked"] > 0
        pairs = next(line for line in lines if "found_pairs" in line)
        assert pairs["missed_pairs"] == 0
        assert pairs["found_pairs"] >= pairs["exact_pairs"] > 0


@pytest.mark.parametrize("fault", gate_third([fault for fault in FAULTS if fault != NEVER_ENDS]))
def test_a_planted_fault_is_detected(program, fault) -> None:
    window, number = FAULTS[fault][0], [*FAULTS].index(fault)
    assert any(program(window, number, seed=seed)[0] != 0 for seed in range(1, 13))


def test_a_wait_that_cannot_end_times_out_and_is_reported(program) -> None:
    code, lines = program(64, [*FAULTS].index(NEVER_ENDS), limit="100", races="report_bugs=0")
    assert code != 0
    assert any(line["late"] for line in lines if "mode" in line)


def test_bits_are_those_of_the_simulated_filters(tmp_path) -> None:
    source = """
#include <tileprof/bloom.cuh>
extern "C" void bits(unsigned long long granule, unsigned* at) {
    using namespace tileprof::bloom;
    static Filter<4096, 3, 128> filter;
    filter.clear();
    filter.insert({granule * 128 + 5, 100, 1});
    for (int word = 0, n = 0; word < 128; ++word)
        for (int bit = 0; bit < 32; ++bit)
            if (filter.words[word] >> bit & 1) at[n++] = 32 * word + bit;
}
"""
    (tmp_path / "bits.cpp").write_text(source)
    subprocess.run(["g++", *FLAGS, *SHARED, f"-I{INCLUDE}", "bits.cpp", "-o", "bits.so"], cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "bits.so"))
    granules = np.array([0, 1, 77, 2**40 + 3], np.int64)
    for granule, row in zip(granules.tolist(), Filters(4096, 3).rows(granules).tolist(), strict=True):
        actual = (ctypes.c_uint * 8)(*[99_999] * 8)
        library.bits(ctypes.c_ulonglong(granule), actual)
        assert sorted(set(row)) == [bit for bit in actual if bit != 99_999]
