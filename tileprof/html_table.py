"""Tables that notebooks show."""

from __future__ import annotations

import html
from collections.abc import Iterable


def html_table(rows: Iterable[Iterable[str]]) -> str:
    """Return a table of cells, whose text is escaped: names in it come from files and programs."""
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
