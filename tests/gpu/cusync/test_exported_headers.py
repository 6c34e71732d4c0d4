"""On a GPU: exported headers run on the bundled runtime, in graphs and under delays, and a wait that gives up is named.

``pytest -s tests/gpu/cusync/test_exported_headers.py`` shows the tables that the programs print.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tileprof.cli.entry import main
from tileprof.runtime.include_path import INCLUDE

EXAMPLES = INCLUDE.parents[1] / "examples" / "cuda"
REPLAYS = 1000

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no NVIDIA driver here"),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH"),
]


def build(source: Path, folder: Path, *words: str) -> Path:
    program = folder / source.stem
    command = ["nvcc", "-O3", "-std=c++17", "-arch=native", "-I", INCLUDE, "-I", folder, "-I", EXAMPLES, source, *words]
    subprocess.run([*command, "-o", program], check=True)
    return program


@pytest.mark.parametrize("name", ["products", "convolutions"])
def test_an_example_is_right_under_delays_and_leaving_out_its_waits_is_noticed(name: str, tmp_path: Path) -> None:
    words = ["export", "--format", "cusync", "--several-waits", "-o", str(tmp_path), str(EXAMPLES / f"{name}.dep")]
    assert main(words) == 0
    program = build(EXAMPLES / f"{name}.cu", tmp_path)
    result = subprocess.run([program, str(REPLAYS)], capture_output=True, text=True, timeout=250, check=False)
    sys.stdout.write(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", ["rows", "halo", "join"])
def test_the_verb_runs_an_exported_header(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = {
        "rows": "grid up 6 x 4\ngrid down 5 x 4\ndep down on up(0..5, y)",
        "halo": "grid up 9 x 2\ngrid down 9 x 2\ndep down on up(max(0, x - 1)..min(8, x + 1), 0..1)",
        "join": "grid a 4 x 2\ngrid b 4 x 2\ngrid c 4 x 2\ngrid d 3\n"
        "dep b on a(3 - x, y)\ndep c on a(x, y)\ndep c on b(x // 2, y)\ndep d on c(x, 0..1)",
    }[name]
    (tmp_path / "chain.dep").write_text("tileprof dependencies 1\n" + text)
    words = ["export", "--format", "cusync", "--several-waits", "-o", str(tmp_path / "out")]
    assert main([*words, str(tmp_path / "chain.dep")]) == 0
    assert main(["run", str(tmp_path / "out" / "policy.h")]) == 0
    assert "no tile went on before" in capsys.readouterr().out


NEVER_POSTED = """
#define TILEPROF_WAIT_NS 20000000ull
#include <cstdio>
#include <tileprof/sync.cuh>
using namespace tileprof::sync;
using Up = CuStage<RowMajorOrder, NoSync, RowSync>;
using Down = CuStage<RowMajorOrder, RowSync, NoSync>;
__global__ void up(Up stage, unsigned missing) {
  __shared__ dim3 slot;
  const dim3 tile = stage.tile(&slot);
  if (tile.y != missing) stage.post(tile);
}
__global__ void down(Down stage) {
  __shared__ dim3 slot;
  stage.wait(stage.tile(&slot));
}
int main() {
  const dim3 grid(3, 4);
  Up first(grid, dim3(), NoSync(), RowSync());
  Down second(grid, dim3(), RowSync(), NoSync());
  CuSync::setProducerConsumerPair(first, second);
  auto round = [&](unsigned missing) {
    launch(up, grid, dim3(32), 0, nullptr, first, missing);
    launch_overlapped(down, grid, dim3(32), 0, nullptr, second);
    cudaDeviceSynchronize();
    return second.problem();
  };
  std::printf("%s|", round(99).c_str());
  std::printf("%s|", round(2).c_str());
  first.clear(), second.clear();
  std::printf("%s|\\n", round(99).c_str());
}
"""


def test_a_tile_that_is_never_posted_is_named_and_the_next_round_is_right(tmp_path: Path) -> None:
    source = tmp_path / "never_posted.cu"
    source.write_text(NEVER_POSTED)
    result = subprocess.run([build(source, tmp_path)], capture_output=True, text=True, timeout=60, check=True)
    before, during, after, _ = result.stdout.split("|")
    assert before == after == ""
    assert "round 1: semaphore 2 has 0 posts of the 3 that it awaits" in during, during
