"""Programs under ``--scheduler acs`` on a GPU give the bits of stream order, with and without late launches; checks
notice faults.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from tileprof import examples
from tileprof.cli.running.run_acs import record_table
from tileprof.runtime import acs

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
ISLANDS = Path(examples.__file__).parent / "cuda" / "islands.cu"
TRAINING = """
import hashlib, torch
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
branches = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(6)).cuda()
optimizer = torch.optim.Adam(branches.parameters(), lr=1e-3, foreach=False)
inputs = torch.randn(32, 64, device="cuda")
for _ in range(4):
    optimizer.zero_grad()
    sum(branch(inputs) for branch in branches).square().mean().backward()
    optimizer.step()
weights = torch.cat([p.detach().flatten() for p in branches.parameters()]).cpu()
print(hashlib.sha256(weights.numpy().tobytes()).hexdigest())
"""
PROGRAMS = {
    "cloth": ["cloth"],
    "moe": ["moe"],
    "gated": ["dynamic", "--kind", "gated"],
    "inception": ["inception"],
    "inception, captured": ["inception", "--graph", "--keep"],
}


@dataclass(frozen=True)
class Tabulated:
    """Provide a program, and the table of a recording of it."""

    command: tuple[str, ...]
    folder: Path

    @property
    def table(self) -> Path:
        return self.folder / "table"

    def plain(self) -> str:
        return self._run({})[0]

    def under(self, mode: acs.Mode, table: Path | None = None, **more: Any) -> tuple[str, dict[str, Any]]:
        """Return the program's output, and the library's counts."""
        place = self.folder / f"{mode}-{len(list(self.folder.iterdir()))}"
        place.mkdir()
        output, _ = self._run(acs.environment(acs.build(), acs.Settings(mode, place, table or self.table, **more)))
        return output, acs.results(place)[0]

    def _run(self, variables: dict[str, str]) -> tuple[str, str]:
        result = subprocess.run(
            self.command, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=120
        )
        assert result.returncode == 0, result.stderr
        return result.stdout, result.stderr


def table_of(command: tuple[str, ...], folder: Path, *, fine: bool = False) -> Tabulated:
    folder.mkdir(exist_ok=True)
    record_table(command, folder, acs.build(), fine=fine).write(folder / "table")
    return Tabulated(command, folder)


@pytest.fixture(scope="module")
def islands(tmp_path_factory: pytest.TempPathFactory) -> Tabulated:
    """Compile the CUDA program without PyTorch."""
    folder = tmp_path_factory.mktemp("islands")
    subprocess.run(["nvcc", "-O3", "-std=c++17", "-arch=native", ISLANDS, "-o", folder / "program"], check=True)
    return table_of((str(folder / "program"), "10"), folder / "acs")


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("mode", ["streams", "graph"])
def test_independent_launches_are_spread_and_change_no_bit(islands: Tabulated, mode: acs.Mode, threads: int) -> None:
    output, counts = islands.under(mode, threads=threads)
    assert output == islands.plain()
    assert (counts["queued"] > counts["launches"] / 2) == bool(threads)
    assert counts["unknown"] == 0
    assert counts["spread"] + counts["graph_kernels"] > counts["launches"] / 2


def test_launches_that_begin_late_change_no_bit(islands: Tabulated) -> None:
    expected = islands.plain()
    for _ in range(5):
        output, counts = islands.under("streams", delay_us=50)
        assert output == expected
        assert counts["spread"] > 100


@pytest.mark.parametrize("word", ["write", "read"])
def test_check_notices_ranges_that_the_table_lacks(islands: Tabulated, tmp_path: Path, word: str) -> None:
    assert islands.under("check")[1]["differing"] == 0
    rows = [line for line in islands.table.read_text().splitlines() if not line.startswith(word)]
    broken_table = tmp_path / "table"
    broken_table.write_text("\n".join(rows) + "\n")
    output, counts = islands.under("check", broken_table, orders=8)
    assert output == islands.plain()  # the program continues with the results of stream order
    assert counts["differing"] > 0


def test_the_table_of_another_program_leaves_stream_order(islands: Tabulated, tmp_path: Path) -> None:
    path = tmp_path / "cloth"
    other = table_of((sys.executable, "-m", "tileprof.examples.cloth", "--device", "cuda", "--steps", "3"), path)
    output, counts = islands.under("streams", other.table)
    assert output == islands.plain()
    assert counts["spread"] == 0
    assert counts["unknown"] == counts["launches"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_table_knows_its_program_in_another_process(tmp_path: Path, name: str) -> None:
    module, *words = PROGRAMS[name]
    command = (
        sys.executable,
        "-m",
        f"tileprof.examples.{module}",
        *words,
        "--device",
        "cuda",
        "--steps",
        "4",
        "--digest",
    )
    program = table_of(command, tmp_path / "acs")
    output, counts = program.under("streams", delay_us=20)
    assert output == program.plain()
    other = sum(count for why, count in counts["reasons"].items() if "other parameters" in why)
    assert other <= 0.2 * counts["launches"], json.dumps(counts["reasons"], indent=1)
    assert counts["spread"] > 0


def test_a_fine_table_passes_its_check(islands: Tabulated, tmp_path: Path) -> None:
    tree = (sys.executable, "-m", "tileprof.examples.tree_lstm", "--device", "cuda", "--steps", "3")
    for number, command in enumerate((islands.command, tree)):
        program = table_of(command, tmp_path / str(number), fine=True)
        output, counts = program.under("check", orders=4)
        assert output == program.plain()
        assert counts["checked"] > counts["launches"] / 2
        assert counts["differing"] == 0


def test_captured_launches_of_a_tree_are_known(tmp_path: Path) -> None:
    command = (
        sys.executable,
        "-m",
        "tileprof.examples.tree_lstm",
        "--graph",
        "--keep",
        "--device",
        "cuda",
        "--steps",
        "4",
        "--digest",
    )
    program = table_of(command, tmp_path / "acs")
    output, counts = program.under("streams", delay_us=20)
    assert output == program.plain()
    assert counts["captured"] > 0
    captured = [at for at in counts["unknown_at"] if at >= counts["capture_at"]]
    assert len(captured) <= 0.02 * (counts["launches"] - counts["capture_at"])


def test_training_steps_keep_their_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    path = tmp_path / "training.py"
    path.write_text(TRAINING)
    program = table_of((sys.executable, str(path)), tmp_path / "acs")
    modes: tuple[tuple[acs.Mode, int], ...] = (("streams", 0), ("streams", 1), ("graph", 1), ("check", 0))
    for mode, threads in modes:
        output, counts = program.under(mode, threads=threads)
        assert output == program.plain()
        assert counts["differing"] == 0
