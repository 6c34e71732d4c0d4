"""The look that all plotly figures share: colours, dashes and markers differ together, for readers without colours."""

from __future__ import annotations

from textwrap import wrap

import plotly.graph_objects as go

# Okabe and Ito's palette: told apart by colour-blind readers.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LABEL_PX = 13
"""Size of labels in a figure."""
_FONT_PX, _TITLE_PX = 15, 19
_TITLE_CHARACTERS = 95
"""Characters in a line of a title in a notebook of 900 pixels."""
_LINES_UP_PX = 13
"""The height by which plotly raises a title of several lines."""


def dressed(figure: go.Figure, title: str, *, height: int, top: int = 0, legend: str = "") -> go.Figure:
    """Return the figure in the look that all share, with its finding as title, in lines that a notebook can hold;
    ``top``: pixels between title and picture, with room for a legend named ``legend``.
    """
    lines = [part for line in title.split("<br>") for part in wrap(line, _TITLE_CHARACTERS) or [""]]
    title_height = 22 + 26 * len(lines)
    figure.update_layout(
        template="plotly_white",
        title={
            "text": "<br>".join(lines),
            "x": 0.01,
            "xanchor": "left",
            "y": 1,
            "yanchor": "top",
            "yref": "container",
            "pad": {"t": 14 + _LINES_UP_PX * (len(lines) > 1)},
            "font": {"size": _TITLE_PX},
        },
        font={"size": _FONT_PX, "color": "#222222"},
        height=height,
        margin={"l": 20, "r": 20, "t": title_height + top, "b": 20},
        legend={
            "title": {"text": legend},
            "orientation": "h",
            "x": 0.01,
            "xref": "container",
            "y": 1 - (title_height - 4) / height,
            "yref": "container",
            "yanchor": "top",
            "font": {"size": LABEL_PX},
        },
    )
    figure.update_xaxes(automargin=True, linecolor="#888888", ticks="outside")
    figure.update_yaxes(automargin=True, linecolor="#888888", ticks="outside")
    return figure
