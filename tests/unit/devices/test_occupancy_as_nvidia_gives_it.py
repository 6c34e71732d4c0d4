"""nvidia_occupancy.csv is what NVIDIA's cuda_occupancy.h (CUDA 13.0) prints: see nvidia_occupancy.cpp beside it."""

from pathlib import Path

import pandas as pd
import pytest

from tileprof import devices
from tileprof.devices import Occupancy, occupancy

CASES = pd.read_csv(Path(__file__).parent / "nvidia_occupancy.csv")


@pytest.mark.parametrize("name", CASES["device"].unique())
def test_agrees_with_nvidias_calculator(name):
    device = devices.get(name)
    cases = CASES[CASES["device"] == name]
    inputs = zip(cases["threads"], cases["registers"], cases["shared_bytes"], strict=True)
    ours = [occupancy(device, *case).blocks_per_sm for case in inputs]
    different = cases.assign(ours=ours)[lambda c: c["ours"] != c["blocks_per_sm"]]
    assert different.empty, different.to_string()


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "expected"),
    [
        (32, 16, 0, Occupancy(32, "blocks")),
        (1024, 16, 0, Occupancy(2, "threads")),
        (384, 168, 0, Occupancy(1, "registers")),  # a warp-specialised Hopper GEMM: 12 warps x 168 x 32
        (256, 128, 100 << 10, Occupancy(2, "registers")),
        (256, 64, 100 << 10, Occupancy(2, "shared")),
        (1025, 16, 0, Occupancy(0, "threads")),
        (128, 256, 0, Occupancy(0, "registers")),
        (1024, 80, 0, Occupancy(0, "registers")),
        (128, 32, 228 << 10, Occupancy(0, "shared")),
    ],
)
def test_names_what_limits_on_an_h200(threads, registers, shared_bytes, expected):
    assert occupancy(devices.get("H200"), threads, registers, shared_bytes) == expected


def test_ada_holds_24_blocks_and_48_warps():
    ada = devices.get("RTX4090")
    assert occupancy(ada, 32, 16, 0) == Occupancy(24, "blocks")
    assert occupancy(ada, 512, 16, 0) == Occupancy(3, "threads")


def test_the_reserved_kilobyte_counts_from_ampere_on():
    third = 32 << 10
    assert occupancy(devices.get("V100"), 32, 16, third).blocks_per_sm == 3
    assert occupancy(devices.get("L4"), 32, 16, third).blocks_per_sm == 3
    assert occupancy(devices.get("L4"), 32, 16, third + 1200).blocks_per_sm == 2


@pytest.mark.parametrize("bad", [(0, 1, 1), (1, -1, 1), (1, 1, -1)])
def test_impossible_kernels_are_bugs(bad):
    with pytest.raises(ValueError, match="no kernel"):
        occupancy(devices.get("H200"), *bad)
