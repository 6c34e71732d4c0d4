"""Every notebook runs from top to bottom. Its two forms hold the same cells, and one of them the outputs of a run."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import jupytext
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from tests.support.warm import Commands

FOLDER = Path(__file__).parents[3] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
FEWER = {
    "acs_and_spawn": (
        ("windows = (1, 2, 4, 8, 16, 32, 64, 128)", "windows = (1, 64)"),
        ('"--steps", "8", "--hidden", "256"', '"--steps", "3", "--hidden", "128"'),
        ('scale=12 if name in ("bfs", "sssp") else 15', "scale=11"),
        ('environments=("ant", "cheetah")', 'environments=("ant",)'),
        ("published.blockmaestro()", 'published.blockmaestro(("bicg", "hotspot", "pathfinder"))'),
        ("published.wireframe()", "published.wireframe(side=16)"),
        ("published.spawn(scale=12)", "published.spawn(scale=6)"),
    ),
    "bloom_filter_size": (
        ("--hidden 256 --steps 8", "--hidden 128 --steps 4"),
        ("for k in (8, 10, 12, 14, 16, 18)", "for k in (8, 12)"),
        ("FLUSHES = (1, 2, 4, 8)", "FLUSHES = (1, 8)"),
        ("for bits in (4096, 16384, 65536) for granule", "for bits in (4096,) for granule"),
        ("GRANULES = (32, 64, 128, 256, 512, 2048)", "GRANULES = (64, 512)"),
    ),
    "ccks_link_latency": (
        ("--hidden 256 --steps 8", "--hidden 128 --steps 3"),
        ("np.geomspace(0.1, 20, 12)", "np.geomspace(0.1, 20, 3)"),
        ("while high - low > 0.01:", "while high - low > 2:"),
        ("for count in (1, 2, 4, 8, 16, 32)", "for count in (1, 32)"),
    ),
    "convolution_halo": (("BATCHES = (1, 16)", "BATCHES = (16,)"),),
    "utilisation_levels": (
        ('devices = ["V100", "H200"]', 'devices = ["H200"]'),
        (
            'layers = [data / "deepbench_rnn.csv", data / "deepbench_conv.csv"]',
            (
                'layers = [folder / "deepbench_rnn.csv", folder / "deepbench_conv.csv"]\n'
                "for path in layers:\n    pd.read_csv(data / path.name)[::8].to_csv(path, index=False)"
            ),
        ),
    ),
    "which_policy_for_my_mlp": (
        ('    256: ("256x128x32,split=4", "256x128x32,split=2"),\n', ""),
        ('    1024: ("256x256x32,split=2", "256x256x32,split=1"),\n', ""),
    ),
}
"""Notebooks that the gate runs with fewer points, and these points; `make search` runs all notebooks unchanged."""

FIGURE, TEXT = "application/vnd.plotly.v1+json", "text/markdown"


def sources(notebook) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def outputs_of(cells, kind: str) -> list:
    return [
        output["data"][kind] for cell in cells for output in cell.get("outputs", []) if kind in output.get("data", {})
    ]


def test_every_notebook_has_both_forms() -> None:
    assert len(NOTEBOOKS) >= 6
    assert {path.stem for path in NOTEBOOKS} == {path.stem for path in FOLDER.glob("*.ipynb")}, "run `make notebooks`"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_notebook_and_its_text_form_are_the_same(path: Path) -> None:
    notebook = jupytext.read(path.with_suffix(".ipynb"))
    assert sources(notebook) == sources(jupytext.read(path)), "run `make notebooks`"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)], "run `make notebooks`"
    assert outputs_of(code, FIGURE)
    assert re.search(r"\d", "".join(outputs_of(code[-2:], TEXT))), "the answer's numbers are among the outputs"
    assert not [o for cell in code for o in cell.outputs if o.output_type in {"stream", "error"}]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_notebook_begins_with_a_title(path: Path) -> None:
    first = jupytext.read(path).cells[0]
    assert first.cell_type == "markdown"
    assert re.match(r"# .*[^?]$", first.source.splitlines()[0]), first.source


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("path", "fewer"),
    [pytest.param(path, FEWER.get(path.stem, ()), id=path.stem) for path in NOTEBOOKS]
    + [pytest.param(FOLDER / f"{name}.py", (), id=f"{name}, all of it", marks=pytest.mark.nightly) for name in FEWER],
)
def test_the_notebook_runs_and_ends_with_an_answer_that_it_computed(
    path: Path, fewer: tuple[tuple[str, str], ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: Commands
) -> None:
    folders = (warm.path, Path(sys.executable).parent, os.environ["PATH"])
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))
    notebook = jupytext.read(path)
    for whole, part in fewer:
        [cell] = [cell for cell in notebook.cells if whole in cell.source]
        cell.source = cell.source.replace(whole, part)

    class WarmKernel(AsyncKernelManager):
        def format_kernel_cmd(self, extra_arguments=None) -> list[str]:
            return [str(warm.python), "-m", "ipykernel_launcher", "-f", self.connection_file]

    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, kernel_manager_class=WarmKernel, timeout=540, resources=where).execute()
    assert not list(tmp_path.iterdir()), "a notebook leaves nothing where it runs"
    assert "**Answer.**" in notebook.cells[-1].source
    answer = "".join(outputs_of(notebook.cells[-2:], TEXT))
    assert re.search(r"\d", answer), "the answer's numbers are displayed by the last cells"
    assert not re.search(r"\b(nan|None|inf)\b", answer), answer
    figures = outputs_of(notebook.cells, FIGURE)
    assert figures
    assert all(figure["data"] and figure["layout"]["title"]["text"] for figure in figures), "a figure says its finding"
