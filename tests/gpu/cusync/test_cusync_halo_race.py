"""On a GPU: exported waits hold under a delayed block, and the omitted halo is a race. With CUSYNC_PATH also under
cuSync itself.

Without cuSync the bundled runtime synchronises. The table that the programs print is the result:
``pytest -s tests/gpu/cusync/test_cusync_halo_race.py`` shows it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tileprof.cli.entry import main
from tileprof.runtime.include_path import INCLUDE

HERE = Path(__file__).parent
CUSYNC = os.environ.get("CUSYNC_PATH", "")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no NVIDIA driver here"),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH"),
]
needs_cusync = pytest.mark.skipif(not CUSYNC, reason="CUSYNC_PATH names no checkout of cuSync")


def exported(dependencies: str, folder: Path) -> Path:
    words = ["export", str(HERE / dependencies), "--format", "cusync", "--several-waits", "-o", str(folder)]
    assert main(words) == 0
    return folder


def build(source: Path, folder: Path, *words: str | Path) -> Path:
    program = folder / source.stem
    subprocess.run(["nvcc", "-std=c++17", "-arch=native", "-I", folder, source, *words, "-o", program], check=True)
    return program


def rows_of(program: Path) -> tuple[int, dict[tuple[str, float], int], str]:
    """Return the exit code, the rounds with a wrong result by name and delay in microseconds, and the output."""
    result = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    sys.stdout.write(result.stdout)
    rows = re.findall(r"^(\S.*?) +late by +([\d.]+) us: +\d+ rounds, +(\d+) wrong", result.stdout, re.MULTILINE)
    return result.returncode, {(name, float(late)): int(n) for name, late, n in rows}, result.stdout + result.stderr


@pytest.mark.parametrize("dependencies", ["halo_race.dep", "halo_omitted.dep"])
def test_the_example_that_is_exported_runs_and_no_tile_goes_on_too_early(dependencies, tmp_path):
    folder = exported(dependencies, tmp_path)
    code, _, output = rows_of(build(folder / "example.cu", folder, "-I", INCLUDE))
    assert code == 0, output
    assert "0 went on too early" in output


def test_a_late_block_is_harmless_where_the_halo_is_awaited(tmp_path):
    folder = exported("halo_race.dep", tmp_path)
    code, wrong, output = rows_of(build(HERE / "halo_alone.cu", folder, "-I", INCLUDE))
    assert code == 0, output
    assert len(wrong) == 5
    assert sum(wrong.values()) == 0


def test_a_late_block_makes_the_result_wrong_where_the_halo_is_omitted(tmp_path):
    folder = exported("halo_omitted.dep", tmp_path)
    code, wrong, output = rows_of(build(HERE / "halo_alone.cu", folder, "-I", INCLUDE))
    assert code == 1, output
    assert max(count for (_, late), count in wrong.items() if late == 1000.0) > 0


@needs_cusync
def test_cusync_itself_runs_the_example(tmp_path):
    folder = exported("halo_race.dep", tmp_path)
    program = build(folder / "example.cu", folder, "-I", f"{CUSYNC}/src/include", f"{CUSYNC}/src/cusync.cu")
    code, _, output = rows_of(program)
    assert code == 0, output
    assert "0 went on too early" in output


@needs_cusync
def test_a_late_block_makes_the_shipped_policies_wrong_and_not_the_one_with_the_halo(tmp_path):
    folder = exported("halo_race.dep", tmp_path)
    program = build(HERE / "halo_race.cu", folder, "-I", f"{CUSYNC}/src/include", f"{CUSYNC}/src/cusync.cu")
    code, wrong, output = rows_of(program)
    assert code == 0, output
    assert sum(count for (name, _), count in wrong.items() if name == "with the halo") == 0
    assert wrong["Conv2DTileSync", 1000.0] > 0
    assert wrong["RowSync", 1000.0] > 0
