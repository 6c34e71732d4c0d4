"""On a GPU, with a checkout of cuSync: exported waits hold under a delayed block, and the omitted halo is a race."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tileprof.cli import main

HERE = Path(__file__).parent
CUSYNC = os.environ.get("CUSYNC_PATH", "")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no NVIDIA driver here"),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH"),
    pytest.mark.skipif(not CUSYNC, reason="CUSYNC_PATH names no checkout of cuSync"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("halo")
    assert (
        main(["export", str(HERE / "halo_race.dep"), "--format", "cusync", "--several-waits", "-o", str(folder)]) == 0
    )
    common = ["-std=c++17", "-arch=native", "-I", folder, "-I", f"{CUSYNC}/src/include", f"{CUSYNC}/src/cusync.cu"]
    for source in (HERE / "halo_race.cu", folder / "example.cu"):
        subprocess.run(["nvcc", *common, source, "-o", folder / source.stem], check=True)
    return folder


def test_the_example_that_is_exported_runs_and_no_tile_goes_on_too_early(built):
    done = subprocess.run([built / "example"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 went on too early" in done.stdout


def test_a_late_block_makes_the_shipped_policies_wrong_and_not_the_one_with_the_halo(built):
    done = subprocess.run([built / "halo_race"], capture_output=True, text=True, timeout=120, check=False)
    rows = re.findall(r"^(.+?) +late by +([\d.]+) us: +\d+ rounds, +(\d+) wrong", done.stdout, re.MULTILINE)
    wrong = {(name, float(late)): int(count) for name, late, count in rows}
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(count for (name, _), count in wrong.items() if name == "with the halo") == 0
    assert wrong["Conv2DTileSync", 1000.0] > 0
    assert wrong["RowSync", 1000.0] > 0
