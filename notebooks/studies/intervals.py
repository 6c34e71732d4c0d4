"""Ranges beside single values: what several assumptions give, and what was published."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from tileprof.viz.figures.figure_style import PALETTE, dressed


def intervals(table: pd.DataFrame, *, title: str, x_title: str, one: str = "", log_x: bool = False) -> go.Figure:
    """Return one row per line, from the top: a bar from ``low`` to ``high``, and a mark at ``value``.

    ``table`` has columns ``row``, ``low``, ``high`` and ``value``; a value that is not a number has no mark. ``one``
    names an upright line at 1.
    """
    places = list(range(len(table)))
    figure = go.Figure()
    for number, (place, low, high) in enumerate(zip(places, table["low"], table["high"], strict=True)):
        figure.add_trace(
            go.Scatter(
                x=[low, high],
                y=[place, place],
                mode="lines+markers",
                name="simulated, under all assumptions",
                showlegend=number == 0,
                line={"color": PALETTE[0], "width": 7},
                marker={"symbol": "line-ns", "size": 14, "line": {"width": 3, "color": PALETTE[0]}},
                hovertemplate=f"{table['row'].iloc[place]}<br>{low:.2f} to {high:.2f}<extra></extra>",
            )
        )
    figure.add_trace(
        go.Scatter(
            x=table["value"],
            y=places,
            mode="markers",
            name="published",
            marker={"symbol": "diamond", "size": 12, "color": PALETTE[1], "line": {"width": 1.5, "color": "white"}},
            hovertemplate="%{x:.2f}<extra>published</extra>",
        )
    )
    if one:
        figure.add_vline(1.0, line={"color": "#888888", "width": 1.5, "dash": "dot"}, layer="below")
        # Annotations on an axis of logarithms want the logarithm, shapes do not.
        at = {"x": 0.0 if log_x else 1.0, "y": 1.0, "yref": "y domain", "xanchor": "center", "yanchor": "bottom"}
        figure.add_annotation(text=one, showarrow=False, font={"size": 13, "color": "#555555"}, **at)
    figure.update_xaxes(title=x_title, type="log" if log_x else "linear")
    if log_x:
        ticks = [t for t in (0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 30, 50) if _within(table, t)]
        figure.update_xaxes(tickvals=ticks, ticktext=[f"{t:g}" for t in ticks])
    figure.update_yaxes(
        tickmode="array", tickvals=places, ticktext=list(table["row"]), range=[len(table) - 0.5, -0.5], showgrid=False
    )
    return dressed(figure, title, height=170 + 34 * len(table), top=46)


def _within(table: pd.DataFrame, tick: float) -> bool:
    numbers = table[["low", "high", "value"]].to_numpy(float).ravel()
    numbers = numbers[numbers > 0]
    return bool(numbers.min() / 1.3 <= tick <= numbers.max() * 1.3)
