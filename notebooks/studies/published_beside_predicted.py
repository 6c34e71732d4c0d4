"""Draws published results beside predicted ones: plotly pictures for notebooks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tileprof.errors import UserError
from tileprof.viz.figures.figure_style import PALETTE, dressed

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
_ROOM = 0.06
"""Room around the outermost marks, as a share of the range."""


def beside(
    table: pd.DataFrame, *, title: str, by: str, panel: str, name: str, unit: str, order: Sequence[str] = ()
) -> go.Figure:
    """Return marks at (published, predicted) in a panel for each value of column ``panel``, a colour and symbol for
    each value of ``by``; on the diagonal both agree.

    ``table`` has columns ``published`` and ``predicted`` in ``unit``, and ``name``, which is shown on hover. ``order``:
    panels in this order; a panel of which there are no rows is left out. Hollow marks: rows whose column ``tests`` is
    false, where there is one. Raises `UserError` for an empty table.
    """
    panels = [p for p in (order or dict.fromkeys(table[panel])) if (table[panel] == p).any()]
    if not panels:
        raise UserError("there is nothing to draw: no published value has a prediction")
    figure = make_subplots(rows=1, cols=len(panels), subplot_titles=panels, horizontal_spacing=0.07)
    names = list(dict.fromkeys(table[by]))
    for column, key in enumerate(panels, 1):
        inside = table[table[panel] == key]
        low, high = _range(inside)
        figure.add_trace(
            go.Scatter(
                x=[low, high],
                y=[low, high],
                mode="lines",
                line={"color": "#999999", "width": 1.2},
                hoverinfo="skip",
                showlegend=False,
            ),
            row=1,
            col=column,
        )
        for number, which in enumerate(names):
            rows = inside[inside[by] == which]
            if not rows.empty:
                figure.add_trace(_marks(rows, str(which), number, name, unit, first=column == 1), row=1, col=column)
        figure.update_xaxes(range=(low, high), title=f"published, {unit}", row=1, col=column)
        figure.update_yaxes(range=(low, high), row=1, col=column)
    figure.update_yaxes(title=f"predicted, {unit}", col=1)
    return dressed(figure, title, height=470, top=78)


def _range(rows: pd.DataFrame) -> tuple[float, float]:
    both = rows[["published", "predicted"]].to_numpy(np.float64)
    room = _ROOM * (both.max() - both.min()) or 1.0
    return float(both.min() - room), float(both.max() + room)


def _marks(rows: pd.DataFrame, which: str, number: int, name: str, unit: str, *, first: bool) -> go.Scatter:
    colour = PALETTE[number % len(PALETTE)]
    tests = rows["tests"].to_numpy(bool) if "tests" in rows else np.ones(len(rows), bool)
    return go.Scatter(
        x=rows["published"],
        y=rows["predicted"],
        name=which,
        legendgroup=which,
        showlegend=first,
        mode="markers",
        marker={
            "symbol": _SYMBOLS[number % len(_SYMBOLS)],
            "size": 10,
            "color": np.where(tests, colour, "#ffffff").tolist(),
            "line": {"color": colour, "width": 1.5},
        },
        customdata=rows[[name]],
        hovertemplate=f"%{{customdata[0]}}: published %{{x:.1f}} {unit}, predicted %{{y:.1f}} "
        f"{unit}<extra>{which}</extra>",
    )
