"""Triton kernels of the program, and tiles that the user sets, from the command line."""

import subprocess
import sys
from pathlib import Path

import pytest

import tileprof
from tileprof.analysis import build_graph
from tileprof.trace import validate

RECORD = [str(Path(sys.executable).with_name("tileprof")), "record"]

TRITON = """
import torch, triton, triton.language as tl

@triton.jit
def add(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)

class Net(torch.nn.Module):
    def forward(self, x):
        once, twice = torch.empty_like(x), torch.empty_like(x)
        add[(4,)](x, x, once, x.numel(), B=256)
        add[(4,)](once, x, twice, x.numel(), B=256)
        return twice @ twice.T

x = torch.ones(25, 40)
print(Net()(x)[0, 0].item())
"""


def record(folder, *words, warm=None):
    """Return the finished command; with ``warm``, run in a fork that has imported the libraries."""
    command = RECORD if warm is None else [str(warm.path / "tileprof"), "record"]
    return subprocess.run([*command, *words], cwd=folder, capture_output=True, text=True, timeout=250, check=False)


def test_triton_kernels_are_launches_between_the_operators(tmp_path):
    pytest.importorskip("triton")
    (tmp_path / "net.py").write_text(TRITON)
    result = record(tmp_path, "net.py")
    assert (result.returncode, result.stdout) == (0, "360.0\n"), result.stderr
    trace = tileprof.load(tmp_path / "net.tileprof")
    assert validate(trace) == []
    launches = trace.launches
    own = launches[launches["op"] == "triton::add"]
    assert own["module"].tolist() == ["Net", "Net"]
    assert own["tiles"].tolist() == [4, 4]
    assert own["footprint"].nunique() == 2  # x twice in one slot, and two tensors
    pairs = build_graph(trace).pairs.set_index(["producer", "consumer"])
    first, second = own["launch"].tolist()
    assert pairs.loc[(first, second), "pattern"] == "one_to_one"
    assert pairs.loc[(first, second), "bytes"] == 4000
    product = int(launches.loc[launches["op"] == "aten::mm", "launch"].iloc[0])
    assert (second, product) in pairs.index


def test_dictated_tiles_give_the_grid_of_the_cusync_paper(tmp_path, warm):
    """Table IV, 512 tokens on a V100: grids 2x24x2 and 2x48x1, one block per SM, so 96 blocks in two waves of 80."""
    tiles = [
        "gemm@512x6144x12288=256x256x32,split=2,stages=2,threads=512",
        "gemm@512x12288x6144=256x256x32,split=1,stages=2,threads=512",
    ]
    words = [w for tile in tiles for w in ("--tile", tile)]
    program = [sys.executable, "-m", "tileprof.examples.mlp", "--tokens", "512"]
    result = record(tmp_path, "--fake", "--device", "V100", *words, "-o", "mlp", "--", *program, warm=warm)
    assert result.returncode == 0, result.stderr
    assert "Tile shapes are those of --tile" in result.stderr
    trace = tileprof.load(tmp_path / "mlp.tileprof")
    products = trace.launches[trace.launches["kernel"].str.startswith("gemm")]
    assert products["tiles"].tolist() == [2 * 24 * 2, 2 * 48]
    waves = -(-products["tiles"] // (trace.device.sms * products["blocks_per_sm"]))
    assert waves.tolist() == [2, 2]


def test_a_word_that_is_no_tile_is_refused_before_the_program_runs(tmp_path, warm):
    (tmp_path / "net.py").write_text("print('ran')")
    result = record(tmp_path, "--tile", "gemm=1x1", "net.py", warm=warm)
    assert (result.returncode, result.stdout) == (2, "")
    assert "3 sizes, not 2" in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["net.py"]
