"""Ranges beside published values: a bar and a mark for every row."""

import numpy as np
import pandas as pd
from studies.intervals import intervals


def rows():
    return pd.DataFrame({"row": ["a", "b"], "low": [1.5, 2.0], "high": [2.5, 2.0], "value": [1.8, float("nan")]})


def test_every_row_has_a_bar_from_low_to_high_and_a_mark_at_its_value():
    figure = intervals(rows(), title="Gains", x_title="gain", one="as before")
    bars, marks = figure.data[:-1], figure.data[-1]
    assert [list(bar.x) for bar in bars] == [[1.5, 2.5], [2.0, 2.0]]
    assert [list(bar.y) for bar in bars] == [[0, 0], [1, 1]]
    assert marks.x[0] == 1.8
    assert np.isnan(marks.x[1])
    assert list(figure.layout.yaxis.ticktext) == ["a", "b"]
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]  # the first row is on top
    assert [t.showlegend for t in bars] == [True, False]
    assert len(figure.layout.shapes) == 1
    assert figure.layout.annotations[0].x == 1.0
    assert intervals(rows(), title="Gains", x_title="gain", one="as before", log_x=True).layout.annotations[0].x == 0.0


def test_a_logarithmic_axis_has_round_ticks_around_what_is_shown():
    figure = intervals(rows(), title="Gains", x_title="gain", log_x=True)
    assert list(figure.layout.xaxis.tickvals) == [1.5, 2, 3]
    assert not figure.layout.shapes
