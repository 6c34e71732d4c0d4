"""Launches from the GPU under random delays: threads of a warp that launch one at a time or all together return, and so
do the programs whose children launch. Threads that launch in groups while others sleep do not return with the drivers
known so far; a test fails when they do, so that `SPAWN_THREADS_SLEEP` of `spawn.cuh` can go.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tileprof import examples

MEASURING = Path(__file__).parents[2] / "measuring"
SPAWN = Path(examples.__file__).parent / "cuda" / "spawn"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no NVIDIA driver here"),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH"),
]


def built(source: Path, folder: Path, *flags: str | Path) -> Path:
    command = ["nvcc", "-O3", "-std=c++17", "-arch=sm_90", "-rdc=true", *flags, source, "-lcudadevrt"]
    subprocess.run([*command, "-o", folder / source.stem], check=True, capture_output=True)
    return folder / source.stem


@pytest.fixture(scope="module")
def divergent(tmp_path_factory) -> Path:
    return built(MEASURING / "programs" / "divergent_launches.cu", tmp_path_factory.mktemp("divergent"))


@pytest.mark.parametrize("way", ["together", "alone"])
def test_launches_of_a_whole_warp_and_of_single_threads_return(divergent, way) -> None:
    result = subprocess.run([divergent, way, "5000"], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout


def test_launches_of_groups_of_a_warp_hang(divergent) -> None:
    result = subprocess.run([divergent, "apart", "5000"], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 3, f"a driver in which they return: {result.stdout}"
    assert "cudaGetParameterBuffer" in result.stdout


def test_programs_whose_children_launch_end_with_the_same_results(tmp_path) -> None:
    delays = MEASURING / "schedulers" / "delays.cuh"
    program = built(SPAWN / "program.cu", tmp_path, "-DSPAWN_MOST_STEPS=32", "-include", delays)
    words = ["--costs=2000,100", "--no-search", "--flat-once", "100", "6", "16", "32", "1024"]
    names = {"mandelbrot-nested", "amr-nested"}
    result = subprocess.run([program, *words, *sorted(names)], capture_output=True, text=True, timeout=120, check=False)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert {line["name"] for line in lines[1:]} == names
    assert all(line["right"] and line["always_launched"] > 0 for line in lines[1:]), lines
