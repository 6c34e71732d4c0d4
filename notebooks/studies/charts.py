"""Charts of the notebooks: plotly pictures of tables. Colours, dashes and markers differ together, so that no reader
needs colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import ceil

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from tileprof.errors import UserError
from tileprof.viz.figures.figure_style import LABEL_PX, PALETTE, dressed

LEVELS = (0.25, 0.5, 0.75)
"""Bounds of the levels of `level_bars`."""

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
_MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
_LEVEL_COLOURS = ("#D55E00", "#F0B670", "#9CCBEA", "#0072B2")
_MOST_TICKS = 10
_LEAST_LABELLED = 0.075
"""Share of a bar below which a number does not fit."""


def level_shares(
    share: NDArray[np.float64], weight: NDArray[np.float64], bounds: Sequence[float] = LEVELS
) -> NDArray[np.float64]:
    """Return how much of ``weight`` lies below the first bound, from there to below the second, and so on; they sum to
    1.

    Raises `UserError` where all weights are 0, or none are given.
    """
    total = float(np.sum(weight))
    if total <= 0:
        raise UserError("there is nothing to share out: no rows, or all weights are 0")
    level = np.searchsorted(np.asarray(bounds), share, side="right")
    return np.bincount(level, weight, len(bounds) + 1) / total


def level_bars(table: pd.DataFrame, *, title: str, what: str, bounds: Sequence[float] = LEVELS) -> go.Figure:
    """Return bars of levels: how many of a group's rows, and how much of their time, have a ``share`` (0 to 1) in each
    level.

    ``table`` has columns ``group`` (bars in the order in which they come), ``share`` and ``time_ns``; ``what`` says
    what is shared.
    """
    groups = list(dict.fromkeys(table["group"]))
    panels = ("share of kernels", "share of their time")
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.1, subplot_titles=panels)
    names = [f"{low:.0%} to {high:.0%}" for low, high in zip((0, *bounds), (*bounds, 1), strict=True)]
    for column in range(2):
        shares = np.array([_of_group(table[table["group"] == group], column == 1, bounds) for group in groups])
        for level, name in enumerate(names):
            part = shares[:, level]
            figure.add_trace(
                go.Bar(
                    y=groups,
                    x=part,
                    name=name,
                    orientation="h",
                    showlegend=column == 0,
                    marker={
                        "color": _LEVEL_COLOURS[level % len(_LEVEL_COLOURS)],
                        "line": {"color": "white", "width": 1},
                    },
                    text=[f"{value:.0%}" if value >= _LEAST_LABELLED else "" for value in part],
                    textposition="inside",
                    insidetextanchor="middle",
                    textangle=0,
                    textfont={"color": "white" if level in (0, len(names) - 1) else "black", "size": LABEL_PX},
                    hovertemplate="%{y}: %{x:.1%}<extra>" + name + "</extra>",
                ),
                row=1,
                col=column + 1,
            )
    figure.update_layout(
        legend_traceorder="normal", barmode="stack", bargap=0.25, uniformtext={"minsize": 10, "mode": "show"}
    )
    figure.update_xaxes(range=[0, 1], tickformat=".0%", tickvals=[0, 0.25, 0.5, 0.75, 1], tickangle=0)
    figure.update_yaxes(autorange="reversed", ticks="")
    return dressed(figure, title, height=190 + 40 * len(groups), top=72, legend=what)


def _of_group(rows: pd.DataFrame, timed: bool, bounds: Sequence[float]) -> NDArray[np.float64]:
    weight = rows["time_ns"].to_numpy(np.float64) if timed else np.ones(len(rows))
    return level_shares(rows["share"].to_numpy(np.float64), weight, bounds)


def wave_points(table: pd.DataFrame, *, title: str) -> go.Figure:
    """Return kernels as points: waves (tiles over slots) across, share of the slots that tiles fill over these waves
    up.

    ``table`` has columns ``waves``, ``share``, ``family`` (a colour each), ``source`` (hollow marks for the first,
    filled for the second) and ``name`` (shown on hover); the area of a mark grows with the kernels that share it. The
    line behind is what whole waves allow: w / ceil(w).
    """
    low, high = float(table["waves"].min()) / 1.3, float(table["waves"].max()) * 1.3
    at = _saw(low, high)
    figure = go.Figure(
        go.Scatter(
            x=at,
            y=at / np.ceil(at),
            mode="lines",
            line={"color": "#999999", "width": 1.2},
            name="whole waves",
            hoverinfo="skip",
        )
    )
    families, sources = (list(dict.fromkeys(table[column])) for column in ("family", "source"))
    columns = ["family", "source", "waves", "share"]
    alike = table.groupby(columns, sort=False)["name"].agg(["first", "size"]).reset_index()
    for (family, source), rows in alike.groupby(["family", "source"], sort=False):
        filled = sources.index(source) % 2 == 1
        colour = PALETTE[families.index(family) % len(PALETTE)]
        figure.add_trace(
            go.Scatter(
                x=rows["waves"],
                y=rows["share"],
                mode="markers",
                name=f"{family}, {source}",
                text=[
                    f"{name} and {n - 1} more" if n > 1 else name
                    for name, n in rows[["first", "size"]].itertuples(index=False)
                ],
                hovertemplate="%{text}<br>%{x:.2f} waves, %{y:.0%} of the slots<extra></extra>",
                marker={
                    "color": colour if filled else "rgba(255,255,255,0.6)",
                    "symbol": "diamond" if filled else ("circle", "square")[families.index(family) % 2],
                    "size": 5 + 2.5 * np.sqrt(rows["size"].to_numpy(np.float64)),
                    "line": {"width": 1 if filled else 2, "color": "white" if filled else colour},
                },
            )
        )
    figure.update_layout(legend_itemsizing="constant")
    figure.update_xaxes(type="log", title="tiles of the kernel over slots of the GPU (waves)", **_log_ticks(low, high))
    figure.update_yaxes(title="slots filled, mean over the waves", tickformat=".0%", range=[0, 1.04])
    return dressed(figure, title, height=560, top=64)


def share_points(table: pd.DataFrame, *, title: str) -> go.Figure:
    """Return layers as points: share of the slots that tiles fill across, share of peak arithmetic (0 to 1) up.

    ``table`` has columns ``share``, ``arithmetic``, ``family`` (a colour and a mark each) and ``name`` (shown on
    hover).
    """
    figure = go.Figure()
    for number, (family, rows) in enumerate(table.groupby("family", sort=False)):
        look = {"color": PALETTE[number % len(PALETTE)], "symbol": _MARKERS[number % len(_MARKERS)], "size": 8}
        figure.add_trace(
            go.Scatter(
                x=rows["share"],
                y=rows["arithmetic"],
                mode="markers",
                name=str(family),
                text=rows["name"],
                hovertemplate="%{text}<br>%{x:.0%} of the slots, %{y:.1%} of the arithmetic<extra></extra>",
                marker={**look, "opacity": 0.7, "line": {"width": 1, "color": "white"}},
            )
        )
    figure.update_xaxes(title="slots filled, mean over the waves (modelled)", tickformat=".0%", range=[0, 1.04])
    figure.update_yaxes(title="of peak arithmetic (measured)", tickformat=".0%", rangemode="tozero")
    return dressed(figure, title, height=480, top=64)


def _saw(low: float, high: float) -> NDArray[np.float64]:
    """Return where w / ceil(w) turns, and points between for the log axis."""
    turns = np.arange(1, min(ceil(high), 400) + 1, dtype=np.float64)
    smooth = np.geomspace(low, high, 400)
    return np.sort(np.concatenate([smooth, turns[turns <= high], turns[turns <= high] * (1 + 1e-9)]))


def _log_ticks(low: float, high: float, at: Sequence[float] = ()) -> dict[str, list[float] | list[str]]:
    """Return ticks ``at`` these values, if they are few, or else at 1, 2 and 5 times powers of ten."""
    if 0 < len(at) <= _MOST_TICKS:
        return {"tickvals": list(at), "ticktext": [f"{v:,g}" for v in at]}
    values = [m * 10.0**e for e in range(-6, 13) for m in (1, 2, 5)]
    inside = [v for v in values if low <= v <= high]
    if len(inside) > _MOST_TICKS:
        inside = [v for v in inside if f"{v:e}"[0] == "1"]
    return {"tickvals": inside, "ticktext": [f"{v:,g}" for v in inside]}


def curves(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    by: str,
    title: str,
    x_title: str,
    y_title: str,
    panel: str = "",
    levels: Mapping[str, Mapping[str, float]] | None = None,
    log_x: bool = False,
    log_y: bool = False,
    percent: bool = False,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    guides: Mapping[str, float] | None = None,
    columns: int = 2,
    even_x: bool = False,
) -> go.Figure:
    """Return lines of column ``y`` over column ``x``, one for each value of ``by``, in a panel for each value of
    ``panel``.

    ``levels``: by panel, named values of y that do not depend on x, drawn across. ``guides``: named values of x, drawn
    upright in every panel. ``ranges``: by panel, what of y is shown. ``percent``: y are shares of 1. ``even_x``: values
    of x stand at equal distances, each with its tick; not with ``log_x`` or ``guides``, which need an axis of numbers.
    """
    if even_x and (log_x or guides):
        raise UserError("values of x at equal distances leave no axis for log_x or guides: choose one of them")
    panels = list(dict.fromkeys(table[panel])) if panel else [""]
    columns = min(columns, len(panels))
    rows = ceil(len(panels) / columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=[str(name) for name in panels] if panel else None,
        shared_xaxes=True,
        horizontal_spacing=0.09,
        vertical_spacing=(0.36 if even_x else 0.22) / rows,
    )
    for place, name in enumerate(panels):
        at = {"row": place // columns + 1, "col": place % columns + 1}
        inside = table[table[panel] == name] if panel else table
        for line in _panel_lines(inside, (x, y, by), list(dict.fromkeys(table[by])), first=place == 0):
            figure.add_trace(line, **at)
        for line in _panel_levels(inside[x], levels or {}, str(name), first=place == 0):
            figure.add_trace(line, **at)
        for key, value in (guides or {}).items():
            figure.add_vline(value, line={"color": "#aaaaaa", "width": 1}, layer="below", **at)
            figure.add_annotation(_guide_label(key, np.log10(value) if log_x else value), **at)
        if even_x:
            figure.update_xaxes(_even_ticks(inside[x]), **at)
        if str(name) in (ranges or {}):
            figure.update_yaxes(range=(ranges or {})[str(name)], **at)
    _scale_axes(figure, table[x] if log_x else None, table[y] if log_y else None, percent=percent)
    figure.update_xaxes(title=x_title, row=rows)
    figure.update_yaxes(title=y_title, col=1)
    return dressed(figure, title, height=180 + (310 if even_x else 270) * rows, top=78 if panel else 56)


def _scale_axes(figure: go.Figure, log_x: pd.Series | None, log_y: pd.Series | None, *, percent: bool) -> None:
    """Show ticks in every panel; make the axes of given values logarithmic, and those of y percentages."""
    figure.update_xaxes(showticklabels=True)
    if log_x is not None:
        ticks = sorted(set(log_x.tolist()))
        figure.update_xaxes(type="log", **_log_ticks(float(log_x.min()), float(log_x.max()), ticks))
    if log_y is not None:
        figure.update_yaxes(type="log", **_log_ticks(float(log_y.min()) / 1.2, float(log_y.max()) * 1.2))
    if percent:
        figure.update_yaxes(tickformat=".0%")


def _panel_lines(
    inside: pd.DataFrame, columns: tuple[str, str, str], names: Sequence[object], *, first: bool
) -> Iterator[go.Scatter]:
    """Yield one line per name that has rows in this panel; ``columns``: x, y and the names'."""
    x, y, by = columns
    for number, key in enumerate(names):
        line = inside[inside[by] == key].sort_values(x)
        if not line.empty:
            yield _curve(line[x], line[y], str(key), number, first=first)


def _panel_levels(
    x: pd.Series, levels: Mapping[str, Mapping[str, float]], panel: str, *, first: bool
) -> Iterator[go.Scatter]:
    """Yield the levels of a panel; a name looks the same in all panels."""
    looks = {name: number for number, name in enumerate(dict.fromkeys(chain.from_iterable(levels.values())))}
    for name, value in levels.get(panel, {}).items():
        yield _level([float(x.min()), float(x.max())], value, name, looks[name], first=first)


def _even_ticks(x: pd.Series) -> dict[str, object]:
    """Return a place for every value, in ascending order."""
    values = sorted(set(x.tolist()))
    places = {"type": "category", "categoryorder": "array", "categoryarray": values}
    labels = {"tickvals": values, "ticktext": [f"{v:,g}" for v in values], "tickangle": -90, "tickfont": {"size": 12}}
    return places | labels


def _guide_label(name: str, x: float) -> dict[str, object]:
    """Return a label at the foot of the line, left of it; axes of logarithms want the logarithm here, and only here."""
    look = {"textangle": -90, "showarrow": False, "font": {"size": 12, "color": "#555555"}}
    return look | {"text": name, "x": x, "y": 0.02, "yref": "y domain", "xanchor": "right", "yanchor": "bottom"}


def _curve(x: pd.Series, y: pd.Series, name: str, number: int, *, first: bool) -> go.Scatter:
    look = number % len(PALETTE)
    return go.Scatter(
        x=x,
        y=y,
        name=name,
        legendgroup=name,
        showlegend=first,
        mode="lines+markers",
        line={"color": PALETTE[look], "dash": _DASHES[look], "width": 2.5},
        marker={"symbol": _MARKERS[look], "size": 8},
    )


def _level(x: list[float], value: float, name: str, number: int, *, first: bool) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=[value, value],
        name=name,
        legendgroup=name,
        showlegend=first,
        mode="lines",
        line={"color": ("#444444", "#999999")[number % 2], "dash": ("longdash", "dot")[number % 2], "width": 2},
    )


def heat(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    value: str,
    title: str,
    x_title: str,
    y_title: str,
    unit: str,
    percent: bool = False,
) -> go.Figure:
    """Return cells of column ``value`` over columns ``x`` and ``y`` in ascending order, each with its number; ``unit``
    names the colours.
    """
    grid = table.pivot_table(index=y, columns=x, values=value, sort=True)
    cells = grid.to_numpy(np.float64)
    figure = go.Figure(
        go.Heatmap(
            z=cells,
            x=[f"{v:,g}" for v in grid.columns],
            y=[f"{v:,g}" for v in grid.index],
            text=[[("" if np.isnan(v) else f"{v:.0%}" if percent else f"{v:,.3g}") for v in row] for row in cells],
            texttemplate="%{text}",
            colorscale="Cividis",
            colorbar={"title": {"text": unit, "side": "right"}, "tickformat": ".0%" if percent else ""},
            xgap=2,
            ygap=2,
        )
    )
    figure.update_xaxes(type="category", title=x_title)
    figure.update_yaxes(type="category", title=y_title)
    return dressed(figure, title, height=200 + 46 * len(grid), top=8)


def areas(
    cells: NDArray[np.integer],
    names: Sequence[str],
    colours: Sequence[str],
    *,
    title: str,
    x_title: str,
    y_title: str,
    origin: tuple[int, int] = (0, 0),
    square: bool = False,
) -> go.Figure:
    """Draw ``cells`` ``[rows, columns]``, numbers of ``names``: a plane of coloured cells, row 0 on top, with a legend.

    ``origin``: row and column that the first cell is called by. ``square``: cells are as wide as high. Raises
    `UserError` where a number has no name.
    """
    if cells.size == 0 or int(cells.min()) < 0 or int(cells.max()) >= len(names):
        raise UserError(
            f"cells are numbers of one of {len(names)} names, from 0; these are {np.unique(cells)[:10].tolist()}"
        )
    steps = [(k + side) / len(names) for k in range(len(names)) for side in (0, 1)]
    figure = go.Figure(
        go.Heatmap(
            z=cells,
            y0=origin[0],
            x0=origin[1],
            dx=1,
            dy=1,
            zmin=-0.5,
            zmax=len(names) - 0.5,
            colorscale=[(step, colours[k // 2]) for k, step in enumerate(steps)],
            showscale=False,
            xgap=1,
            ygap=1,
            text=np.asarray(names, dtype=object)[cells],
            hovertemplate="%{x}, %{y}: %{text}<extra></extra>",
        )
    )
    for k in sorted(set(cells.ravel().tolist())):
        mark = {"symbol": "square", "size": 14, "color": colours[k], "line": {"color": "#888888", "width": 1}}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=names[k], marker=mark))
    figure.update_xaxes(title=x_title, showgrid=False, zeroline=False, constrain="domain")
    figure.update_yaxes(title=y_title, showgrid=False, zeroline=False, autorange="reversed")
    if square:
        figure.update_yaxes(scaleanchor="x", constrain="domain")
    wide = square and cells.shape[1] > 2 * cells.shape[0]
    return dressed(figure, title, height=480 if wide else 620, top=48)


def bars(
    table: pd.DataFrame, *, x: str, y: str, by: str, title: str, x_title: str, y_title: str, percent: bool = False
) -> go.Figure:
    """Return column ``y`` as bars over the values of ``x``, side by side for the values of ``by``, each with its
    number.
    """
    figure = go.Figure()
    for number, (name, rows) in enumerate(table.groupby(by, sort=False)):
        figure.add_trace(
            go.Bar(
                x=rows[x],
                y=rows[y],
                name=str(name),
                marker={
                    "color": PALETTE[number % len(PALETTE)],
                    "pattern": {"shape": ("", "/", "\\", "x")[number % 4], "fgcolor": "white", "solidity": 0.25},
                },
                text=[f"{round(value, 2) + 0:.0%}" if percent else f"{value:,.3g}" for value in rows[y]],
                textposition="outside",
                cliponaxis=False,
            )
        )
    figure.update_layout(barmode="group", bargap=0.3)
    figure.update_xaxes(title=x_title, type="category")
    figure.update_yaxes(title=y_title, rangemode="tozero", tickformat=".0%" if percent else "")
    return dressed(figure, title, height=460, top=56 if len(figure.data) > 1 else 24)
