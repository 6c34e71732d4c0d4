"""Every notebook runs from top to bottom; its two forms hold the same cells, and neither holds outputs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.py"))


def sources(notebook) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_notebook_and_its_text_form_are_the_same(path: Path) -> None:
    notebook = jupytext.read(path.with_suffix(".ipynb"))
    assert sources(notebook) == sources(jupytext.read(path)), "run `make notebooks`"
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_notebook_runs_and_ends_with_its_answer(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = jupytext.read(path)
    NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert "**Answer.**" in notebook.cells[-1].source
    assert any(cell.get("outputs") for cell in notebook.cells)
