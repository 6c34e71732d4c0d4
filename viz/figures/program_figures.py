"""Figures of a whole program for notebooks: its launches over time, and what overlap of its pairs would gain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tileprof.viz.figures.figure_style import PALETTE, dressed

_COLOURED = 6
"""Kernels with a colour of their own, those with most time; the others share one."""

_OTHER = "#b4b8c0"


def launch_name(op: object, kernel: object) -> str:
    """Return what a launch is called: its operator, else its kernel."""
    return str(op).removeprefix("aten::").split(".", 1)[0] or str(kernel)


def timeline(launches: pd.DataFrame, *, title: str) -> go.Figure:
    """Return launches over time, one row per stream, a colour for each of the kernels with most time.

    ``launches`` as in `tileprof.trace.schema`; times in microseconds from the first launch.
    """
    begin = (launches["begin_ns"] - launches["begin_ns"].min()).to_numpy(np.float64) / 1e3
    wide = launches["duration_ns"].to_numpy(np.float64) / 1e3
    kernels = launches["kernel"].astype(str)
    time_by_kernel = (
        launches.groupby(kernels, observed=True)["duration_ns"].sum().sort_values(ascending=False, kind="stable")
    )
    coloured_kernels = list(time_by_kernel.index[:_COLOURED])
    streams = [f"stream {stream}" for stream in launches["stream"]]
    words = [
        f"{i}: {launch_name(op, kernel)}<br>{module}<br>{kernel}<br>{tiles:,} tiles"
        for i, op, kernel, module, tiles in launches[["launch", "op", "kernel", "module", "tiles"]].itertuples(
            index=False
        )
    ]
    figure = go.Figure()
    groups = [(name, np.flatnonzero(kernels == name)) for name in coloured_kernels]
    groups.append(("other kernels", np.flatnonzero(~kernels.isin(coloured_kernels))))
    for number, (name, rows) in enumerate(groups):
        if len(rows):
            figure.add_trace(
                go.Bar(
                    y=[streams[i] for i in rows],
                    x=wide[rows],
                    base=begin[rows],
                    orientation="h",
                    name=str(name)[:40],
                    marker={"color": PALETTE[number] if number < _COLOURED else _OTHER},
                    customdata=[words[i] for i in rows],
                    hovertemplate="%{customdata}<br>%{x:.3g} us from %{base:.4g} us<extra></extra>",
                )
            )
    figure.update_layout(barmode="overlay", bargap=0.3)
    figure.update_xaxes(title="time in us", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", ticks="")
    return dressed(figure, title, height=260 + 44 * len(set(streams)), top=84)


def gains(groups: pd.DataFrame, *, title: str, most: int = 12) -> go.Figure:
    """Return bars of the pairs that gain most from overlap, copies in repeated layers summed: at most, and by list
    scheduling.

    ``groups`` as `tileprof.analysis.reporting.gains.fold` has them; the first ``most`` that gain anything are shown.
    """
    rows = groups[groups["gain_ns"] > 0].head(most)
    names = [_pair_name(row) for row in rows.to_dict("records")]
    figure = go.Figure()
    for column, name, colour in (
        ("gain_ns", "at most (bound on the two alone)", PALETTE[5]),
        ("listed_gain_ns", "list scheduling of the two", PALETTE[0]),
    ):
        figure.add_trace(
            go.Bar(
                y=names,
                x=rows[column] / 1e3,
                name=name,
                orientation="h",
                marker={"color": colour},
                hovertemplate="%{y}: %{x:.3g} us<extra>" + name + "</extra>",
            )
        )
    figure.update_layout(barmode="group", bargap=0.3)
    figure.update_xaxes(title="gain of all copies in us", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", ticks="", type="category")
    return dressed(figure, title, height=220 + 40 * len(names), top=56)


def _pair_name(row: Mapping[Any, Any]) -> str:
    sides = [launch_name(row[f"{side}_op"], row[f"{side}_kernel"]) for side in ("producer", "consumer")]
    first = f"{row['producers'][0]} → {row['consumers'][0]}"
    times = f" ×{row['times']}" if row["times"] != 1 else ""  # noqa: RUF001 - the sign
    return f"{' → '.join(sides)}{times} ({first})"
