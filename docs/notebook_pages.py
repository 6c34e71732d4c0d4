"""A hook of MkDocs: each notebook becomes a page with its outputs; figures are drawn by the plotly.js of plotly."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from plotly.offline import get_plotlyjs

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
SCRIPT = "assets/plotly.min.js"
FIGURE = "application/vnd.plotly.v1+json"


def on_files(files: Files, /, *, config: MkDocsConfig) -> Files:
    """Add a page per notebook, and the script that their figures need."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page(path)))
    files.append(File.generated(config, SCRIPT, content=get_plotlyjs()))
    return files


def page(path: Path) -> str:
    """The notebook as Markdown: cells in their order, each output behind the cell that made it."""
    parts, figures = [f'<script src="../{SCRIPT}"></script>'], 0
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source.replace("](../docs/", "](../"))
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            parts.append(_shown(output, figures))
            figures += FIGURE in output.get("data", {})
    title = next(part for part in parts if part.startswith("# "))
    parts.remove(title)
    return "\n\n".join([title, *parts]) + "\n"


def _shown(output: Any, number: int) -> str:
    data = output.get("data", {})
    if FIGURE in data:
        parts = (json.dumps(data[FIGURE][part]).replace("</", "<\\/") for part in ("data", "layout"))
        options = "{responsive: true, displayModeBar: false}"
        plot_call = f'Plotly.newPlot("figure-{number}", {", ".join(parts)}, {options})'
        return f'<div id="figure-{number}"></div>\n<script>{plot_call}</script>'
    if "text/markdown" in data:
        return str(data["text/markdown"])
    if "<table" in data.get("text/html", ""):
        table = re.sub(r"<style.*?</style>\n*", "", data["text/html"], flags=re.DOTALL)
        return table.replace(' border="1" class="dataframe"', "").replace(' style="text-align: right;"', "")
    text = output.get("text") or data.get("text/plain", "")
    return f"```text\n{text.rstrip()}\n```" if text else ""
